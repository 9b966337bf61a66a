"""`oelm data task`: tokenise labelled texts for a classifier."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.errors import OelmError


def task(
    name: Annotated[str, typer.Argument(help="sst2, mnli, xnli, or a name for a task of your own.")],
    tokenizer: Annotated[str, typer.Option(help="The model's folder or hub name; or gpt2, bpe:4096, files.")],
    data_path: Annotated[
        Path | None,
        typer.Option(
            "--data-path",
            help="Folder with train and validation files: .tsv, .csv, .jsonl or .parquet. (default: the hub)",
        ),
    ] = None,
    text_columns: Annotated[
        list[str] | None, typer.Option("--text-column", help="Column of a text; give it twice for pairs.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the class. (default: label)")] = None,
    classes: Annotated[str | None, typer.Option(help="The classes in their order: no,yes. (default: found)")] = None,
    language: Annotated[str | None, typer.Option(help="Of XNLI, e.g. zh; files are then train.zh.tsv or .csv.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="Split to validate on: validation_mismatched (MNLI), test (XNLI).")
    ] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Hold out this share of the training rows instead, a fixed random choice.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Tokens per text or pair.")] = 128,
    too_long: Annotated[str, typer.Option(help="What to do with longer ones: truncate or refuse.")] = "truncate",
    train_rows: Annotated[int | None, typer.Option(help="Keep only so many training rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. (default: a name made of the settings, in ./data)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Tokenise a classification task once; 'oelm train --dataset FOLDER' then trains on it.

    Example: oelm data task sst2 --tokenizer google-bert/bert-base-uncased
    """
    from oelm.data.labelled import prepare_task
    from oelm.data.tasks import TaskSource, find_task

    named = [part.strip() for part in classes.split(",")] if classes else ()
    found = find_task(name, text_columns or (), label_column, named)
    how: dict[str, Any] = {"max_length": max_length, "too_long": too_long, "train_rows": train_rows}
    if validation_fraction is not None and not 0 < validation_fraction <= 0.5:
        raise OelmError(f"--validation-fraction {validation_fraction} is out of range; choose above 0 and at most 0.5")
    source = TaskSource(found, data_path, language, validation, held_out=validation_fraction)
    data = prepare_task(source, tokenizer, out, **how)
    if as_json:
        typer.echo(json.dumps({"path": str(data.path), "fingerprint": data.fingerprint, **data.manifest}, indent=2))
        return
    rows = ", ".join(
        f"{split} {facts['rows']:,} rows ({facts['truncated']:,} truncated)"
        for split, facts in data.manifest["splits"].items()
    )
    typer.echo(f"{data.path}: {rows}; classes {', '.join(data.classes)}; at most {data.longest} tokens")
