"""`oelm doctor`: what this machine can do."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.training.tracking import TRACKERS

GET_TRACKERS = "pip install '.[track]' in your clone"


def doctor(
    as_json: AsJson = False,
    offline: Annotated[bool, Option("--offline", help="Do not try to reach the model hub.")] = False,
) -> None:
    """Say what this machine can do: torch build, GPUs, cores, memory, disk, hub, trackers, prepared data."""
    facts = examine(check_hub=not offline)
    if as_json:
        return echo_json(facts)
    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(f"[bold]{key}[/]", escape(_shown(value)))
    command_console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def examine(check_hub: bool = True) -> dict[str, Any]:
    import torch

    from oelm.data.tokens import data_directory, prepared
    from oelm.training.environment import environment, usable_cores

    facts = environment()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    here = Path.cwd()
    return {
        "oelm": facts["packages"]["oelm"],
        "python": facts["python"],
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'not built in'})",
        "transformers": facts["packages"]["transformers"],
        "GPUs": [f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in gpus] or "none: training runs on the CPU",
        "precisions": ["fp32", "bf16", *(["fp16"] if gpus else [])],
        "processor": facts["processor"],
        "cores": usable_cores(),
        "memory": _memory(),
        "disk free": f"{shutil.disk_usage(here).free / 1e9:.0f} GB in {here}",
        "hub": _hub() if check_hub else "not checked (--offline)",
        "trackers": {name: "installed" if find_spec(name) else GET_TRACKERS for name in TRACKERS},
        "prepared data": [path.name for path in prepared()] or f"none in {data_directory()} (see 'oelm data prepare')",
    }


def _memory() -> str:
    if not hasattr(os, "sysconf"):
        return "unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"


def _hub() -> str:
    from oelm.hub import unreachable

    why = unreachable()
    return f"not reachable ({why}); local files work in place of hub names" if why else "reachable"
