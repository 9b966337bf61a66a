"""`oelm generate`, `evaluate`, `probe` and `export`: trained models. What is measured is kept in their run folders."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.errors import OelmError

if TYPE_CHECKING:
    from oelm.evaluation.subjects import Subject

PROBES = ("recall", "induction", "copy", "previous")
Models = Annotated[list[str], Argument(metavar="RUN|FOLDER|NAME…", help="Runs, checkpoints, models, names of the hub.")]
Which = Annotated[str, Option("--checkpoint", help="best or latest.")]


def generate(
    models: Models,
    prompt: Annotated[str, Option(help="Text to go on from; empty starts a new document.")] = "",
    tokens: Annotated[int, Option(min=1, help="How many tokens to add at most.")] = 120,
    temperature: Annotated[float, Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, Option(min=0, help="Sample among the k likeliest tokens only; 0: all.")] = 50,
    top_p: Annotated[float, Option(min=0.01, max=1.0, help="… and among those that together have this share.")] = 1.0,
    seed: Annotated[int, Option(min=0, help="Seed of the sampling.")] = 0,
    batch: Annotated[int | None, Option(min=1, max=4096, help="Texts. (default: 1; 100 with --quality)")] = None,
    quality: Annotated[bool, Option("--quality", help="Write many texts and say what they are like.")] = False,
    reference: Annotated[str | None, Option(help="Model that judges the texts of --quality.", metavar="MODEL")] = None,
    interactive: Annotated[bool, Option("--interactive", help="Go on from every line that is typed.")] = False,
    checkpoint: Which = "best",
    as_json: AsJson = False,
) -> None:
    """Let a trained model write; one text appears as it is written.

    With --quality: words per text, distinct-n (the share of different ones among all runs of n words), repetition (of
    four words that stood in the same text before) and, with --reference, how well another model foretells the texts.
    Runs of one arm are one row, with 95 % intervals over seeds; a run keeps its figures in evaluation/generation.json.
    """
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
        how |= {"prompt": prompt, "samples": batch or 100, "reference": load(reference) if reference else None}
        return show(survey(models, checkpoint, lambda subject: [generation.quality(subject, **how)]), as_json)
    run, batch = models[0], batch or 1
    subject = load(run, checkpoint)
    for text in (line.rstrip("\n") for line in sys.stdin) if interactive else [prompt]:
        if many or as_json:
            texts = generation.write(subject, text, batch=batch, **how)
            facts = {"run": run, "prompt": text, "text": texts[0], **({"texts": texts} if many else {})}
            given = json.dumps(facts, ensure_ascii=False, indent=2)
            typer.echo(given if as_json else "\n\n".join(text + one for one in texts))
            continue
        begin = [] if interactive else [text]

        def say_after(word: str, begin: list[str] = begin) -> None:
            print(*begin, word, sep="", end="", flush=True)
            begin.clear()  # shown with the first word: a prompt that is refused is not repeated

        generation.write(subject, text, stream=say_after, **how)
        typer.echo()


def evaluate(
    models: Models,
    tasks: Annotated[str | None, Option(help="Of lm-eval: piqa,arc_easy,blimp. 'lm-eval ls tasks' has all.")] = None,
    task_data: Annotated[
        Path | None, Option(exists=True, file_okay=False, help="Folder with TASK_SPLIT.jsonl.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Only the first rows of each task.")] = None,
    fewshot: Annotated[int | None, Option(min=0, help="Solved examples per question. (default: the task's)")] = None,
    text: Annotated[Path | None, Option(exists=True, dir_okay=False, help="Text whose perplexity to measure.")] = None,
    stride: Annotated[int | None, Option(min=1, help="Tokens from window to window. (default: half a window)")] = None,
    batch: Annotated[int, Option(min=1, help="Texts at once in --tasks.")] = 8,
    checkpoint: Which = "best",
    as_json: AsJson = False,
) -> None:
    """Evaluate models on tasks through lm-eval, or on a text of your own.

    A run keeps each result in its folder, evaluation/*.json, where 'oelm report' finds it. Several runs: one table,
    means over seeds with their 95 % intervals. Files for --task-data are named after the task or its dataset
    (piqa_validation.jsonl, winogrande_xl_validation.jsonl; in blimp/ one per paradigm) and have the original fields;
    a group is evaluated on those of its tasks that have a file. Few-shot examples come from the training file, or
    from the other rows.

    Example: oelm evaluate runs/demo/* --tasks piqa,blimp --task-data data/eval
    """
    named = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if not named and text is None:
        raise OelmError("nothing to evaluate: give --tasks (of lm-eval), --text FILE, or both")
    from oelm.evaluation import downstream, perplexity

    asked = downstream.find_tasks(named, task_data) if named else []

    def measure(subject: Any) -> list[dict[str, Any]]:
        found = [downstream.evaluate(subject, one, limit=limit, fewshot=fewshot, batch=batch) for one in asked]
        return [*found, perplexity.file_perplexity(subject, text, stride)] if text else found

    found = survey(models, checkpoint, measure)
    for facts in found["models"]:
        which = f"{facts['model']}: {facts.get('task')}"
        if left_out := facts.get("left_out"):
            typer.echo(f"{which}: {len(facts['scores'])} tasks; {len(left_out)} others have no file", err=True)
        if cut := facts.get("cut"):
            typer.echo(f"{which}: {cut} texts are longer than the context and were cut from the left", err=True)
        if unfit := facts.get("unfit"):
            typer.echo(f"{which}: {unfit} rows left out, because an answer alone is longer than the context", err=True)
    show(found, as_json)


def probe(
    models: Models,
    samples: Annotated[int, Option(min=1, max=4096, help="Texts per probe and size.")] = 64,
    fables: Annotated[int | None, Option(min=0, help="Fables read. (default: 50 if trained on them, else 0)")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the texts; the same for all models.")] = 0,
    checkpoint: Which = "best",
    figure: Annotated[Path | None, Option(help="Layer × head, one model. (default: RUN/evaluation/heads.png)")] = None,
    as_json: AsJson = False,
) -> None:
    """Probe attention: associative recall, induction, copying, the previous token, and the heads that do it.

    Every model gets texts of random words of its own vocabulary. "choice" is how often the right word is the likeliest
    among those that could be meant (never the word that asks), "accuracy" among all tokens. Models trained on fables
    are also asked for the names, objects and places of unread stories. A run keeps its results in
    evaluation/probe.json. Several models: one table, means over seeds with their 95 % intervals.
    """
    from oelm.analysis.figures.commands import heads_figure
    from oelm.evaluation import probes
    from oelm.files import write_atomically

    if figure is not None and len(models) > 1:
        raise OelmError(f"--figure {figure} is for one model, not {len(models)}; every run has its own in its folder")

    def measure(subject: Any) -> list[dict[str, Any]]:
        result = subject.run and subject.run.result()
        of_fables = subject.run and "fables" in str(
            (result or {}).get("dataset") or subject.run.config()["data"]["path"]
        )
        told = fables if fables is not None else 50 if of_fables else 0
        record = probes.probe(subject, samples=samples, seed=seed, fables=told)
        return [{"name": "probe", **record, **_headlines(record)}]

    found = survey(models, checkpoint, measure, attn_implementation="eager")
    for record in found["models"]:
        place = figure or (record["file"] and Path(record["file"]).with_name("heads.png"))
        if place:
            write_atomically(place, heads_figure(record["heads"], Path(record["model"]).name))
        record["figure"] = place and str(place)
    if len(models) == 1 and not as_json:
        _print(found["models"][0])
    else:
        show(found, as_json, " accuracy %")
    typer.echo(probes.CAVEAT, err=as_json)


def _headlines(record: dict[str, Any]) -> dict[str, Any]:
    """One figure per probe, its mean over sizes; the strongest heads; the fables; beside them, what is easy to get."""
    found: dict[str, float] = {}
    beside: dict[str, dict[str, float]] = {"chance": {}}
    for name in PROBES:
        rows = [row for row in record["probes"] if row["probe"] == name and row["distance"] is None]
        if rows:
            means = {key: 100 * sum(row[key] for row in rows) / len(rows) for key in ("choice", "accuracy", "chance")}
            beside["chance"][f"{name} choice %"] = means.pop("chance")
            found |= {f"{name} {key} %": mean for key, mean in means.items()}
    for name in ("induction", "previous"):
        shares = [share for layer in record["heads"][name] for share in layer if share is not None]
        if shares:
            found[f"{name} head %"] = 100 * max(shares)
    for row in record.get("fables", {}).get("rows", []):
        if row["distance"] is None:
            measure = f"fables {row['kind']} recalled %"
            found[measure] = 100 * row["accuracy"]
            beside.setdefault("the latest word of its kind", {})[measure] = 100 * row["nearest"]
    return {"headlines": found, "beside": beside}


def _print(record: dict[str, Any]) -> None:
    console, figures = command_console(), ("choice", "chance", "nearest", "accuracy")
    table = Table("probe", "size", "distance up to", "answers", *figures, box=None)
    for row in [*record["probes"], *record.get("fables", {}).get("rows", [])]:
        name = row.get("probe") or f"fables {row['kind']}"
        cells = [f"{row[what]:.1%}" if what in row else "" for what in figures]
        table.add_row(name, str(row.get("size", "")), str(row["distance"] or "all"), str(row["answers"]), *cells)
    console.print(table, "")
    for head in record["heads"]["found"]:
        console.print(f"layer {head['layer']} head {head['head']}: {head['kind']} head, {head['share']:.0%}")
    console.print(*(f"written: {record[what]}" for what in ("file", "figure") if record[what]), sep="\n")


def export(
    run: Annotated[Path, Argument(help="A run folder or a checkpoint folder.")],
    to: Annotated[
        str,
        Option(
            help="hf: the stock architecture it equals (GPT-2, GPT-NeoX, Llama, Qwen3, or its own). remote-code: "
            "our GPT with its source beside it, for what has no equal. gguf-ready: hf, where GGUF runtimes agree."
        ),
    ] = "hf",
    out: Annotated[Path | None, Option(help="Folder to write; by default RUN/export.")] = None,
    checkpoint: Which = "best",
    push: Annotated[str | None, Option(help="Upload it to the hub as NAME/MODEL (log in to the hub first).")] = None,
    public: Annotated[bool, Option(help="Make the pushed repository public; it is private otherwise.")] = False,
    as_json: AsJson = False,
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
        return echo_json(facts)
    typer.echo(
        f"{facts['folder']}: {facts['architecture']} of step {facts['step']:,}, {facts['parameters']:,} parameters; "
        f"logits within {facts['logit_difference']:.0e} of the checkpoint's"
    )
    if push:
        typer.echo(f"pushed to {facts['pushed_to']}")


def survey(
    models: Sequence[str], checkpoint: str, measure: "Callable[[Subject], list[dict[str, Any]]]", **options: Any
) -> dict[str, list[dict[str, Any]]]:
    """All records (a `name`, `headlines`, perhaps figures `beside` them), and the headlines as one row per arm."""
    from oelm.analysis.report.evaluations import Measured, across
    from oelm.evaluation.subjects import load

    records, measured = [], []
    beside: dict[str, Measured] = {}
    for name in models:
        subject = load(name, checkpoint, **options)
        values: dict[str, float] = {}
        for facts in measure(subject):
            file = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in facts["name"])
            kept = subject.record(file, facts)
            records.append({"model": name, **facts, "file": kept and str(kept)})
            values |= facts["headlines"]
            for label, figures in facts.get("beside", {}).items():
                if beside.setdefault(label, Measured(label, None, figures)).values != figures:
                    label = f"{label} ({name})"  # other data, or a shorter context
                    beside[label] = Measured(label, None, figures)
        measured.append(Measured(name, subject.run, values))
    return {"models": records, "arms": across([*measured, *beside.values()])}


def show(found: dict[str, list[dict[str, Any]]], as_json: bool, leave_out: str = "-") -> None:
    from oelm.analysis.report.evaluations import arms_table

    if as_json:
        echo_json(found, ensure_ascii=False)
    else:
        command_console().print(arms_table(found["arms"], leave_out))
