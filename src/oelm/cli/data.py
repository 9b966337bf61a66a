"""`oelm data`: text to tokens, once, before training."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from oelm.cli.console import AsJson, PlainHelp, command_console, echo_json
from oelm.errors import OelmError, printable
from oelm.validation import TOKENS, amount

if TYPE_CHECKING:
    from oelm.data.labelled import TaskData
    from oelm.data.staging import Entry
    from oelm.data.tokens import TokenData

app = typer.Typer(help="Prepare text for training, and see what is prepared.", no_args_is_help=True)

MOST_PATHS = 4
DataDir = Annotated[Path | None, Option(help="Where prepared folders lie. (default: $OELM_DATA_DIR, else ./data)")]
Text = Annotated[
    list[str],
    Argument(
        metavar="NAME|PATH...",
        help="fables, recall (embedded), tinystories, openwebtext, wikitext103, wikitext2 or any OWNER/NAME "
        "(from the hub), or files: .txt, .jsonl, .csv, .tsv, .parquet, also .gz or .zst, or a folder with train.* and "
        "validation.*.",
    ),
]
TOKENIZER = (
    "gpt2, bpe:SIZE (byte-level BPE trained on the training text; bpe:SIZE+special also has mask and padding), "
    "a tokenizer.json, a folder with one or with vocab.json and merges.txt, or a model's folder or hub name."
)
MAX_TOKENS = "Only the first documents, up to so many training tokens (50M); of validation, the held-out share."
STREAM = "Read a hub dataset as it comes instead of downloading all of it first. (default: with --max-tokens)"
FRACTION = "Share of the documents to hold out where there is no validation text. (default: 0.05)"


@app.command(cls=PlainHelp)
def prepare(
    source: Text,
    tokenizer: Annotated[str, Option(help=TOKENIZER)] = "gpt2",
    out: Annotated[Path | None, Option(help="Folder to write. (default: DATA_DIR/NAME-TOKENIZER)")] = None,
    name: Annotated[str | None, Option(help="Of a local copy: prepare ./stories --name tinystories.")] = None,
    validation: Annotated[Path | None, Option(help="Validation file or folder; of a hub dataset, the split.")] = None,
    validation_fraction: Annotated[float | None, Option(help=FRACTION)] = None,
    field: Annotated[str | None, Option(help="Column with the text, where there are some. (default: text)")] = None,
    source_field: Annotated[str | None, Option(help="Of pairs of texts (seq2seq): the column a model reads.")] = None,
    target_field: Annotated[str | None, Option(help="Of pairs of texts: the column with what it writes.")] = None,
    max_length: Annotated[
        int, Option(min=2, metavar="<int>", help="Of pairs of texts: tokens of a source or a target.")
    ] = 128,
    config: Annotated[str | None, Option(help="Configuration of the hub dataset, where it has several.")] = None,
    split: Annotated[str | None, Option(help="Split of the hub dataset to train on. (default: train)")] = None,
    max_tokens: Annotated[str | None, Option(help=MAX_TOKENS)] = None,
    stream: Annotated[bool | None, Option("--stream/--no-stream", help=STREAM)] = None,
    revision: Annotated[str | None, Option(help="Commit, branch or tag of the hub dataset.")] = None,
    megabytes: Annotated[float | None, Option(help="Training text to make. (default where made: 2)")] = None,
    validation_megabytes: Annotated[float | None, Option(help="The same for validation. (default: 0.15)")] = None,
    seed: Annotated[int, Option(help="Seed of the fables, or of which documents are held out.")] = 0,
    workers: Annotated[
        int | None, Option(min=1, metavar="<int>", help="Encoding threads. (default: one per core)")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace a folder that has other settings.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Turn text into token files with a manifest. Interrupted? Run the same command again: it continues.

    Documents: a row each in .jsonl, .csv, .tsv and .parquet. A .txt is cut at lines that say <|endoftext|>; one that
    begins with a WikiText heading ( = Title = ) is cut into articles; any other at blank lines, into documents of about
    64 kB (of a file below 1 MB, a hundredth of it). Validation documents are drawn from them (--validation-fraction),
    unless there is text for it.

    Example: oelm data prepare book.txt notes.txt --tokenizer bpe:2048
    Example: oelm data prepare ./multi30k --source-field de --target-field en --tokenizer bpe:4096+special
    Example: oelm data prepare HuggingFaceFW/fineweb-edu --config sample-10BT --max-tokens 100M
    """
    if source_field or target_field:
        chosen = {"validation": validation, "validation_fraction": validation_fraction, "max_length": max_length}
        where = {"out": out, "name": name, "config": config, "revision": revision, "data_dir": data_dir}
        return prepare_pairs(source, (source_field, target_field), tokenizer, as_json, **chosen, **where)
    from oelm.data import prepare as preparation
    from oelm.data.corpora import find_source

    held_out: dict[str, Any] = {"validation": validation, "validation_fraction": validation_fraction, "seed": seed}
    made: dict[str, Any] = {"megabytes": megabytes, "validation_megabytes": validation_megabytes}
    limit = None if max_tokens is None else int(amount("--max-tokens", max_tokens, TOKENS))
    streams = limit is not None and not Path(source[0]).exists() if stream is None else stream
    hub: dict[str, Any] = {"revision": revision, "config": config, "split": split, "stream": streams}
    found = find_source(source, name=name, field=field, **hub, **held_out, **made)
    with _bar() as bar:
        how: dict[str, Any] = {"max_tokens": limit, "data_dir": data_dir, "workers": workers, "force": force, **bar}
        data = preparation.prepare(found, out, tokenizer, **how)
    if as_json:
        return echo_json(_facts(data) | {"already_prepared": data.unchanged})
    if data.unchanged:
        typer.echo(f"{data.path} is already prepared with these settings; nothing to do")
    _print_facts(data)


