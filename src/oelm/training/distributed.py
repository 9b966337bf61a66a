"""Who trains a model: one process alone, or several; which part each of them takes, and what they tell each other.

The methods of `World` do nothing, so that the trainer has one path. `Processes` is the `World` of one of several
processes, which torchrun or `oelm.training.launch` has started. The samples of a step are those of one process, dealt
out; so neither what a run computes nor what it saves depends on how many processes it has.
"""

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.errors import OelmError
from oelm.runs import RunFolder, Seals, config_differences
from oelm.training.config import RunConfig, TrainingSection
from oelm.training.environment import version
from oelm.training.interruption import STOP_SIGNALS, Interrupted

Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = timedelta(minutes=30)  # how long they wait for each other: the first may be writing a large checkpoint
MEETING = "OELM_MEETING"  # names the file in which processes started by `oelm.training.launch` meet
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")


class World:
    """One process, alone: everything is its own, and there is nobody to tell."""

    rank, size = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def facts(self) -> dict[str, Any]:
        """For environment.json."""
        return {}

    # Before the start

    def folder(self, path: str | Path) -> RunFolder:
        return RunFolder(path)

    def own_device(self, device: torch.device) -> torch.device:
        return device

    def connected(self, config: RunConfig, folder: RunFolder) -> contextlib.AbstractContextManager[None]:
        """All processes, agreed on what they are about to do; they leave together."""
        return contextlib.nullcontext()

    def peers(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the loss of another process is an error that says so."""
        return contextlib.nullcontext()

    def require_same(self, facts: dict[str, Any]) -> None:
        """Refuse to go on unless all processes have these facts in common."""

    # The model

    def home(self, device: torch.device) -> torch.device:
        """Where the whole model is built."""
        return device

    def from_leader(self, model: nn.Module, facts: dict[str, Any]) -> dict[str, Any]:
        """Give every process the weights and the facts of the first: machines round differently."""
        return facts

    def wrap(self, model: nn.Module, *, pausing: bool = False) -> nn.Module:
        """The model to train with, anew when what trains changes; `pausing`: some have gradients at some steps only."""
        return model

    def settle(self, model: nn.Module) -> None:
        """Called after passes without a backward one: the model's parameters are again those that train."""

    # A step

    def begin(self, step: int) -> None:
        """Called before each step."""

    def share(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's part of a batch."""
        return samples

    def share_gradients(self, now: bool) -> None:
        """Whether the next backward pass ends a step, so that gradients are exchanged."""

    def mean(self, value: Tensor) -> Tensor:
        return value

    def agreed(self, signal_number: int | None) -> int | None:
        """The signal that any process has got."""
        return signal_number

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of all items, in order."""
        return [work(item) for item in items]

    # Whole tensors

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as one process would have them; only the first process gets them, but all must ask."""
        return dict(tensors)

    def weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """What to save of the model, unless it is what the model itself would save."""
        return None


ALONE = World()


def gathered(tensor: Tensor) -> Tensor:
    """A tensor as one process would have it; all processes must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class PeerLost(OelmError):
    """Another process of the same run is gone; what it died of is its own affair, or the launcher's."""

    exit_code = 75  # EX_TEMPFAIL: starting again may help


class Processes(World):
    """One of several processes."""

    def __init__(self, config: RunConfig, *, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self.strategy, self.seed = config.runtime.strategy, config.seed
        self._require_fit(config.training)
        self._device = torch.device("cpu")
        self._wrapped: nn.Module | None = None

    @property
    def facts(self) -> dict[str, Any]:
        return {"processes": self.size, "strategy": self.strategy, "backend": self._backend}

    @property
    def _backend(self) -> str:
        return "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"

    def folder(self, path: str | Path) -> RunFolder:
        return RunFolder(path) if self.leads else _ReadOnly(path)

    def own_device(self, device: torch.device) -> torch.device:
        if device.type != "cuda":
            return device
        if device.index is not None:
            raise OelmError(f"device '{device}' is one device, but {self.size} processes need one each; use 'cuda'")
        count = torch.cuda.device_count()
        if self.local_size > count:
            raise OelmError(
                f"{self.local_size} processes need a CUDA device each, but this machine has {count}; "
                f"use --nproc {count}, or --device cpu"
            )
        self._device = torch.device("cuda", self.local_rank)
        return self._device

    def _require_fit(self, training: TrainingSection) -> None:
        """Refuse what cannot be shared among the processes."""
        batch = training.batch_size
        if rest := batch % self.size:
            others = f"{batch - rest} or {batch - rest + self.size}" if batch > rest else self.size
            raise OelmError(
                f"batch_size {batch} is not divisible by {self.size} processes; use {others}, or another --nproc"
            )
        if self.strategy == "fsdp" and training.precision == "fp16":
            raise OelmError("precision fp16 does not go with strategy fsdp; use bf16 or fp32, or strategy ddp")

    @contextlib.contextmanager
    def connected(self, config: RunConfig, folder: RunFolder) -> Iterator[None]:
        common = {"oelm version": version("oelm"), "torch version": torch.__version__, "strategy": self.strategy}
        finished = {"finished": folder.result() is not None}  # all see the same folder, or some would wait for ever
        with self.peers():
            self._connect()
            self.require_same({**common, **finished, **config.to_dict()})
            try:
                yield
            except Interrupted:
                for number in STOP_SIGNALS:  # we are leaving; a launcher may ask once more
                    signal.signal(number, signal.SIG_IGN)
                self._leave()
                raise
            self._leave()

    def _connect(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        if meeting := os.environ.get(MEETING):
            file = Path(meeting).as_uri()
            dist.init_process_group(self._backend, file, PATIENCE, self.size, self.rank)
            return
        try:
            dist.init_process_group(self._backend, timeout=PATIENCE)
        except dist.DistNetworkError as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            if "EADDRINUSE" in str(error):
                raise OelmError(f"port {where} is in use; choose another, e.g. torchrun --master-port") from None
            raise OelmError(f"the processes cannot meet at {where}: {str(error).splitlines()[0][:200]}") from None

    def _leave(self) -> None:
        dist.barrier()  # nobody leaves while the first still writes: a launcher ends the rest when one has left
        dist.destroy_process_group()

    @contextlib.contextmanager
    def peers(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = next((words for words in _LOST if words in str(error)), None)
            if reason or isinstance(error, dist.DistError):
                reason = reason or " ".join(str(error).split())[:160]
                raise PeerLost(f"process {self.rank} has lost another process of this run ({reason})") from error
            raise

    def require_same(self, facts: dict[str, Any]) -> None:
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, facts)
        for rank, theirs in enumerate(everyone):
            if differences := config_differences(everyone[0], theirs):
                named = "; ".join(differences[:4]).replace(" there ", " in process 0 ")
                raise OelmError(
                    f"process {rank} is about to do something else than process 0: {named.replace(' here', ' in it')}; "
                    "start all processes with the same version, config and run folder"
                )

    # The model

    def home(self, device: torch.device) -> torch.device:
        # A model that outgrows a device is built beside it and moved there block by block, as it is sharded.
        return torch.device("cpu") if self.strategy == "fsdp" else device

    def from_leader(self, model: nn.Module, facts: dict[str, Any]) -> dict[str, Any]:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        box = [facts]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wrap(self, model: nn.Module, *, pausing: bool = False) -> nn.Module:
        if self.strategy == "fsdp":
            shard(model, self._device.type)  # once; it follows requires_grad by itself
            self._wrapped = model
        else:
            # The weights are the same already. Frozen parameters are left out by DDP itself.
            self._wrapped = nn.parallel.DistributedDataParallel(
                model, init_sync=False, gradient_as_bucket_view=True, find_unused_parameters=pausing
            )
        return self._wrapped

    def settle(self, model: nn.Module) -> None:
        if self.strategy == "fsdp":
            model.reshard()  # type: ignore[operator] # the outermost module keeps gathered copies until a backward pass

    # A step

    def begin(self, step: int) -> None:
        """Dropout differs between processes and is a function of the step: there is no state to save for each."""
        digest = hashlib.sha256(f"{self.seed}:{step}:{self.rank}".encode()).digest()
        number = int.from_bytes(digest[:8], "little") >> 1
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():  # else torch.manual_seed notes down the whole stack, for later
            torch.cuda.manual_seed(number)

    def share(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array_split(samples, self.size)[self.rank]

    def share_gradients(self, now: bool) -> None:
        # What DDP.no_sync() does. FSDP exchanges always: keeping whole gradients would take the memory it saves.
        if isinstance(self._wrapped, nn.parallel.DistributedDataParallel):
            self._wrapped.require_backward_grad_sync = now

    def mean(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value / self.size

    def agreed(self, signal_number: int | None) -> int | None:
        flag = torch.tensor(signal_number or 0, device="cpu")
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return int(flag) or None

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Each process does every size-th item; the results come together in the order of one process."""
        mine = items[self.rank :: self.size]
        results = [work(item) for item in mine]
        if len(mine) * self.size < len(items) or not mine:
            work(items[0])  # and forget it: with FSDP all processes must call the model equally often
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, results)
        return [everyone[i % self.size][i // self.size] for i in range(len(items))]

    # Whole tensors

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        complete = {}
        for name, tensor in tensors.items():
            whole = gathered(tensor)
            if self.leads:
                complete[name] = whole.detach().cpu()
        return complete

    def weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        return self.whole(model.state_dict()) if self.strategy == "fsdp" else None


def started() -> bool:
    """Whether torchrun, or `oelm.training.launch`, has started this process as one of a group."""
    return MEETING in os.environ or (dist.is_available() and dist.is_torchelastic_launched())


def leads() -> bool:
    """Whether this process speaks for its group, or is alone."""
    return not started() or os.environ["RANK"] == "0"


def find_world(config: RunConfig) -> World:
    """The processes that this one is part of; nothing is said to them yet."""
    if not started():
        if config.runtime.nproc > 1:
            raise OelmError(
                f"runtime.nproc is {config.runtime.nproc}, but this is one process; start it with "
                f"'oelm train --nproc {config.runtime.nproc}' or torchrun, or set nproc to 1"
            )
        return ALONE
    names = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_size": "LOCAL_WORLD_SIZE"}
    places = {name: int(os.environ[variable]) for name, variable in names.items()}
    return ALONE if places["size"] == 1 else Processes(config, **places)


def planned_world(config: RunConfig) -> World:
    """The processes that a launcher is about to start here, to see whether they can work."""
    count = config.runtime.nproc
    return ALONE if count == 1 else Processes(config, rank=0, size=count, local_rank=0, local_size=count)


def shard(model: nn.Module, device_type: str) -> None:
    """FSDP2: the outermost repeated blocks one by one, then the rest. Parameters may train or not, each for itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        return
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


class _ReadOnly(RunFolder):
    """A run folder in the hands of a process that must not write to it."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.log_file = Path(os.devnull)

    def create(self, config: dict[str, Any]) -> None: ...
    def lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def set_status(self, state: str, **facts: Any) -> None: ...
    def append_metrics(self, row: dict[str, Any]) -> None: ...
    def append_clock(self, row: dict[str, Any]) -> None: ...
    def sync_records(self) -> Seals:
        return {}

    def truncate_records(self, step: int, seals: Seals | None = None) -> None: ...
    def record(self, file: Path, value: dict[str, Any]) -> None: ...
