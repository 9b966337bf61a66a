"""Real processes that talk through gloo, on a CPU. What one process computes is the measure of what several compute."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import stock
from oelm.errors import OelmError
from oelm.freezing.apply import verify_frozen
from oelm.freezing.methods import METHODS
from oelm.runs import RunFolder
from oelm.training import launch as launching
from oelm.training import setup
from oelm.training.checkpoints import newest_valid
from oelm.training.classification import Classification
from oelm.training.config import RunConfig
from oelm.training.distributed import ALONE, PeerLost, Processes, find_world, planned_world
from oelm.training.interruption import Interrupted
from oelm.training.launch import Failure, launch
from oelm.training.objectives import LanguageModelling
from oelm.training.trainer import Trainer, train
from processes import children_of, reachable_from_outside

SAME = ("model.safetensors", "optimizer.safetensors", "freeze.json", "tokenizer.json")
SHAPE = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_seq_len": 32}
SMALL = {**SHAPE, "dropout": 0.1, "positions": "learned"}  # said, so that the command takes them, too
TRAINING = {"max_steps": 12, "batch_size": 4, "accumulation": 2, "max_lr": 3e-3, "eval_every": 4, "log_every": 1}
TWENTY = {"max_steps": 20, "eval_every": 20, "eval_tokens": 288, "accumulation": 1, "model": {"dropout": 0.0}}
MOVING = {**TWENTY, "accumulation": 2}
LOOKING = {**TWENTY, "eval_every": 10, "checkpoint_every": 20}
"""A validation at the step before a flip, and no checkpoint between them."""
LONG = {"max_steps": 200, "eval_every": 200, "checkpoint_every": 20, "accumulation": 1}
THAWED_IN_A_PAUSE = "baseline+every=4+ffn+thaw=bottom-up:3+warmup=2"
SCHEDULED = (
    "oelm_freeze+thaw=top-down:0.25:0.75+warmup=3+refreeze=0.9",
    "baseline+every=3",
    THAWED_IN_A_PAUSE,
    "permutation_qk+rank=2",
)
SHAPED = (
    "baseline+thin=2+kv=1+qknorm+offset",
    "baseline+window=8",
    "baseline+linear",
    "baseline+synthesizer",
    "baseline+mixing",
    "baseline+tied_kv",
    "baseline+share=2",
)
STOCK = {"causal": "gpt2", "masked": "bert", "denoising": "t5", "pairs": "bart"}
COPIED = (*METHODS, *SCHEDULED, *SHAPED)
SHARDED = ("baseline", "oelm_freeze", "k_only", *SCHEDULED)


def within(config: RunConfig, strategy: str, nproc: int = 1) -> RunConfig:
    runtime = {**config.runtime.model_dump(), "strategy": strategy, "nproc": nproc}
    return RunConfig.parse({**config.to_dict(), "runtime": runtime})


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in RunFolder(run).metrics()]


def contents(run: Path) -> tuple[bytes, dict[str, str]]:
    """What must be the same to the bit after a resume."""
    folder = RunFolder(run)
    hashes = json.loads((newest_valid(folder.checkpoints).path / "manifest.json").read_text())["sha256"]
    return folder.metrics_file.read_bytes(), {name: hashes[name] for name in SAME}


def shapes(run: Path) -> dict[str, dict[str, tuple]]:
    checkpoint = newest_valid(RunFolder(run).checkpoints)
    files = {name: checkpoint.tensors(name) for name in ("model", "optimizer", "random")}
    return {name: {k: (t.shape, t.dtype) for k, t in tensors.items()} for name, tensors in files.items()}


@contextlib.contextmanager
def signal_at(micro_step: int | None):
    """A real SIGTERM to this process when it asks for this micro-batch."""
    original = LanguageModelling.batch

    def batch(objective, number):
        if number == micro_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(objective, number)

    LanguageModelling.batch = batch
    try:
        yield
    finally:
        LanguageModelling.batch = original


# What happens in the processes


def make_trainer(config: RunConfig, out: Path) -> Trainer:
    world = find_world(config)
    folder = world.folder(out)
    parts = setup.prepare(config, folder, world)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.create(parts.config.to_dict())
    return Trainer(parts, folder)


def one_run(config: RunConfig, out: Path, stop_at: int | None = None) -> tuple[int, int] | None:
    """Train; process 1 alone is asked to stop at a micro-batch. The exit code and the step of an interruption."""
    trainer = make_trainer(config, out)
    with signal_at(stop_at if trainer.world.rank == 1 else None):
        try:
            trainer.run()
        except Interrupted as interruption:
            return interruption.exit_code, trainer.step
        finally:
            torch.distributed.barrier()  # as `connected` does it: the first process may still be writing
    return None


@contextlib.contextmanager
def counted_bytes():
    """Bytes of gradients that are handed to all-reduce (DDP) or reduce-scatter (FSDP)."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    count = SimpleNamespace(bytes=0)
    name = "reduce_scatter_single" if hasattr(torch.distributed, "reduce_scatter_single") else "reduce_scatter_tensor"
    wrap, scatter = Processes.wrap, getattr(torch.distributed, name)

    def hook(group, bucket):
        count.bytes += bucket.buffer().nbytes
        return allreduce_hook(group, bucket)

    def counting_wrap(world, model, **kwargs):
        wrapped = wrap(world, model, **kwargs)
        if isinstance(wrapped, nn.parallel.DistributedDataParallel):
            wrapped.register_comm_hook(None, hook)
        return wrapped

    def counting_scatter(*args, **kwargs):
        count.bytes += (kwargs["input"] if "input" in kwargs else args[1]).nbytes
        return scatter(*args, **kwargs)

    Processes.wrap = counting_wrap
    setattr(torch.distributed, name, counting_scatter)
    try:
        yield count
    finally:
        Processes.wrap = wrap
        setattr(torch.distributed, name, scatter)


