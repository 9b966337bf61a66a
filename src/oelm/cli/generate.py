"""`oelm generate`: text from a trained model."""

import json
import sys
from functools import partial
from typing import Annotated, Any

import typer

from oelm.cli.surveys import AsJson, Models, Which, show, survey


def generate(
    models: Models,
    prompt: Annotated[str, typer.Option(help="Text to go on from; empty starts a new document.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add at most.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest tokens only; 0: all.")] = 50,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="… and among the likeliest that together have this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    batch: Annotated[
        int | None, typer.Option(min=1, max=4096, help="How many texts to write. (default: 1; 100 with --quality)")
    ] = None,
    quality: Annotated[
        bool, typer.Option("--quality", help="Write many texts and say what they are like, beside the validation text.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="Model whose perplexity of the texts --quality measures.", metavar="MODEL")
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="Go on from every line that is typed.")] = False,
    checkpoint: Which = "best",
    as_json: AsJson = False,
) -> None:
    """Let a trained model write; one text appears as it is written.

    With --quality: words per text, distinct-n (the share of different ones among all runs of n words), repetition (of
    four words that stood in the same text before) and, with --reference, how well another model foretells the texts.
    Runs of one arm are one row, with 95 % intervals over seeds; a run keeps its figures in evaluation/generation.json.
    """
    from oelm.errors import OelmError

    many = batch is not None and batch > 1
    if interactive and (as_json or many or quality):
        raise OelmError("--interactive writes one text at a time; leave --json, --batch and --quality out")
    if len(models) > 1 and not quality:
        raise OelmError(f"one model writes at a time, not {len(models)}; --quality compares several")
    if quality and not temperature:
        raise OelmError("--quality needs texts that differ, but --temperature 0 writes the same one each time")
    if reference and not quality:
        raise OelmError(f"--reference {reference} is for --quality; add it, or leave --reference out")
    from oelm.evaluation import generation
    from oelm.evaluation.subjects import load

    how: dict[str, Any] = {"tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if quality:
        from oelm.evaluation.generation import quality as measure

        how |= {"prompt": prompt, "samples": batch or 100, "reference": load(reference) if reference else None}
        show(survey(models, checkpoint, lambda subject: [measure(subject, **how)]), as_json)
        return
    run, batch = models[0], batch or 1
    subject = load(run, checkpoint)
    say = partial(print, end="", flush=True)
    for text in (line.rstrip("\n") for line in sys.stdin) if interactive else [prompt]:
        if many or as_json:
            texts = generation.write(subject, text, batch=batch, **how)
            facts = {"run": run, "prompt": text, "text": texts[0], **({"texts": texts} if many else {})}
            shown = json.dumps(facts, ensure_ascii=False, indent=2)
            typer.echo(shown if as_json else "\n\n".join(text + one for one in texts))
            continue
        if not interactive:
            say(text)
        generation.write(subject, text, stream=say, **how)
        typer.echo()
