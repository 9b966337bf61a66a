"""`oelm train` and `oelm resume`. The help and the defaults of their options are those of `RunConfig`."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
import typer.core
from pydantic.fields import FieldInfo
from typer import Argument, Option

from oelm import lab
from oelm.cli.console import PlainHelp, echo_json
from oelm.cli.progress import said_aloud, training_progress
from oelm.errors import OelmError
from oelm.freezing.methods import method as find_method
from oelm.models.shape import GPTConfig
from oelm.records import STEPS_OF_DATA
from oelm.runs import RunFolder
from oelm.training.config import RunConfig, TrainingSection, options, with_settings
from oelm.training.tracking import require_installed
from oelm.validation import plain_number

PUBLISHED_EPOCHS = 3.0
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_say = partial(typer.echo, err=True)

MaxRestarts = Annotated[int, Option(min=0, help="How often to go on from the last checkpoint when a process is lost.")]
Port = Annotated[int, Option(min=0, max=65535, help="Not used any more: no port is opened.", hidden=True)]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON; nothing else goes to stdout.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress; the run folder has it all.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Say on stderr what goes to training.log.")]
Command = TypeVar("Command", bound=Callable[..., None])
SET = "Any setting, e.g. training.max_steps=500. Repeatable."
Settings = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=SET)]
PANELS = {"": "What is trained", "model": "What is trained", "training": "Training", "runtime": "Where and how"}


class ShortHelp(PlainHelp):
    """A command whose help has one long name per option: 80 columns do not hold all of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            long = [name for name in option.opts if name.startswith("--")]
            option.opts = [*long[:1], *(name for name in option.opts if name not in long)]
            option.secondary_opts = []
        super().format_help(ctx, formatter)


