"""`oelm train` and `oelm resume`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from oelm.training.config import RunConfig

PUBLISHED_EPOCHS = 3.0
Nproc = Annotated[
    int | None, typer.Option(min=1, help="Processes (GPUs) on this machine; they share each batch. (default: 1)")
]
Strategy = Annotated[
    str | None, typer.Option(help="Of several processes: ddp (a copy each) or fsdp (a shard each). (default: ddp)")
]
MaxRestarts = Annotated[
    int, typer.Option(min=0, help="How often to go on from the last checkpoint when a process is lost.")
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Where the processes meet. (default: a free port)", show_default=False)
]


def train(
    method: Annotated[
        str | None, typer.Option("--method", "--model_type", help="A name from 'oelm methods'. (default: baseline)")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", "--data", help="A prepared corpus (see 'oelm data list'), its folder, or 'fables'."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Fine-tune this model (folder or hub name) as a classifier; needs --task.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Train a classifier on sst2, mnli or xnli, instead of --dataset.")
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option("--data-path", help="The task's own files. (default: from the hub)")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over a task's rows, instead of --max-steps. (default with --task: 3)")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="demo, tiny, small, medium-512, medium or large. (default: demo)"),
    ] = None,
    positions: Annotated[str | None, typer.Option(help="learned or rotary. (default: learned)")] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", "--max_steps", help="Optimizer steps. (default: 100000)")
    ] = None,
    max_lr: Annotated[
        float | None, typer.Option("--max-lr", "--max_lr", help="Learning rate after warm-up. (default: 3e-4)")
    ] = None,
    warmup_steps: Annotated[int | None, typer.Option("--warmup-steps", "--warmup_steps", help="Warm-up steps.")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--batch_size", help="Sequences per micro-batch. (default: 8)")
    ] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches per step. (default: 1)")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16 (CUDA). (default: fp32)")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, frozen projections and data order.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "--out_dir", help="Run folder. (default: runs/DATASET-SIZE-METHOD-SEED)")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A config.yaml to start from; options override it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.weight_decay=0.05. Repeatable."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. (default: auto)")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    compile_model: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    nproc: Nproc = None,
    strategy: Strategy = None,
    max_restarts: MaxRestarts = 0,
    port: Port = 0,
    checkpointing: Annotated[
        bool,
        typer.Option("--gradient-checkpointing", help="Less memory, a third more computation, the same result."),
    ] = False,
    track: Annotated[list[str] | None, typer.Option(help="tensorboard or wandb. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; the run folder has it all.")] = False,
) -> None:
    """Train one model with one method, or go on with the run that OUT already holds.

    Stop it with Ctrl-C or SIGTERM whenever you like: it writes a checkpoint first, and the same command goes on.
    The study's flag names (--model_type, --max_lr, --max_steps, --out_dir) work too.

    Example: oelm train --method oelm_freeze --dataset fables --max-steps 300
    Example: oelm train --method oelm_freeze --dataset fables --nproc 2
    Example: oelm train --method oelm_freeze --task sst2 --encoder google-bert/bert-base-uncased --max-lr 1e-4
    """
    from oelm.errors import OelmError
    from oelm.freezing.methods import method as find_method
    from oelm.runs import folder_name
    from oelm.training.config import RunConfig, with_settings
    from oelm.training.tracking import require_installed

    if task and dataset:
        raise OelmError(f"--task {task} and --dataset {dataset} exclude each other; a prepared task is a --dataset")
    require_installed(track or [])
    data = {"data": {"path": dataset or task}} if dataset or task else {}
    values = RunConfig.load(config, data).to_dict() if config else {}
    if dataset or task:
        _forget_data(values)
    if method:
        find_method(method)  # a misspelt name is refused before data is looked for
    if not (dataset or task or config):
        raise OelmError(
            "no data given; add --dataset NAME ('oelm data list' shows what is prepared; 'fables' is built in)"
        )
    if data_path and not task:
        raise OelmError(f"--data-path {data_path} says where the files of a --task are, but no task is given")
    overrides = model_overrides(positions=positions)
    given = {
        "method": method,
        "seed": seed,
        "model": {
            "size": size,
            "overrides": {**values.get("model", {}).get("overrides", {}), **overrides},
            "encoder": encoder,
        },
        "data": {"path": dataset or task},
        "training": {
            "max_steps": max_steps,
            "epochs": PUBLISHED_EPOCHS if task and epochs is None and max_steps is None else epochs,
            "max_lr": max_lr,
            "warmup_steps": warmup_steps,
            "batch_size": batch_size,
            "accumulation": accumulation,
            "precision": precision,
        },
        "runtime": {
            "device": device,
            "threads": threads,
            "compile": compile_model or None,
            "trackers": track,
            "nproc": nproc,
            "strategy": strategy,
            "gradient_checkpointing": checkpointing or None,
        },
    }
    values = with_settings(_merged(values, given), settings or [])
    run_config = RunConfig.parse(values)
    if dataset or task:
        check_size(run_config)  # a misspelt setting is refused before data is prepared
        run_config.data.path = _data_path(dataset, task, data_path, run_config.model.encoder)
    names = [Path(run_config.data.path).name, _model_name(run_config), run_config.method_name, str(run_config.seed)]
    folder = out or Path("runs") / folder_name("-".join(names))
    _run(run_config, folder, as_json, quiet, max_restarts=max_restarts, port=port)


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    nproc: Nproc = None,
    strategy: Strategy = None,
    max_restarts: MaxRestarts = 0,
    port: Port = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; the run folder has it all.")] = False,
) -> None:
    """Go on with an interrupted run from its newest valid checkpoint, bit for bit as if it had never stopped.

    With another number of processes than before it goes on as well; without dropout, equal but for rounding.
    """
    from oelm.runs import RunFolder
    from oelm.training.config import RunConfig

    values = RunConfig.load(RunFolder.open(run).config_file).to_dict()
    config = RunConfig.parse(_merged(values, {"runtime": {"nproc": nproc, "strategy": strategy}}))
    _run(config, run, as_json, quiet, max_restarts=max_restarts, port=port)


def check_size(config: "RunConfig") -> None:
    from oelm.models.shape import GPTConfig
    from oelm.training.setup import choose_device

    if not config.model.encoder:
        GPTConfig.of_size(config.model.size, **config.model.overrides)
    choose_device(config.runtime.device, config.training.precision)


def model_overrides(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _run(
    config: "RunConfig", folder: Path, as_json: bool, quiet: bool, *, max_restarts: int = 0, port: int = 0
) -> None:
    from oelm.cli.progress import training_progress
    from oelm.runs import RunFolder
    from oelm.training.distributed import leads, started
    from oelm.training.interruption import Interrupted
    from oelm.training.trainer import finished
    from oelm.training.trainer import train as run_training

    several = config.runtime.nproc > 1 or max_restarts
    if several and not started() and finished(config, RunFolder(folder)) is None:
        from oelm.training.launch import launch

        options = ["--json"] * as_json + ["--quiet"] * quiet
        say = partial(typer.echo, err=True)
        raise typer.Exit(launch(config, folder, options=options, max_restarts=max_restarts, port=port, say=say))
    quiet = quiet or not leads()
    try:
        with training_progress(f"{config.method_name} → {folder}", quiet or as_json) as progress:
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


def _model_name(config: "RunConfig") -> str:
    return Path(config.model.encoder).name if config.model.encoder else config.model.size


def _data_path(dataset: str | None, task: str | None, files: Path | None, encoder: str | None) -> str:
    """The prepared folder; a task is tokenised for its model when it is first asked for."""
    if task:
        _require_alone(f"oelm data task {task}", "its folder as --dataset")
        from oelm.cli.tasks import prepared_task

        return str(prepared_task(task, files, tokenizer=encoder or "bpe:4096").path)
    from oelm.data.labelled import MANIFEST

    assert dataset is not None
    return dataset if (Path(dataset) / MANIFEST).is_file() else str(_data_folder(dataset))


def _data_folder(dataset: str) -> Path:
    """The prepared folder of a corpus; the embedded one is prepared when it is first asked for."""
    from oelm.data import tokens

    if dataset == "fables" and not any(path.name.startswith("fables") for path in tokens.prepared()):
        from oelm.data.prepare import prepare

        _require_alone("oelm data prepare fables", "the same command as now")
        typer.echo("preparing the embedded corpus 'fables' (once)", err=True)
        return prepare("fables", tokenizer_spec="bpe:1024").path
    return tokens.find(dataset)


def _require_alone(command: str, then: str) -> None:
    """Data is prepared by one process; those that torchrun starts would get into each other's way."""
    from oelm.errors import OelmError
    from oelm.training.distributed import started

    if started():
        raise OelmError(f"prepare the data before torchrun starts processes: run '{command}', then {then}")


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
