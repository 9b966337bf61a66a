"""A Ray cluster: every run is a task; when its machine is lost, Ray calls it again elsewhere and the run resumes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oelm.errors import OelmError
from oelm.experiments.engines import Engine
from oelm.experiments.engines.cluster import Scheduler, require, work
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import Job, Watch, run_all

CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Read when Ray is imported, on every system: "0" has a cluster of one's own listen on the loopback interface only.
Whoever can reach a Ray cluster can run anything on it."""


@dataclass(frozen=True)
class Ray(Engine):
    def __post_init__(self) -> None:
        if self.gpus is not None or self.slots is not None:
            raise OelmError("--gpus and --slots are for --engine local; Ray knows the cluster's GPUs and cores")

    @property
    def threads(self) -> int | None:
        return 1  # one core per run, as the tasks ask for

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        if not (self.address or os.environ.get("RAY_ADDRESS")):
            os.environ.setdefault(CLUSTERS, "0")
        ray = require("ray", "ray")
        ours = not ray.is_initialized()
        if ours:
            try:
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False, configure_logging=False)
            except Exception as error:  # ConnectionError, RuntimeError, ValueError: all mean the same to a user
                where = f"the Ray cluster at {self.address}" if self.address else "a local Ray cluster"
                raise OelmError(f"{where} cannot be reached or started: {' '.join(str(error).split())[:200]}") from None
        try:
            return run_all(planned, _scheduler(ray, self.nproc), watch)
        finally:
            if ours:
                ray.shutdown()


def _scheduler(ray: Any, nproc: int) -> Scheduler:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kinds = ("GPU", "CPU") if any(node.get("GPU") for node in nodes) else ("CPU",)
    room = max((min(node.get(kind, 0) for kind in kinds) for node in nodes), default=0)
    if nproc > room:  # it would wait for ever
        raise OelmError(
            f"--nproc {nproc} needs so many {' and '.join(f'{kind}s' for kind in kinds)} on one machine, "
            f"but no machine of the Ray cluster has more than {room:g}; lower it"
        )
    resources = {f"num_{kind.lower()}s": nproc for kind in kinds}
    # Only losing the machine or the worker is retried; a run that fails by itself returns its exit code.
    task = ray.remote(**resources, max_retries=-1)(work)

    def submit(job: Job) -> Any:
        return task.remote(str(job.folder.path), os.getcwd(), nproc)

    def exit_code(reference: Any) -> int | None:
        ready, _ = ray.wait([reference], timeout=0)
        return ray.get(reference) if ready else None

    return Scheduler(submit, exit_code, lambda reference: ray.cancel(reference))
