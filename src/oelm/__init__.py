"""oelm: train Transformers whose attention never learns its queries and keys, and see exactly what that costs.

>>> import oelm
>>> model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=512))
>>> report = oelm.freeze(model, "oelm_freeze", seed=0)
>>> report.frozen_parameters
16384
"""

import importlib
from typing import TYPE_CHECKING, Any

from oelm.methods import methods as methods  # at once: imported later, the submodule of that name would hide it
from oelm.models.registration import register_with_transformers

if TYPE_CHECKING:
    from oelm.errors import OelmError as OelmError
    from oelm.freeze_report import FreezeReport as FreezeReport
    from oelm.freezing import FrozenChanged as FrozenChanged
    from oelm.freezing import audit as audit
    from oelm.freezing import freeze as freeze
    from oelm.freezing import hold as hold
    from oelm.freezing import restore as restore
    from oelm.models.gpt import GPT as GPT
    from oelm.models.gpt import GPTConfig as GPTConfig
    from oelm.orthogonal import orthonormality_error as orthonormality_error
    from oelm.projections import merge as merge
    from oelm.sites import Layout as Layout
    from oelm.sites import Site as Site
    from oelm.sites import attention_sites as attention_sites
    from oelm.sites import register_sites as register_sites
    from oelm.strategies import Method as Method
    from oelm.strategies import Part as Part
    from oelm.strategies import Pieces as Pieces
    from oelm.training.callback import FreezeCallback as FreezeCallback

__version__ = "0.1.0"

# The whole public surface, each name with the room it lives in. Loaded on first use: importing oelm must stay cheap.
_HOMES = {
    "GPT": "oelm.models.gpt",
    "GPTConfig": "oelm.models.gpt",
    "FreezeCallback": "oelm.training.callback",
    "FreezeReport": "oelm.freeze_report",
    "FrozenChanged": "oelm.freezing",
    "Layout": "oelm.sites",
    "Method": "oelm.strategies",
    "OelmError": "oelm.errors",
    "Part": "oelm.strategies",
    "Pieces": "oelm.strategies",
    "Site": "oelm.sites",
    "attention_sites": "oelm.sites",
    "audit": "oelm.freezing",
    "freeze": "oelm.freezing",
    "hold": "oelm.freezing",
    "merge": "oelm.projections",
    "orthonormality_error": "oelm.orthogonal",
    "register_sites": "oelm.sites",
    "restore": "oelm.freezing",
}
__all__ = [*_HOMES, "__version__", "methods"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_transformers()