def options_of_run(*names: str) -> Callable[[Command], Command]:
    """Give a command options for these settings, or for all; it gets what was given, or None, by their names."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        listed = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        listed += [_option(*option) for option in options() if not names or option[1] in names]
        every = [parameter.replace(kind=KEYWORD_ONLY) for parameter in listed]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return command

    return decorate


def _option(section: str, name: str, field: FieldInfo) -> inspect.Parameter:
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
    also = f" Also {', '.join(map(str, extra['flags']))}." if extra["flags"] else ""  # type: ignore[arg-type]
    if kind is bool and field.default:
        also = f" Switched off by --no-{dashed}."
    help_text = f"{said[0].upper()}{said[1:]}.{also}" + (f" (default{default})" if default and kind is not bool else "")
    number: dict[str, Any] = {"parser": _parser(kind), "metavar": f"<{kind.__name__}>"} if kind in (int, float) else {}
    option = Option(*flags, help=help_text, rich_help_panel=PANELS[section], **number)
    return inspect.Parameter(name, KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


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


@options_of_run()
def train(
    dataset: Annotated[str | None, Option("--dataset", "--data", help="Prepared data, a folder, or 'fables'.")] = None,
    task: Annotated[str | None, Option(help="Train a classifier on sst2, mnli or xnli, instead of --dataset.")] = None,
    data_path: Annotated[Path | None, Option(help="The task's own files. (default: from the hub)")] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "--encoder",
            rich_help_panel=PANELS["model"],
            help="Instead of our GPT: any language model of transformers, as a hub name, a folder or a config.json; or "
            "a run of ours: its own --method keeps what it froze frozen, baseline trains everything.",
        ),
    ] = None,
    positions: Annotated[str | None, Option(help="learned or rotary. (default: rotary)")] = None,
    out: Annotated[
        Path | None, Option("--out", "--out_dir", help="Run folder. (default: runs/DATASET-SIZE-METHOD-SEED)")
    ] = None,
    config: Annotated[Path | None, Option(help="A config.yaml to start from; options override it.")] = None,
    settings: Settings = None,
    methods: Annotated[str | None, Option(help="Several: baseline,oelm_freeze; a run of each for every seed.")] = None,
    seeds: Annotated[str | None, Option(help="Several seeds, e.g. 0,1,2: a run of each.")] = None,
    time_steps: Annotated[bool, Option("--time", help="Of several: afterwards time their steps side by side.")] = False,
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
    if task and dataset:
        raise OelmError(f"--task {task} and --dataset {dataset} exclude each other; a prepared task is a --dataset")
    if methods and given["method"]:
        raise OelmError(f"--method {given['method']} and --methods {methods} exclude each other; put it into the list")
    for name in (methods or given["method"] or "baseline").split(","):
        find_method(name.strip())  # a misspelt name is refused before data is looked for
    if not (dataset or task or config):
        raise OelmError("no data given; add --dataset NAME ('oelm data list' shows some; 'fables' is built in)")
    if data_path and not task:
        raise OelmError(f"--data-path {data_path} says where the files of a --task are, but no task is given")
    if task and given["epochs"] is None and given["max_steps"] is None:
        given["epochs"] = PUBLISHED_EPOCHS
    run_config = _config(config, dataset or task, model, positions, given, settings or [])
    from oelm.cli.run import numbers, train_several

    numbers("--seeds", seeds)  # what is no number is refused before torch is loaded
    if not run_config.model.name:  # a misspelt setting is refused before data is prepared
        GPTConfig.of_size(run_config.model.size, **run_config.model.overrides)
    if dataset or task:
        there = lab.data_folder(str(dataset)) if dataset and dataset != "fables" else None
        from oelm.training.setup import choose_device  # with torch, so after what is refused without

        choose_device(run_config.runtime.device, run_config.training.precision)
        folder = there or (_task_folder(task, data_path, run_config) if task else lab.data_folder("fables", note=_say))
        run_config.data.path = str(folder)
    if methods or seeds or time_steps:
        return train_several(run_config, methods, seeds, out, time_steps, as_json)
    _run(run_config, out or lab.run_folder(run_config), max_restarts, as_json, quiet, verbose)


def _config(
    file: Path | None, data: str | None, model: str | None, positions: str | None, given: dict, settings: list[str]
) -> RunConfig:
    """The config of a file, if there is one, with these data and every option that was given."""
    if given["trackers"] == ["none"]:
        given["trackers"] = None
    require_installed(given["trackers"] or [])
    path = {"data": {"path": data}} if data else {}
    values = RunConfig.load(file, path).to_dict() if file else {}
    recorded = bool(values.get("data", {}).get("fingerprint"))
    if data:
        _forget_data(values)
    own = [(section, name, given[name]) for section, name, _ in options()]
    for section, name, value in [("data", "path", data), ("model", "name", model), *own]:
        if value is not None:
            (values.setdefault(section, {}) if section else values)[name] = value
    if positions is not None:
        values.setdefault("model", {}).setdefault("overrides", {})["positions"] = positions
    values = with_settings(values, settings)
    return RunConfig.parse(values if recorded else lab.with_positions(values))


@options_of_run("nproc", "strategy")
def resume(
    run: Annotated[Path, Argument(help="A run folder.")],
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
    values["runtime"] |= {name: value for name, value in given.items() if value is not None}
    _run(RunConfig.parse(values), run, max_restarts, as_json, quiet, verbose)


def _run(config: RunConfig, folder: Path, max_restarts: int, as_json: bool, quiet: bool, verbose: bool) -> None:
    from oelm.training.distributed import leads, started
    from oelm.training.interruption import Interrupted
    from oelm.training.trainer import finished
    from oelm.training.trainer import train as run_training

    several = config.runtime.nproc > 1 or max_restarts
    if several and not started() and finished(config, RunFolder(folder)) is None:
        from oelm.training.launch import launch

        words = ["--json"] * as_json + ["--quiet"] * quiet + ["--verbose"] * verbose
        raise typer.Exit(launch(config, folder, options=words, max_restarts=max_restarts, say=_say))
    quiet = quiet or not leads()
    try:
        with said_aloud(verbose), training_progress(f"{config.method_name} → {folder}", quiet) as progress:
            result = run_training(config, folder, progress)
    except Interrupted as interruption:
        if leads():
            _say(str(interruption).replace("resume RUN", f"resume {folder}"))
        raise typer.Exit(interruption.exit_code) from None
    if not leads():
        return
    if as_json:
        return echo_json({**result, "run": str(folder)})
    final = result["final"]
    if "accuracy" in final:
        outcome = f"accuracy {100 * final['accuracy']:.2f} %, F1 {100 * final['f1']:.2f} %, loss {final['loss']:.4f}"
    else:
        bits = f", {final['bits_per_byte']:.4f} bits per byte" if "bits_per_byte" in final else ""
        outcome = f"perplexity {final['perplexity']:.3f}{bits or ' of the predicted tokens'}"
    frozen, total = result["frozen_parameters"], result["total_parameters"]
    kept = f"{frozen:,} of {total:,} parameters frozen and verified" if frozen else f"all {total:,} parameters trained"
    typer.echo(f"{folder}: {outcome}, {kept}")


def _forget_data(values: dict[str, Any]) -> None:
    """Other data than a config was made with have another identity, and an epoch other steps and what follows them."""
    values.get("data", {}).pop("fingerprint", None)
    training = values.get("training", {})
    if training.get("epochs") is None or training.get("max_steps") is None:
        return  # nothing has followed from the data yet
    followed = TrainingSection(max_steps=training["max_steps"]).model_dump()
    followed["checkpoint_every"] = training.get("eval_every")
    for name in STEPS_OF_DATA:
        if training.get(name) == followed[name]:
            training.pop(name, None)


def _task_folder(task: str, files: Path | None, config: RunConfig) -> Path:
    """A task is tokenised for its model when it is first asked for."""
    lab.require_alone(f"oelm data task {task}", "its folder as --dataset")
    from oelm.data.labelled import prepare_task
    from oelm.data.tasks import TaskSource, find_task
    from oelm.training.setup import model_folder

    start = model_folder(config.model.name, config.method_name, config.seed) if config.model.name else "bpe:4096"
    named = Path(start)  # a config.json has its tokenizer, if any, beside it; a fresh model's type has none
    spec = str(named.parent if named.name == "config.json" else named)
    spec = "bpe:4096+special" if config.model.fresh and not named.exists() else spec
    return prepare_task(TaskSource(find_task(task), files), spec).path
