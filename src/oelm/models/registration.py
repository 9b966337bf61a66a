"""After `import oelm`, transformers' Auto classes know our GPT, without oelm paying for importing transformers.

If the Auto classes are loaded already, ours are registered at once; otherwise a finder waits for them to be imported,
lets the ordinary machinery load them, and registers then.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

AUTO_CLASSES = "transformers.models.auto.modeling_auto"


def register_with_transformers() -> None:
    if AUTO_CLASSES in sys.modules:
        importlib.import_module("oelm.models.huggingface")
    elif not any(isinstance(finder, _AfterAutoClasses) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterAutoClasses())


class _AfterAutoClasses(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != AUTO_CLASSES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        importlib.import_module("oelm.models.huggingface")
