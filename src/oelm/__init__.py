"""oelm: train Transformers whose attention never learns its queries and keys, and see exactly what that costs.

>>> import oelm
>>> model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=512))
>>> report = oelm.freeze(model, "oelm_freeze", seed=0)
>>> report.frozen_parameters
16384
"""

import importlib
from typing import TYPE_CHECKING, Any

from oelm.freezing.methods import (
    methods as methods,  # at once: imported later, the submodule of that name would hide it
)
from oelm.models.registration import register_with_transformers

if TYPE_CHECKING:
    from oelm.errors import OelmError as OelmError
    from oelm.freezing.apply import FrozenChanged as FrozenChanged
    from oelm.freezing.apply import freeze as freeze
    from oelm.freezing.apply import freeze_from_report as freeze_from_report
    from oelm.freezing.apply import restore as restore
    from oelm.freezing.apply import verify_frozen as verify_frozen
    from oelm.freezing.orthogonal import orthonormality_error as orthonormality_error
    from oelm.freezing.projections import merge as merge
    from oelm.freezing.report import FreezeReport as FreezeReport
    from oelm.freezing.sites import Layout as Layout
    from oelm.freezing.sites import Site as Site
    from oelm.freezing.sites import attention_sites as attention_sites
    from oelm.freezing.sites import register_sites as register_sites
    from oelm.freezing.spec import Adapters as Adapters
    from oelm.freezing.spec import Method as Method
    from oelm.freezing.spec import Part as Part
    from oelm.lab import compare as compare
    from oelm.lab import load_runs as load_runs
    from oelm.lab import train as train
    from oelm.lab import write_report as write_report
    from oelm.models.gpt import GPT as GPT
    from oelm.models.shape import GPTConfig as GPTConfig
    from oelm.training.callback import FreezeCallback as FreezeCallback

__version__ = "0.1.0"

# The whole public surface, by the module it lives in. Loaded on first use: importing oelm must stay cheap.
_SURFACE = {
    "oelm.errors": ["OelmError"],
    "oelm.freezing.apply": ["FrozenChanged", "freeze", "freeze_from_report", "restore", "verify_frozen"],
    "oelm.freezing.orthogonal": ["orthonormality_error"],
    "oelm.freezing.projections": ["merge"],
    "oelm.freezing.report": ["FreezeReport"],
    "oelm.freezing.sites": ["Layout", "Site", "attention_sites", "register_sites"],
    "oelm.freezing.spec": ["Adapters", "Method", "Part"],
    "oelm.lab": ["compare", "load_runs", "train", "write_report"],
    "oelm.models.gpt": ["GPT"],
    "oelm.models.shape": ["GPTConfig"],
    "oelm.training.callback": ["FreezeCallback"],
}
_HOMES = {name: module for module, names in _SURFACE.items() for name in names}
__all__ = [*_HOMES, "__version__", "methods"]
_RENAMED = {"audit": "verify_frozen", "hold": "freeze_from_report", "Pieces": "Adapters"}
"""Names of version 0.1, which go on working."""


def __getattr__(name: str) -> Any:
    name = _RENAMED.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "oelm").partition(".")[0] == "oelm":
            raise
        from oelm.errors import Unavailable

        way = "pip install '.[lab]' in your clone"
        raise Unavailable(f"oelm.{name} needs {error.name}, which is not installed; {way}") from None


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_transformers()
