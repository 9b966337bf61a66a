"""`oelm export`: a trained model for every other tool."""

import json
from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run folder or a checkpoint folder.")],
    to: Annotated[
        str,
        typer.Option(
            help="hf: the stock architecture it equals (GPT-2, GPT-NeoX, Llama, Qwen3, or its own). remote-code: "
            "our GPT with its source beside it, for what has no equal. gguf-ready: hf, where GGUF runtimes agree."
        ),
    ] = "hf",
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default RUN/export.")] = None,
    checkpoint: Annotated[str, typer.Option(help="best or latest.")] = "best",
    push: Annotated[
        str | None, typer.Option(help="Upload it to the hub as NAME/MODEL (log in to the hub first).")
    ] = None,
    public: Annotated[bool, typer.Option(help="Make the pushed repository public; it is private otherwise.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Write a trained model as a folder that needs no oelm: merged weights, tokenizer, model card.

    Adapters and projections without weights are folded into dense matrices. What no stock architecture has (token
    shift, key offset, thin heads …) is refused by name; --to remote-code takes it. Before anything is written, the
    logits are compared with the checkpoint's.
    """
    from oelm.evaluation.export import export as write
    from oelm.evaluation.export import push as upload

    facts = write(run, out, to=to, which=checkpoint)
    if push:
        facts["pushed_to"] = upload(facts["folder"], push, private=not public)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(
        f"{facts['folder']}: {facts['architecture']} of step {facts['step']:,}, {facts['parameters']:,} parameters; "
        f"logits within {facts['logit_difference']:.0e} of the checkpoint's"
    )
    if push:
        typer.echo(f"pushed to {facts['pushed_to']}")
