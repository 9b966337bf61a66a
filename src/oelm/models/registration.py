"""After `import oelm`, transformers knows our GPT and how to load replaced projections, without oelm importing it.

If a table of theirs is loaded already, ours is registered at once; otherwise a finder waits for it to be imported, lets
the ordinary machinery load it, and registers then.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

REGISTERS = {
    "transformers.models.auto.configuration_auto": "oelm.models.configuration",
    "transformers.models.auto.modeling_auto": "oelm.models.huggingface",
    "transformers.quantizers.auto": "oelm.models.reload",
}
"""Where transformers keeps its tables, each with the module of ours that registers there when it is imported."""


def register_with_transformers() -> None:
    waiting = {finder.theirs for finder in sys.meta_path if isinstance(finder, _AfterAutoClasses)}
    for theirs, ours in REGISTERS.items():
        if theirs in sys.modules:
            importlib.import_module(ours)
        elif theirs not in waiting:
            sys.meta_path.insert(0, _AfterAutoClasses(theirs, ours))


class _AfterAutoClasses(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the one module, and then loads it as its own loader would, with ours behind it."""

    def __init__(self, theirs: str, ours: str) -> None:
        self.theirs, self.ours = theirs, ours
        self.loader: importlib.abc.Loader

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.theirs:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        importlib.import_module(self.ours)