def run_without_improving(config: RunConfig, out: Path) -> None:
    """Train, with validations that make no checkpoint: the best was before."""
    trainer = make_trainer(config, out)
    trainer.best = {"loss": 0.0, "step": 0}
    trainer.run()
    torch.distributed.barrier()


def flipped(config: RunConfig, out: Path) -> dict[str, bool]:
    """Thaw the queries and keys, then freeze them again, wrapping the model anew each time."""
    trainer = make_trainer(config, out)
    queries = [p for n, p in trainer.model.named_parameters() if n in trainer.freeze_report.frozen_names]

    def has_gradients(trains: bool) -> bool:
        for parameter in queries:
            parameter.requires_grad_(trains)
        wrapped = trainer.world.wrap(trainer.model)
        trainer.model.zero_grad(set_to_none=True)
        trainer.objective.loss(wrapped, trainer.objective.batch(0)).backward()
        return all(p.grad is not None for p in queries)

    return {"thawed": has_gradients(True), "frozen": has_gradients(False)}


def refused(world, facts) -> str:
    try:
        world.require_same(facts)
    except OelmError as error:
        return str(error)
    return ""


def body(root: Path, configs: dict[str, RunConfig]) -> dict:
    """Everything in one start of two processes: starting them takes longer than what they do."""
    world = find_world(configs["baseline"])
    found: dict = {"bytes": {}, "exit": {}, "flipped": {}, "validation": {}}
    with world.connected(configs["baseline"], RunFolder(root / "nowhere")):
        for strategy, names in (("ddp", COPIED), ("fsdp", SHARDED)):
            for name in names:
                with counted_bytes() as count:
                    one_run(within(configs[name], strategy), root / strategy / name)
                found["bytes"][strategy, name] = count.bytes
            moving = within(configs["moving"], strategy)
            stop = {"ddp": 16, "fsdp": 24}[strategy]  # the ninth and the thirteenth step
            found["exit"][strategy] = one_run(moving, root / "moving", stop_at=stop)
            dropout = within(configs["dropout"], strategy)
            one_run(dropout, root / f"{strategy}-whole")
            one_run(dropout, root / f"{strategy}-parts", stop_at=9)
            one_run(dropout, root / f"{strategy}-parts")
            run_without_improving(within(configs["looking"], strategy), root / f"looking-{strategy}")
            found["flipped"][strategy] = flipped(within(configs["oelm_freeze"], strategy), root / f"flip-{strategy}")
            trainer = make_trainer(within(configs["moving"], strategy), root / f"validated-{strategy}")
            found["validation"][strategy] = [trainer._validate(whole=whole) for whole in (True, False)]
            verify_frozen(trainer.model, trainer.freeze_report)
        one_run(within(configs["long"], "ddp"), root / "long")
        for name in STOCK:
            for strategy in ("ddp", "fsdp"):
                one_run(within(configs[name], strategy), root / strategy / name)
        found["version"] = refused(world, {"oelm version": "0.1.0" if world.leads else "0.2.0"})
        found["config"] = refused(world, {"training": {"max_lr": 0.1 if world.leads else 0.2}})
    return found