@app.command("list", cls=PlainHelp)
def list_prepared(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """What is prepared in the data directory: corpora, and tasks for classifiers."""
    from oelm.data.tokens import UNFINISHED, data_directory, prepared, prepared_tasks

    root = data_directory(data_dir)
    rows = [_row(path, "tokens") for path in prepared(root)] + [_row(path, "rows") for path in prepared_tasks(root)]
    for path in sorted(root.glob(f"*{UNFINISHED}")):
        rows.append({"folder": path.name.removesuffix(UNFINISHED), "state": "unfinished"})
    if as_json:
        return echo_json(rows)
    if not rows:
        return typer.echo(f"nothing is prepared in {root}; start with: oelm data prepare fables --tokenizer bpe:1024")
    table = Table("folder", "state", "vocabulary", "train", "validation", "fingerprint", box=None)
    for row in rows:
        facts, unit = [], "rows" if "train_rows" in row else "tokens"
        if row["state"] == "ready":
            amounts = [f"{row[f'{split}_{unit}']:,} {unit}" for split in ("train", "validation")]
            facts = [f"{row['vocab_size']:,}", *amounts, row["fingerprint"]]
        table.add_row(escape(printable(row["folder"])), row["state"], *facts)
    console = command_console()
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(row["error"], style="red", markup=False)


def _row(path: Path, unit: str) -> dict[str, Any]:
    """One prepared folder; a damaged one is named and hides no other."""
    from oelm.data.labelled import TaskData
    from oelm.data.tokens import FILES, TokenData

    try:
        data = (TokenData if unit == "tokens" else TaskData).open(path)
        counts = {f"{split}_{unit}": len(getattr(data, split)) for split in FILES}
        facts = {"name": data.name, "vocab_size": data.vocab_size, **counts, "fingerprint": data.fingerprint}
        return {"folder": path.name, "state": "ready", **facts}
    except (OelmError, KeyError, TypeError) as error:
        return {"folder": path.name, "state": "damaged", "error": f"{path} cannot be read: {error}"}


@app.command(cls=PlainHelp)
def show(
    data: Annotated[str, Argument(metavar="NAME|PATH", help="A folder in the data directory, a corpus or a path.")],
    verify: Annotated[bool, Option("--verify", help="Read every byte and compare it with its sha256.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Where prepared data came from, what it holds, and whether it is intact."""
    from oelm.data.tokens import TokenData, find

    opened = TokenData.open(find(data, data_dir), verify=verify)
    if as_json:
        return echo_json(_facts(opened) | {"verified": verify, "manifest": opened.manifest})
    _print_facts(opened)
    if verify:
        typer.echo("verified        every byte is as it was written")


def _facts(data: "TokenData") -> dict[str, Any]:
    splits = data.manifest["splits"].items()
    return {
        "path": str(data.path),
        "name": data.name,
        "tokenizer": data.manifest["tokenizer"]["spec"],
        "vocab_size": data.vocab_size,
        "tokenizer_hash": data.tokenizer_hash,
        **{f"{split}_{what}": facts[what] for split, facts in splits for what in ("documents", "tokens")},
        "bytes_per_token": data.bytes_per_token,
        "true_entropy_nats_per_token": data.true_entropy_nats_per_token,
        "fingerprint": data.fingerprint,
    }


def _print_facts(data: "TokenData") -> None:
    facts = _facts(data)
    rows = {
        "folder": facts["path"],
        "source": _origin(data.manifest["source"]),
        "tokenizer": f"{facts['tokenizer']}, {facts['vocab_size']:,} entries, hash {facts['tokenizer_hash'][:12]}",
    }
    for split in data.manifest["splits"]:
        documents = facts[f"{split}_documents"]
        rows[split] = f"{facts[f'{split}_tokens']:,} tokens in {documents:,} document{'s' if documents != 1 else ''}"
    rows["bytes per token"] = f"{facts['bytes_per_token']:.3f} (validation)"
    rows["fingerprint"] = facts["fingerprint"]
    if facts["true_entropy_nats_per_token"] is not None:
        rows["true entropy"] = f"{facts['true_entropy_nats_per_token']:.4f} nats per token (validation)"
    for key, value in rows.items():
        typer.echo(f"{key:<16}{value}")


def _origin(source: dict[str, Any]) -> str:
    if source["kind"] == "hub":
        config = f" {source['config']}" if source["config"] else ""
        return f"{source['dataset']}{config} at {source['revision']}"
    if source["kind"] == "files":
        paths = [entry["path"] for entry in source["files"]]
        if len(paths) > MOST_PATHS:
            return f"{len(paths)} files in {os.path.commonpath([os.path.dirname(path) for path in paths]) or '.'}"
        return ", ".join(paths)
    return f"{source['corpus']} (embedded), seed {source['seed']}"


@contextlib.contextmanager
def _bar() -> Iterator[dict[str, Callable[..., None]]]:
    """A progress bar on standard error where that is a terminal: what `prepare` reports to."""
    if not sys.stderr.isatty():
        yield {"note": partial(typer.echo, err=True)}
        return
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description:<10}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[documents]:,} documents  {task.fields[tokens]:,} tokens"),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=command_console(stderr=True),
    )
    tasks: dict[str, Any] = {}

    def update(split: str, done: "Entry", expected: int | None) -> None:
        if split not in tasks:  # shown from the first chunk on, so that it does not run into a download's own bar
            bar.start()
            tasks[split] = bar.add_task(split, documents=0, tokens=0)
        total = None if expected is None else max(expected, done.bytes_of_text)
        counts: dict[str, Any] = {"documents": done.documents, "tokens": done.tokens}
        bar.update(tasks[split], completed=done.bytes_of_text, total=total, **counts)

    try:
        yield {"progress": update, "note": partial(bar.console.print, highlight=False)}  # above the bar, not through it
    finally:
        bar.stop()


@app.command(cls=PlainHelp)
def task(
    name: Annotated[str, Argument(help="sst2, mnli, xnli, or a name for a task of your own.")],
    tokenizer: Annotated[str, Option(help="The model's folder or hub name; or gpt2, bpe:4096, files.")],
    data_path: Annotated[Path | None, Option(help="Folder with train.* and validation.*. (default: the hub)")] = None,
    text_columns: Annotated[list[str] | None, Option("--text-column", help="A text's column; twice for pairs.")] = None,
    label_column: Annotated[str | None, Option(help="Column of the class. (default: label)")] = None,
    classes: Annotated[str | None, Option(help="The classes in their order: no,yes. (default: found)")] = None,
    language: Annotated[str | None, Option(help="Of XNLI, e.g. zh; files are then train.zh.tsv or .csv.")] = None,
    validation: Annotated[str | None, Option(help="To validate on: validation_mismatched (MNLI), test (XNLI).")] = None,
    validation_fraction: Annotated[float | None, Option(help="Hold out this share of the training rows.")] = None,
    max_length: Annotated[int, Option(help="Tokens per text or pair.")] = 128,
    too_long: Annotated[str, Option(help="What to do with longer ones: truncate or refuse.")] = "truncate",
    train_rows: Annotated[int | None, Option(help="Keep only so many training rows.")] = None,
    out: Annotated[Path | None, Option(help="Folder. (default: a name made of the settings, in ./data)")] = None,
    as_json: AsJson = False,
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
        return echo_json({"path": str(data.path), "fingerprint": data.fingerprint, **data.manifest})
    rows = ", ".join(
        f"{split} {facts['rows']:,} rows ({facts['truncated']:,} truncated)"
        for split, facts in data.manifest["splits"].items()
    )
    kind = "pairs" if data.is_pairs else f"classes {printable(', '.join(data.classes))}"
    typer.echo(f"{data.path}: {rows}; {kind}; at most {data.longest} tokens")
