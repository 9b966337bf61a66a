"""Our GPT for those who have no oelm: as the stock architecture that computes the same (GPT-2, GPT-NeoX, Llama or
Qwen3); or with its source beside the weights, where none does (key offset, thin heads, projections without weights).

>>> from oelm import GPT, GPTConfig
>>> model = GPT(GPTConfig.of_size("demo", vocab_size=64))
>>> stock = to_stock(model)
>>> ids = torch.tensor([[5, 6, 7]])
>>> type(stock).__name__, torch.allclose(stock(ids).logits, model.eval()(ids), atol=1e-5)
('GPT2LMHeadModel', True)
"""

import copy
import json
import re
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oelm.errors import OelmError
from oelm.freezing.projections import merge
from oelm.models.gpt import GPT
from oelm.models.shape import GPTConfig
from oelm.yaml_files import read_yaml

_IMPORT = re.compile(r"^( *)from (oelm[\w.]*) import", re.MULTILINE)
_MODEL, _CONFIG = "oelm.models.huggingface", "oelm.models.configuration"
_EVERYWHERE = {
    *("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "max_seq_len", "positions", "norm", "ffn", "qk_norm"),
    *("dropout", "residual_init", "ffn_dropout", "method_architecture"),  # no matter to what a trained model computes
}


@dataclass(frozen=True)
class Stock:
    """A stock architecture: a row of `export.yaml`, which says what is what."""

    model: str
    shape: dict[str, Any]
    config: str
    settings: dict[str, Any]
    names: dict[str, str]
    also: tuple[str, ...] = ()
    fused: str | None = None
    by_head: bool = False
    transposed: bool = False


def to_stock(model: GPT) -> Any:
    """A stock transformers model with the same logits; what no stock architecture has is refused by name."""
    import transformers

    shape = model.config
    stock = _equal(shape)
    merged = copy.deepcopy(model)
    merge(merged)  # refuses a token shift by name
    config = getattr(transformers, stock.config)(**_filled(stock.settings, shape))
    result = getattr(transformers, stock.model)(config)
    missing, unexpected = result.load_state_dict(_renamed(merged, stock), strict=False)
    missing = [name for name in missing if name not in ("lm_head.weight", "embed_out.weight")]  # tied to the embedding
    if missing or unexpected:
        raise RuntimeError(f"{stock.model} of this transformers is built otherwise: {[*missing, *unexpected][:3]}")
    result.tie_weights()
    return result.eval()


def _filled(settings: dict[str, Any], shape: GPTConfig) -> dict[str, Any]:
    """With the shape's own values in place of what names them."""
    result = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = _filled(value, shape)
        elif isinstance(value, str) and value.startswith("="):
            value = getattr(shape, value[1:])
        result[name] = value
    return result


def _equal(shape: GPTConfig) -> Stock:
    rows = read_yaml(Path(__file__).with_name("export.yaml"), "table")
    known = [Stock(model, **row) for model, row in rows.items()]
    stock = next((s for s in known if all(getattr(shape, key) == value for key, value in s.shape.items())), None)
    if stock is None:
        words = ["{positions}, {norm} norm, {ffn}".format(**s.shape) + ", qk_norm" * s.shape["qk_norm"] for s in known]
        raise OelmError(
            f"no stock architecture has positions={shape.positions}, norm={shape.norm}, ffn={shape.ffn} and "
            f"qk_norm={shape.qk_norm} together; those that can be exported: {'; '.join(words)}"
        )
    usual = GPTConfig(d_model=shape.d_model, num_heads=shape.num_heads)
    natural = {"kv_heads": shape.num_heads, "qk_width": shape.d_model}  # what they mean when they are not given
    for name in [f.name for f in fields(shape) if f.name not in {*_EVERYWHERE, *stock.also}]:
        if (value := getattr(shape, name)) not in (getattr(usual, name), natural.get(name)):
            raise OelmError(
                f"{name}={value} has no equal in {stock.model}, the stock architecture of the rest; "
                "use --to remote-code, or load the checkpoint with oelm"
            )
    return stock


def _renamed(model: GPT, stock: Stock) -> dict[str, Tensor]:
    """Our tensors under the stock architecture's names, in its layout."""
    state: dict[str, Tensor] = {}
    for path, tensor in model.state_dict().items():
        module, _, kind = path.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            if stock.fused and part.removeprefix("attention.") in ("query", "key", "value"):
                continue
            module = f"{stock.names['blocks']}.{layer}.{stock.names[part]}"
            if stock.transposed and tensor.ndim == 2:
                tensor = tensor.T.contiguous()
                state.setdefault(f"{module}.bias", torch.zeros(tensor.shape[1]))
        else:
            module = stock.names[module]
        state[f"{module}.{kind}"] = tensor
    for number, block in enumerate(model.blocks if stock.fused else ()):
        attention: Any = block.attention
        parts = [getattr(attention, role).weight.detach() for role in ("query", "key", "value")]
        if stock.by_head:
            parts = [part.unflatten(0, (model.config.num_heads, -1)) for part in parts]  # (heads, head_dim, d_model)
        weight = torch.cat(parts, dim=1).flatten(0, 1) if stock.by_head else torch.cat(parts)
        module = f"{stock.names['blocks']}.{number}.{stock.fused}"
        state[f"{module}.weight"] = weight.T.contiguous() if stock.transposed else weight
        if stock.transposed:
            state[f"{module}.bias"] = torch.zeros(len(weight))
    return state


def write_code(folder: Path) -> None:
    """Add our modules to a saved model's folder and name them in config.json, for `trust_remote_code=True`."""
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
    return module.replace(".", "_")