@pytest.fixture(scope="module")
def processes(tmp_path_factory, fables_folder):
    """What two processes found, by rank, and the folder they worked in, beside the same runs by one process."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    root = tmp_path_factory.mktemp("processes")
    configs = {name: tiny(fables_folder, name, **TWENTY) for name in COPIED}
    configs |= {
        "moving": tiny(fables_folder, "oelm_freeze", **MOVING),
        "dropout": tiny(fables_folder, "oelm_freeze"),
        "looking": tiny(fables_folder, "oelm_freeze+thaw=top-down:0.5", **LOOKING),
        "long": tiny(fables_folder, "oelm_freeze", **LONG),
    }
    corpus, pairs = stock.prepared_corpus(root / "corpus"), stock.prepared_pairs(root / "rows")
    for name, model in STOCK.items():
        length = {} if name == "pairs" else {"sequence_length": stock.LENGTH}
        without = {"model": {"overrides": stock.SHAPES[model] | stock.NO_DROPOUT[model]}}
        configs[name] = stock.config(model, pairs if name == "pairs" else corpus, **without, **length)
        train(configs[name], root / "one" / name)
    for name in COPIED:
        train(configs[name], root / "one" / name)
    train(configs["moving"], root / "moved-by-nobody")
    for strategy in ("ddp", "fsdp"):
        shutil.copytree(root / "moved-by-nobody", root / f"validated-{strategy}", symlinks=True)
    with signal_at(8), pytest.raises(Interrupted):  # the fifth step of two micro-batches
        train(configs["moving"], root / "moving")
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        start_method="fork",  # of this process, which has loaded everything
        logs_specs=DefaultLogsSpecs(log_dir=str(root / "logs")),
    )
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = [signal.getsignal(number) for number in numbers]
    found = elastic_launch(agent, body)(root, configs)
    for number, handler in zip(numbers, handlers, strict=True):  # the agent installs its own and leaves them
        signal.signal(number, handler)
    return SimpleNamespace(root=root, configs=configs, found=found)


def tiny(data: Path, method: str, model: dict | None = None, **training) -> RunConfig:
    return RunConfig.parse(
        {
            "method": method,
            "model": {"size": "demo", "overrides": {**SMALL, **(model or {})}},
            "data": {"path": str(data)},
            "training": {**TRAINING, **training},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )


pytestmark = pytest.mark.timeout(700)  # on busy cores a stuck process has its grace


# What they found


@pytest.mark.parametrize("method", COPIED)
def test_two_processes_train_as_one_does_with_the_same_batch(processes, method):
    one, two = losses(processes.root / "one" / method), losses(processes.root / "ddp" / method)
    assert len(one) == 21  # twenty steps, a validation
    assert two == pytest.approx(one, abs=1e-4)
    sites = [RunFolder(processes.root / kind / method).freeze_report()["sites"] for kind in ("one", "ddp")]
    if "refreeze" not in method:  # what has trained before it froze again may differ in the last bit
        assert sites[0] == sites[1]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("objective", STOCK)
def test_two_processes_train_models_of_transformers_as_one_does(processes, objective, strategy):
    one, two = losses(processes.root / "one" / objective), losses(processes.root / strategy / objective)
    assert len(one) == 8  # six steps, two validations
    assert two == pytest.approx(one, abs=1e-4)
    assert RunFolder(processes.root / strategy / objective).result()["frozen_verified"] is True


@pytest.mark.parametrize("method", SHARDED)
def test_shards_train_as_copies_do(processes, method):
    copies, shards = losses(processes.root / "ddp" / method), losses(processes.root / "fsdp" / method)
    assert shards == pytest.approx(copies, abs=1e-4)
    assert RunFolder(processes.root / "fsdp" / method).result()["frozen_verified"] is True


def test_what_a_validation_gathered_is_no_longer_there_when_weights_thaw(processes):
    copies, shards = (losses(processes.root / f"looking-{strategy}") for strategy in ("ddp", "fsdp"))
    assert len(copies) == 22  # twenty steps, two validations
    assert shards == pytest.approx(copies, abs=1e-4)


@pytest.mark.parametrize(("strategy", "method"), [*(("ddp", m) for m in METHODS), *(("fsdp", m) for m in SHARDED[:3])])
def test_gradients_of_frozen_weights_are_not_sent(processes, strategy, method):
    sent = processes.found[0]["bytes"]
    result = RunFolder(processes.root / "ddp" / method).result()
    assert sent[strategy, method] == 20 * 4 * result["trainable_parameters"]
    baseline = RunFolder(processes.root / "ddp" / "baseline").result()
    saved = baseline["trainable_parameters"] - result["trainable_parameters"]
    assert sent[strategy, "baseline"] - sent[strategy, method] == 20 * 4 * saved


def test_what_pauses_while_other_weights_thaw_is_still_shared(processes):
    sent, result = processes.found[0]["bytes"], RunFolder(processes.root / "ddp" / THAWED_IN_A_PAUSE).result()
    ffn = SMALL["num_layers"] * 2 * SMALL["d_model"] * SMALL["d_ff"]  # frozen for two of twenty steps
    assert sent["ddp", THAWED_IN_A_PAUSE] == 4 * (20 * result["total_parameters"] - 2 * ffn)


def test_validation_is_shared_and_exactly_that_of_one_process(processes):
    folder = RunFolder(processes.root / "moved-by-nobody")
    for found in processes.found.values():
        for whole, part in found["validation"].values():
            assert whole == folder.result()["final"]
            row = {**part, "kind": "validation", "step": 20}
            assert row == folder.metrics("validation")[-1]
    assert len(setup.prepare(processes.configs["moving"], folder).objective._validation_batches(False)) % 2  # one idles


def test_a_signal_to_one_process_stops_all_at_the_same_step(processes):
    for found in processes.found.values():
        assert found["exit"] == {"ddp": (143, 9), "fsdp": (143, 13)}


def test_a_checkpoint_goes_from_one_process_to_copies_to_shards_and_back(processes):
    train(processes.configs["moving"], processes.root / "moving")  # from where the shards were interrupted
    assert losses(processes.root / "moving") == pytest.approx(losses(processes.root / "moved-by-nobody"), abs=1e-4)
    assert shapes(processes.root / "moving") == shapes(processes.root / "moved-by-nobody")


@pytest.mark.parametrize("method", SHARDED)
def test_checkpoints_have_the_same_form_whoever_writes_them(processes, method):
    one = shapes(processes.root / "one" / method)
    assert shapes(processes.root / "ddp" / method) == one
    assert shapes(processes.root / "fsdp" / method) == one


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_interrupted_run_of_two_processes_resumes_to_the_bit_with_dropout(processes, strategy):
    whole, parts = (processes.root / f"{strategy}-{kind}" for kind in ("whole", "parts"))
    assert contents(parts) == contents(whole)
    assert RunFolder(parts).result()["final"] == RunFolder(whole).result()["final"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_weights_may_thaw_and_freeze_again(processes, strategy):
    for found in processes.found.values():
        assert found["flipped"][strategy] == {"thawed": True, "frozen": False}


def test_processes_of_another_version_or_config_are_refused(processes):
    for found in processes.found.values():
        assert "process 1 is about to do something else than process 0" in found["version"]
        assert "oelm version is '0.1.0' in process 0 and '0.2.0' in it" in found["version"]
        assert "training.max_lr is 0.1 in process 0 and 0.2 in it" in found["config"]


# The command line


@pytest.fixture
def oelm(spawn):
    """oelm("train", …): the command, as typed."""

    def start(*words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "oelm", *words]
        return spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(int(path.name[5:]) >= step for path in run.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline, f"no checkpoint of step {step}"
        time.sleep(0.02)


def ended(process: "subprocess.Popen[str]", workers: list[int]) -> str:
    """What a job has said, when it has left and nobody of it is left."""
    try:
        said, _ = process.communicate(timeout=0.8 * launching.GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in [process.pid, *workers]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # they print their stacks
        said, _ = process.communicate(timeout=launching.GRACE_SECONDS)
        pytest.fail(f"a job did not leave: {said}")
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert "Traceback" not in said
    return said


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_job_restarts_when_a_process_is_killed_stops_on_request_and_goes_on_to_the_bit(processes, tmp_path, oelm):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(processes.configs["long"].to_dict()))
    run = tmp_path / "run"
    job = oelm("train", "--config", config, "--out", run, "--nproc", 2, "--max-restarts", 1, "--quiet")
    wait_for_step(run, 20)
    first = children_of(job.pid)
    assert len(first) == 2
    outside, listening = reachable_from_outside(job.pid)
    assert listening and not outside  # what they say to each other is unpickled: a stranger could run anything
    os.kill(first[1], signal.SIGKILL)
    wait_for_step(run, 80)
    second = children_of(job.pid)
    job.terminate()
    said = ended(job, first + second)
    assert f"process 1 of 2 (pid {first[1]}) was killed by SIGKILL" in said
    assert "(restart 1 of 1)" in said
    assert "interrupted by SIGTERM at step" in said
    assert job.returncode == 143
    assert RunFolder(run).status()["state"] == "interrupted"

    job = oelm("resume", run)  # the run remembers that it has two processes
    assert "parameters frozen and verified" in ended(job, [])
    assert job.returncode == 0
    assert contents(run) == contents(processes.root / "long")


def test_a_request_to_stop_between_two_starts_ends_the_job(config, tmp_path, monkeypatch):
    lost = [Failure(0, 11, PeerLost.exit_code), Failure(1, 12, -signal.SIGKILL)]
    monkeypatch.setattr(launching, "_run_once", lambda *args: lost)
    monkeypatch.setattr(launching, "newest_valid", lambda folder: os.kill(os.getpid(), signal.SIGTERM))
    handler = signal.getsignal(signal.SIGTERM)
    assert launch(within(config(), "ddp", 2), tmp_path / "run", max_restarts=1, say=pytest.fail) == 143
    assert signal.getsignal(signal.SIGTERM) is handler


def test_without_restarts_the_job_ends_and_says_who_was_killed(config, tmp_path, monkeypatch):
    lost = [Failure(0, 11, PeerLost.exit_code), Failure(1, 12, -signal.SIGKILL)]
    stopped = [Failure(1, 12, -signal.SIGTERM), Failure(0, 11, 143)]
    outcomes = iter([lost, lost, stopped])
    monkeypatch.setattr(launching, "_run_once", lambda *args: next(outcomes))
    said: list[str] = []
    run = within(config(), "ddp", 2)
    assert launch(run, tmp_path / "run", max_restarts=1, say=said.append) == 1
    assert "process 1 of 2 (pid 12) was killed by SIGKILL" in said[0] and "(restart 1 of 1)" in said[0]
    assert said[1].startswith("error: process 1 of 2 (pid 12) was killed by SIGKILL")
    assert "the run has ended. 'oelm resume" in said[1]
    assert launch(run, tmp_path / "run", max_restarts=5, say=said.append) == 143  # what was stopped stays stopped
    assert len(said) == 2


# What is refused before any process starts


def test_a_batch_that_cannot_be_shared_is_refused(config):
    for nproc, message in (
        (3, "batch_size 4 is not divisible by 3 processes; use 3 or 6"),
        (8, "by 8 processes; use 8, or another --nproc"),
    ):
        run = within(config(), "ddp", nproc)
        with pytest.raises(OelmError, match=message):
            setup.prepare(run, RunFolder("nowhere"), planned_world(run))


def test_more_processes_than_devices_and_one_device_for_all_are_refused(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    run = within(config(), "ddp", 4)
    for device, message in (("cuda", "4 processes need a CUDA device each, but this machine has 2"), ("cuda:1", "one")):
        run.runtime.device = device
        with pytest.raises(OelmError, match=message):
            setup.prepare(run, RunFolder("nowhere"), planned_world(run))


def test_one_process_does_not_pass_for_several(config, tmp_path):
    with pytest.raises(OelmError, match=r"runtime.nproc is 2, but this is one process; start it with 'oelm train"):
        train(within(config(), "ddp", 2), tmp_path / "run")


def test_alone_there_is_nobody_to_talk_to(config):
    assert find_world(config()) is ALONE
    assert not torch.distributed.is_initialized()


# Classification, whose batches may be too small for all


@pytest.mark.parametrize("rows", [4, 3, 1])
def test_the_mean_over_processes_is_the_mean_over_rows_however_few_there_are(rows):
    lengths, labels = np.array([3, 5, 2, 4][:rows]), np.array([0, 1, 1, 0][:rows])
    texts = SimpleNamespace(lengths=lengths, labels=labels, first=lengths, row=lambda i: np.full(lengths[i], i + 1))
    embedding = nn.Embedding(5, 2)

    def model(input_ids, attention_mask, token_type_ids):
        seen = embedding(input_ids) * attention_mask[:, :, None]
        return SimpleNamespace(logits=seen.sum(1))

    def loss(world) -> float:
        objective = Classification.__new__(Classification)
        objective.texts, objective.world, objective.device = {"train": texts}, world, torch.device("cpu")
        objective.units = np.ones(rows, dtype=np.int64)
        objective.order = SimpleNamespace(batch=lambda step: np.arange(rows))
        objective.pad_id, objective.segments, objective.accumulation = 0, True, 1
        return objective.loss(model, objective.batch(0)).item()

    config = RunConfig.parse({"data": {"path": "rows"}})
    pair = [Processes(config, rank=r, size=2, local_rank=r, local_size=2) for r in (0, 1)]
    assert sum(map(loss, pair)) / 2 == pytest.approx(loss(ALONE), rel=1e-6)
