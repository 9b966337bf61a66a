"""`oelm generate`: text from a trained run."""

import json
from pathlib import Path
from typing import Annotated

import typer


def generate(
    run: Annotated[Path, typer.Argument(help="A run folder or a checkpoint folder.")],
    prompt: Annotated[str, typer.Option(help="Text to go on from; empty starts a new document.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add at most.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest tokens only; 0: all.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="best or latest.")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Let a trained model write."""
    from oelm.evaluation.generation import generate as write

    text = write(run, prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, which=checkpoint)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "prompt": prompt, "text": text}, ensure_ascii=False, indent=2))
    else:
        typer.echo(prompt + text)
