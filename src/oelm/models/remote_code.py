"""The source of our GPT as files beside its weights, which transformers loads with `trust_remote_code=True`.

So a model that no stock architecture equals (key offset, thin heads, projections without weights) works without oelm.
"""

import json
import re
from importlib import import_module
from pathlib import Path

_IMPORT = re.compile(r"^( *)from (oelm[\w.]*) import", re.MULTILINE)
_MODEL, _CONFIG = "oelm.models.huggingface", "oelm.models.configuration"


def write_code(folder: Path) -> None:
    """Add our modules to a saved model's folder, each importing its neighbours there, and name them in config.json."""
    waiting, done = [_MODEL, _CONFIG], set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        source = Path(import_module(name).__file__ or "").read_text("utf-8")
        waiting += [imported for _, imported in _IMPORT.findall(source)]
        here = _IMPORT.sub(lambda found: f"{found[1]}from .{_flat(found[2])} import", source)
        (folder / f"{_flat(name)}.py").write_text(here, encoding="utf-8")
    file = folder / "config.json"
    named = {"AutoConfig": f"{_flat(_CONFIG)}.HFGPTConfig", "AutoModelForCausalLM": f"{_flat(_MODEL)}.GPTForCausalLM"}
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "auto_map": named}, indent=2) + "\n", "utf-8")


def _flat(module: str) -> str:
    """
    >>> _flat("oelm.models.gpt")
    'oelm_models_gpt'
    """
    return module.replace(".", "_")
