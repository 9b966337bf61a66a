"""`oelm train` and `oelm resume`. Options for settings, their help and their defaults are those of `RunConfig`."""

import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from oelm.training.config import RunConfig, options, with_settings
from oelm.validation import plain_number

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PUBLISHED_EPOCHS = 3.0
PANELS = {"": "What is trained", "model": "What is trained", "training": "Training", "runtime": "Where and how"}


Nproc = Annotated[
    int | None, typer.Option(min=1, help="Processes (GPUs) on this machine; they share each batch. (default: 1)")
]
Strategy = Annotated[
    str | None, typer.Option(help="Of several processes: ddp (a copy each) or fsdp (a shard each). (default: ddp)")
]
MaxRestarts = Annotated[
    int, typer.Option(min=0, help="How often to go on from the last checkpoint when a process is lost.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Not used any more: no port is opened.", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON; nothing else goes to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; the run folder has it all.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what goes to training.log.")]


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
    Example: oelm train --method oelm_freeze --dataset fables --nproc 2
    Example: oelm train --method oelm_freeze --task sst2 --encoder google-bert/bert-base-uncased --max-lr 1e-4
    """
    from oelm import lab
    from oelm.errors import OelmError
    from oelm.freezing.methods import method as find_method
    from oelm.training.tracking import require_installed

    if task and dataset:
        raise OelmError(f"--task {task} and --dataset {dataset} exclude each other; a prepared task is a --dataset")
    if given["trackers"] == ["none"]:
        given["trackers"] = None
    require_installed(given["trackers"] or [])
    data = {"data": {"path": dataset or task}} if dataset or task else {}
    values = RunConfig.load(config, data).to_dict() if config else {}
    recorded = bool(values.get("data", {}).get("fingerprint"))
    if dataset or task:
        _forget_data(values)
    if given["method"]:
        find_method(given["method"])  # a misspelt name is refused before data is looked for
    if not (dataset or task or config):
        raise OelmError(
            "no data given; add --dataset NAME ('oelm data list' shows what is prepared; 'fables' is built in)"
        )
    if data_path and not task:
        raise OelmError(f"--data-path {data_path} says where the files of a --task are, but no task is given")
    if task and given["epochs"] is None and given["max_steps"] is None:
        given["epochs"] = PUBLISHED_EPOCHS
    chosen: dict[str, Any] = {"model": {"overrides": {"positions": positions}}, **data}
    for section, name, _ in options():
        (chosen.setdefault(section, {}) if section else chosen)[name] = given[name]
    values = with_settings(_merged(values, chosen), settings or [])
    run_config = RunConfig.parse(values if recorded else lab.with_positions(values))
    if dataset or task:
        check_size(run_config)  # a misspelt setting is refused before data is prepared
        run_config.data.path = _data_path(dataset, task, data_path, run_config.model.encoder)
    _run(run_config, out or lab.run_folder(run_config), as_json, quiet, verbose, max_restarts=max_restarts)


def _option(section: str, name: str, field: "FieldInfo") -> inspect.Parameter:
    """The option of a setting, with the names of the study (--max_lr) and of others beside its own (--max-lr)."""
    kind, extra = _kind(field.annotation), field.json_schema_extra
    assert isinstance(extra, dict)
    dashed = name.replace("_", "-")
    flags = dict.fromkeys([f"--{dashed}", f"--{name}", *map(str, extra["flags"])])  # type: ignore[arg-type]
    if kind is bool:
        flags = {f"--{dashed}/--no-{dashed}": None}
    said, _, default = (field.description or "").partition("; default")
    if not default and field.default is not None:
        default = f": {field.default:g}" if kind is float else f": {field.default}"
    help_text = f"{said[0].upper()}{said[1:]}." + (f" (default{default})" if default and kind is not bool else "")
    number: dict[str, Any] = {"parser": _parser(kind), "metavar": f"<{kind.__name__}>"} if kind in (int, float) else {}
    option = typer.Option(*flags, help=help_text, rich_help_panel=PANELS[section], **number)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _kind(annotation: Any) -> Any:
    """The type of an option for a field of this type: a choice is text, and what may be text as well is text."""
    if get_origin(annotation) is list:
        return list[str]
    kinds = [k for k in get_args(annotation) if k is not type(None)] if get_args(annotation) else [annotation]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, bool) else str


def _parser(kind: Any) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        number = plain_number(text)
        if number is None or (kind is int and not isinstance(number, int)):
            raise typer.BadParameter(f"{text!r} is not a {'whole ' * (kind is int)}number")
        return kind(number)

    return parse


def _signature() -> Iterator[inspect.Parameter]:
    own = inspect.signature(train, eval_str=True).parameters.values()
    yield from (parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD)
    yield from (_option(*option) for option in options())


train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in _signature()]
)


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    nproc: Nproc = None,
    strategy: Strategy = None,
    max_restarts: MaxRestarts = 0,
    port: Port = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with an interrupted run from its newest valid checkpoint, bit for bit as if it had never stopped.

    With another number of processes than before it goes on as well; without dropout, equal but for rounding.
    """
    from oelm.runs import RunFolder

    values = RunConfig.load(RunFolder.open(run).config_file).to_dict()
    config = RunConfig.parse(_merged(values, {"runtime": {"nproc": nproc, "strategy": strategy}}))
    _run(config, run, as_json, quiet, verbose, max_restarts=max_restarts)


def check_size(config: RunConfig) -> None:
    from oelm.models.shape import GPTConfig

    if not config.model.encoder:
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
    from oelm.cli.progress import said_aloud, training_progress
    from oelm.runs import RunFolder
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
        outcome = f"perplexity {final['perplexity']:.3f}, {final['bits_per_byte']:.4f} bits per byte"
    frozen, total = result["frozen_parameters"], result["total_parameters"]
    kept = f"{frozen:,} of {total:,} parameters frozen and verified" if frozen else f"all {total:,} parameters trained"
    typer.echo(f"{folder}: {outcome}, {kept}")


def _forget_data(values: dict[str, Any]) -> None:
    """Other data than a config was made with have another identity, and an epoch other steps and what follows them."""
    values.get("data", {}).pop("fingerprint", None)
    training = values.get("training", {})
    if training.get("epochs") is None or training.get("max_steps") is None:
        return  # nothing has followed from the data yet
    from oelm.runs import STEPS_OF_DATA
    from oelm.training.config import TrainingSection

    followed = TrainingSection(max_steps=training["max_steps"]).model_dump()
    followed["checkpoint_every"] = training.get("eval_every")
    for name in STEPS_OF_DATA:
        if training.get(name) == followed[name]:
            training.pop(name, None)


def _data_path(dataset: str | None, task: str | None, files: Path | None, encoder: str | None) -> str:
    """The prepared folder; a task is tokenised for its model when it is first asked for."""
    from oelm import lab

    if task:
        lab.require_alone(f"oelm data task {task}", "its folder as --dataset")
        from oelm.data.labelled import prepare_task
        from oelm.data.tasks import TaskSource, find_task

        return str(prepare_task(TaskSource(find_task(task), files), encoder or "bpe:4096").path)
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
