"""`oelm train` and `oelm resume`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.progress import said_aloud, training_progress
from oelm.cli.settings import PANELS, options_of_run
from oelm.errors import OelmError
from oelm.freezing.methods import method as find_method
from oelm.models.shape import GPTConfig
from oelm.records import STEPS_OF_DATA
from oelm.runs import RunFolder
from oelm.training.config import RunConfig, options, with_settings
from oelm.training.tracking import require_installed

PUBLISHED_EPOCHS = 3.0

MaxRestarts = Annotated[
    int, typer.Option(min=0, help="How often to go on from the last checkpoint when a process is lost.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Not used any more: no port is opened.", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON; nothing else goes to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; the run folder has it all.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what goes to training.log.")]


@options_of_run()
def train(
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", "--data", help="A prepared corpus (see 'oelm data list'), its folder, or 'fables'."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Train a classifier on sst2, mnli or xnli, instead of --dataset.")
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option("--data-path", help="The task's own files. (default: from the hub)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--encoder",
            rich_help_panel=PANELS["model"],
            help="Instead of our GPT: any language model of transformers, as a hub name, a folder or a config.json; or "
            "a run of ours: its own --method keeps what it froze frozen, baseline trains everything.",
        ),
    ] = None,
    positions: Annotated[str | None, typer.Option(help="learned or rotary. (default: rotary)")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--out_dir", help="Run folder. (default: runs/DATASET-SIZE-METHOD-SEED)"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A config.yaml to start from; options override it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.weight_decay=0.05. Repeatable."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Several methods, e.g. baseline,oelm_freeze: a run of each for every seed.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: a run of each.")] = None,
    time_steps: Annotated[
        bool, typer.Option("--time", help="Of several methods: afterwards time their steps side by side.")
    ] = False,
    max_restarts: MaxRestarts = 0,
    port: Port = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **given: Any,
) -> None:
    """Train one model with one method, or go on with the run that OUT already holds.

    Stop it with Ctrl-C or SIGTERM whenever you like: it writes a checkpoint first, and the same command goes on.
    The study's flag names (--model_type, --max_lr, --max_steps, --out_dir) work too.

    Example: oelm train --method oelm_freeze --dataset fables --max-steps 300
    Example: oelm train --methods baseline,oelm_freeze --seeds 0,1,2 --time --dataset fables --max-steps 300
    Example: oelm train --method oelm_freeze --dataset fables --nproc 2
    Example: oelm train --method oelm_freeze --task sst2 --model google-bert/bert-base-uncased --max-lr 1e-4
    Example: oelm train --method oelm_freeze --dataset wikitext2 --model config.json --fresh --objective masked
    """
    from oelm import lab

    if task and dataset:
        raise OelmError(f"--task {task} and --dataset {dataset} exclude each other; a prepared task is a --dataset")
    if methods and given["method"]:
        raise OelmError(f"--method {given['method']} and --methods {methods} exclude each other; put it into the list")
    for name in (methods or given["method"] or "baseline").split(","):
        find_method(name.strip())  # a misspelt name is refused before data is looked for
    if not (dataset or task or config):
        raise OelmError(
            "no data given; add --dataset NAME ('oelm data list' shows what is prepared; 'fables' is built in)"
        )
    if data_path and not task:
        raise OelmError(f"--data-path {data_path} says where the files of a --task are, but no task is given")
    if task and given["epochs"] is None and given["max_steps"] is None:
        given["epochs"] = PUBLISHED_EPOCHS
    run_config = _config(
        config, dataset or task, {"name": model, "overrides": {"positions": positions}}, given, settings
    )
    if dataset or task:
        check_size(run_config)  # a misspelt setting is refused before data is prepared
        run_config.data.path = _data_path(dataset, task, data_path, run_config)
    if methods or seeds or time_steps:
        from oelm.cli.run import train_several

        train_several(run_config, methods, seeds, out, time_steps, as_json)
        return
    _run(run_config, out or lab.run_folder(run_config), as_json, quiet, verbose, max_restarts=max_restarts)


def _config(
    file: Path | None, data: str | None, model: dict[str, Any], given: dict[str, Any], settings: list[str] | None
) -> RunConfig:
    """The config of a file, if there is one, with these data and every option that was given."""
    from oelm.lab import with_positions

    if given["trackers"] == ["none"]:
        given["trackers"] = None
    require_installed(given["trackers"] or [])
    path = {"data": {"path": data}} if data else {}
    values = RunConfig.load(file, path).to_dict() if file else {}
    recorded = bool(values.get("data", {}).get("fingerprint"))
    if data:
        _forget_data(values)
    chosen: dict[str, Any] = {"model": model, **path}
    for section, name, _ in options():
        (chosen.setdefault(section, {}) if section else chosen)[name] = given[name]
    values = with_settings(_merged(values, chosen), settings or [])
    return RunConfig.parse(values if recorded else with_positions(values))


@options_of_run("nproc", "strategy")
def resume(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    max_restarts: MaxRestarts = 0,
    port: Port = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **given: Any,
) -> None:
    """Go on with an interrupted run from its newest valid checkpoint, bit for bit as if it had never stopped.

    With another number of processes than before it goes on as well; without dropout, equal but for rounding.
    """
    folder = RunFolder.open(run)
    folder.config()  # refuses one that was changed
    values = RunConfig.load(folder.config_file).to_dict()
    config = RunConfig.parse(_merged(values, {"runtime": given}))
    _run(config, run, as_json, quiet, verbose, max_restarts=max_restarts)


def check_size(config: RunConfig) -> None:
    if not config.model.name:
        GPTConfig.of_size(config.model.size, **config.model.overrides)
    from oelm.training.setup import choose_device  # with torch, so after what is refused without

    choose_device(config.runtime.device, config.training.precision)


def _run(
    config: RunConfig,
    folder: Path,
    as_json: bool,
    quiet: bool,
    verbose: bool = False,
    *,
    max_restarts: int = 0,
) -> None:
    from oelm.training.distributed import leads, started
    from oelm.training.interruption import Interrupted
    from oelm.training.trainer import finished
    from oelm.training.trainer import train as run_training

    several = config.runtime.nproc > 1 or max_restarts
    if several and not started() and finished(config, RunFolder(folder)) is None:
        from oelm.training.launch import launch

        words = ["--json"] * as_json + ["--quiet"] * quiet + ["--verbose"] * verbose
        say = partial(typer.echo, err=True)
        raise typer.Exit(launch(config, folder, options=words, max_restarts=max_restarts, say=say))
    quiet = quiet or not leads()
    try:
        with said_aloud(verbose), training_progress(f"{config.method_name} → {folder}", quiet) as progress:
            result = run_training(config, folder, progress)
    except Interrupted as interruption:
        if leads():
            typer.echo(str(interruption), err=True)
        raise typer.Exit(interruption.exit_code) from None
    if not leads():
        return
    if as_json:
        typer.echo(json.dumps({**result, "run": str(folder)}, indent=2))
        return
    final = result["final"]
    if "accuracy" in final:
        outcome = f"accuracy {100 * final['accuracy']:.2f} %, F1 {100 * final['f1']:.2f} %, loss {final['loss']:.4f}"
    else:
        of_text = (
            f", {final['bits_per_byte']:.4f} bits per byte" if "bits_per_byte" in final else " of the predicted tokens"
        )
        outcome = f"perplexity {final['perplexity']:.3f}{of_text}"
    frozen, total = result["frozen_parameters"], result["total_parameters"]
    kept = f"{frozen:,} of {total:,} parameters frozen and verified" if frozen else f"all {total:,} parameters trained"
    typer.echo(f"{folder}: {outcome}, {kept}")


def _forget_data(values: dict[str, Any]) -> None:
    """Other data than a config was made with have another identity, and an epoch other steps and what follows them."""
    values.get("data", {}).pop("fingerprint", None)
    training = values.get("training", {})
    if training.get("epochs") is None or training.get("max_steps") is None:
        return  # nothing has followed from the data yet
    from oelm.training.config import TrainingSection

    followed = TrainingSection(max_steps=training["max_steps"]).model_dump()
    followed["checkpoint_every"] = training.get("eval_every")
    for name in STEPS_OF_DATA:
        if training.get(name) == followed[name]:
            training.pop(name, None)


def _data_path(dataset: str | None, task: str | None, files: Path | None, config: RunConfig) -> str:
    """The prepared folder; a task is tokenised for its model when it is first asked for."""
    from oelm import lab

    if task:
        lab.require_alone(f"oelm data task {task}", "its folder as --dataset")
        from oelm.data.labelled import prepare_task
        from oelm.data.tasks import TaskSource, find_task
        from oelm.training.setup import model_folder

        start = model_folder(config.model.name, config.method_name, config.seed) if config.model.name else "bpe:4096"
        named = Path(start)  # a config.json has its tokenizer, if any, beside it; a fresh model's type has none
        spec = str(named.parent if named.name == "config.json" else named)
        spec = "bpe:4096+special" if config.model.fresh and not named.exists() else spec
        return str(prepare_task(TaskSource(find_task(task), files), spec).path)
    assert dataset is not None
    return str(lab.data_folder(dataset, note=partial(typer.echo, err=True)))


def _merged(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`base` with every value of `given` that is not None; empty sections vanish."""
    result = dict(base)
    for key, value in given.items():
        if isinstance(value, dict):
            section = _merged(result.get(key, {}), value)
            if section:
                result[key] = section
        elif value is not None:
            result[key] = value
    return result
