"""`oelm data task`: tokenise labelled texts for a classifier."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oelm.errors import OelmError

if TYPE_CHECKING:
    from oelm.data.labelled import TaskData


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
    say_what_is_there(prepare_task(source, tokenizer, out, **how), as_json)


def prepare_pairs(
    where: list[str], fields: tuple[str | None, str | None], tokenizer: str, as_json: bool, **given: Any
) -> None:
    """`oelm data prepare FOLDER|FILE|NAME --source-field … --target-field …`: rows of two texts, of any kind."""
    from oelm.data.labelled import prepare_task
    from oelm.data.sources import DEFAULT_FRACTION
    from oelm.data.tasks import Task, TaskSource

    source_field, target_field = fields
    if not (source_field and target_field):
        lacking = "--target-field" if source_field else "--source-field"
        raise OelmError(f"pairs of texts need a source and a target; name the column with {lacking}")
    if len(where) != 1:
        raise OelmError(f"pairs come from one file, folder or hub dataset; {len(where)} are given")
    path = Path(where[0])
    name = given["name"] or path.resolve().name.split(".")[0]
    hub = None if path.exists() else where[0]
    task = Task(name, (source_field, target_field), label="", hub=hub, config=given["config"])
    fraction = given["validation_fraction"] or (DEFAULT_FRACTION if path.is_file() else None)
    split = str(given["validation"]) if given["validation"] else None
    source = TaskSource(task, None if hub else path, None, split, given["revision"], held_out=fraction)
    how = {"max_length": given["max_length"], "data_dir": given["data_dir"]}
    say_what_is_there(prepare_task(source, tokenizer, given["out"], **how), as_json)


def say_what_is_there(data: "TaskData", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"path": str(data.path), "fingerprint": data.fingerprint, **data.manifest}, indent=2))
        return
    rows = ", ".join(
        f"{split} {facts['rows']:,} rows ({facts['truncated']:,} truncated)"
        for split, facts in data.manifest["splits"].items()
    )
    kind = "pairs" if data.is_pairs else f"classes {', '.join(data.classes)}"
    typer.echo(f"{data.path}: {rows}; {kind}; at most {data.longest} tokens")
