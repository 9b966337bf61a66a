"""`from_pretrained` of a stock model with replaced projections: the modules are rebuilt before the weights are loaded.

transformers lets a quantizer do that, so to it we are one, for as long as the loading takes. The model that comes out
is an ordinary one. `import oelm` arranges that this module is loaded as soon as transformers' quantizers are.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from oelm.errors import OelmError
from oelm.freezing.fused import SplitProjection
from oelm.freezing.projections import CONFIG_KEY, QUANT_METHOD, marks, note, rebuild, saved_names
from oelm.freezing.sites import split_fused


@dataclass
class ProjectionsConfig(QuantizationConfigMixin):
    """Nothing but a name: what stands where is in the config's own entry."""

    quant_method: str = QUANT_METHOD  # type: ignore[assignment]


class ProjectionsLoader(HfQuantizer):
    is_trainable = True

    def is_serializable(self) -> bool:
        return True

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            raise OelmError("replaced projections are made by oelm.freeze, not by a quantization_config")

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        described = getattr(model.config, CONFIG_KEY, None)
        if not described:
            raise OelmError(
                f"config.json says quant_method {QUANT_METHOD!r}, but no {CONFIG_KEY}; give a complete folder"
            )
        described = {_own_path(model, path): facts for path, facts in described.items()}
        split_fused(model, described)
        rebuild(model, described)
        self.disguised = _disguise(model, described)
        _require_tensors(model, described, checkpoint_files or [])
        theirs = set(model._keys_to_ignore_on_load_unexpected or ())
        model._keys_to_ignore_on_load_unexpected = theirs | {rf"{re.escape(name)}$" for name in marks(model)}
        self.shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for name, tensor in model.state_dict().items():  # of quantized models transformers compares no shapes
            if tensor.shape != self.shapes[name]:
                wanted = tuple(self.shapes[name])
                raise OelmError(f"{name} has shape {tuple(tensor.shape)} in the files, but {wanted} in config.json")
        for module, own in self.disguised:
            vars(module).update(own)
            for name in {"weight", "bias"} - own.keys():
                del vars(module)[name]
        self.remove_quantization_config(model)
        for module in model.modules():
            if hasattr(getattr(module, "config", None), "_is_quantized"):
                del module.config._is_quantized
        note(model)
        return model


def _disguise(model: Any, described: dict[str, Any]) -> list[tuple[nn.Module, dict[str, Any]]]:
    """While a model loads, the initialisers of some (T5, ModernBERT) reach for weights that have been replaced.

    They find one that needs nothing. They cannot be skipped: others (GPT-J) make their buffers there.
    """
    loaded = torch.empty(1)
    loaded._is_hf_initialized = True  # type: ignore[attr-defined]
    homes = {path.rpartition(".")[0] for path in described}
    modules = [model.get_submodule(path) for path in described]
    modules += [home for path in homes if isinstance(home := model.get_submodule(path), SplitProjection)]
    own = [{name: vars(m)[name] for name in ("weight", "bias") if name in vars(m)} for m in modules]
    for module in modules:
        vars(module).update(weight=loaded, bias=None)
    return list(zip(modules, own, strict=True))


def _own_path(model: Any, path: str) -> str:
    """A path as this model has it: the folder may be of the same body with another head, or none."""
    body, modules = f"{model.base_model_prefix}.", {name for name, _ in model.named_modules(remove_duplicate=False)}
    for own in (path, path.removeprefix(body), body + path):
        if not modules.isdisjoint((own, own.rpartition(".")[0])):
            return own
    raise OelmError(f"{type(model).__name__} has no {path!r}, which {CONFIG_KEY} in config.json names; load its class")


def _require_tensors(model: Any, described: dict[str, Any], files: list[str]) -> None:
    """Nothing of a replaced projection may be missing: transformers would draw it and go on."""
    there = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            there.update(tensors.keys())
    renamed = {own: saved for saved, own in saved_names(model).items()}
    body = f"{model.base_model_prefix}."
    for path in described:
        for name in model.get_submodule(path).state_dict():
            own = f"{path}.{name}"
            forms = {own, own.removeprefix(body), body + own}
            if not there & (forms | {renamed.get(form, form) for form in forms}):
                raise OelmError(f"the files lack {own}, which {CONFIG_KEY} in config.json names; give a whole folder")


for name in (QUANT_METHOD, "oelm"):  # and what folders of before call it
    if name not in AUTO_QUANTIZER_MAPPING:
        register_quantization_config(name)(ProjectionsConfig)
        register_quantizer(name)(ProjectionsLoader)
