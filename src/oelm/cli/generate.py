"""`oelm generate`: text from a trained model."""

import json
import sys
from functools import partial
from typing import Annotated, Any

import typer


def generate(
    run: Annotated[
        str, typer.Argument(metavar="RUN|FOLDER|NAME", help="A run, checkpoint, model folder or name on the hub.")
    ],
    prompt: Annotated[str, typer.Option(help="Text to go on from; empty starts a new document.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add at most.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest tokens only; 0: all.")] = 50,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="… and among the likeliest that together have this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="How many texts to write.")] = 1,
    interactive: Annotated[bool, typer.Option("--interactive", help="Go on from every line that is typed.")] = False,
    checkpoint: Annotated[str, typer.Option(help="best or latest.")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Let a trained model write; one text appears as it is written."""
    from oelm.errors import OelmError

    if interactive and (as_json or batch > 1):
        raise OelmError("--interactive writes one text at a time; leave --json and --batch out")
    from oelm.evaluation import generation
    from oelm.evaluation.subjects import load

    how: dict[str, Any] = {"tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    subject = load(run, checkpoint)

    say = partial(print, end="", flush=True)
    for text in (line.rstrip("\n") for line in sys.stdin) if interactive else [prompt]:
        if batch > 1 or as_json:
            texts = generation.write(subject, text, batch=batch, **how)
            facts = {"run": run, "prompt": text, "text": texts[0], **({"texts": texts} if batch > 1 else {})}
            shown = json.dumps(facts, ensure_ascii=False, indent=2)
            typer.echo(shown if as_json else "\n\n".join(text + one for one in texts))
            continue
        if not interactive:
            say(text)
        generation.write(subject, text, stream=say, **how)
        typer.echo()
