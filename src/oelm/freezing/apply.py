"""freeze(model, method): initialise the queries and keys, freeze what the method freezes, and be able to prove it.

>>> from oelm import GPT, GPTConfig
>>> model = GPT(GPTConfig.of_size("demo", vocab_size=512))
>>> report = freeze(model, "oelm_freeze", seed=0)
>>> report.frozen_parameters, report.trainable_parameters
(16384, 132352)
>>> verify_frozen(model, report)  # raises FrozenChanged if any frozen tensor moved
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from oelm.errors import OelmError, unknown
from oelm.freezing.methods import Method, method
from oelm.freezing.orthogonal import DRAWN_AFRESH, INITIALISATIONS, KEEPS_SCALE, orthonormality_error, require_fit
from oelm.freezing.projections import FixedProjection, Projection, dense, described_in, load_projections, note, stand_in
from oelm.freezing.report import FreezeReport, SiteReport
from oelm.freezing.sites import Site, attention_sites, ffn_sites
from oelm.freezing.spec import Part, layer_numbers

TREATABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types of weights that can be initialised and judged as they are; quantised ones cannot."""


class FrozenChanged(Exception):
    """A tensor that a run promised not to touch is not what it was."""


def freeze(
    model: nn.Module, method_spec: str | Mapping[str, Any] | Method, *, seed: int = 0, pretrained: bool | None = None
) -> FreezeReport:
    """Initialise and freeze `model` in place as the method says; return what was done. A refusal changes no weight.

    `pretrained` says whether the model's weights are worth keeping; some methods then derive the frozen weights from
    them. By default a name decides: transformers notes in a model, or in one within it, where it was loaded from. A
    random model built from a loaded configuration carries that name, too; `pretrained=False` overrides it.
    """
    chosen = method(method_spec)
    if not isinstance(model, nn.Module):
        raise OelmError(f"freeze() needs a model, not {model!r}; load it first, e.g. with from_pretrained")
    _require_architecture(model, chosen)
    _require_weights(model)
    sites = _sites(model, chosen)
    if pretrained is None:
        pretrained = any(getattr(module, "name_or_path", "") for module in model.modules())
    parts = _parts(model, sites, chosen)
    inits = [_initialisation(chosen, site.role, part, pretrained) for site, part in zip(sites, parts, strict=True)]
    for site, part, init in zip(sites, parts, inits, strict=True):
        _require_fit(model, site, part, init)
    reports = tuple(
        _treat(model, site, part, init, _generator(seed, place, site), thaws=chosen.thaw is not None)
        for place, (site, part, init) in enumerate(zip(sites, parts, inits, strict=True))
    )
    note(model)
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return FreezeReport(chosen, seed, reports, total, frozen)


def freeze_from_report(model: nn.Module, report: FreezeReport) -> None:
    """Freeze again, without initialising, a model with just the reported weights: files do not say what is frozen."""
    attention_sites(model)  # splits what is fused, as freeze() did
    parameters = dict(model.named_parameters())
    for name in report.frozen_names:
        if name in parameters:  # the others are buffers, which never train
            parameters[name].requires_grad_(False)
    verify_frozen(model, report)


def restore(model: nn.Module, folder: str | Path) -> nn.Module:
    """Give a stock model the projections and all weights of a folder that `save_pretrained` wrote with replaced ones.

    `from_pretrained` does so by itself, but not with folders of version 0.1. To train on, give the model and the report
    of its freezing to `freeze_from_report`.
    """
    if not Path(folder).is_dir():
        raise OelmError(f"{folder} is no folder; give one that save_pretrained wrote")
    described = described_in(folder)
    if not described:
        raise OelmError(f"{folder} names no replaced projections in its config.json; without any, use from_pretrained")
    attention_sites(model)  # splits what is fused, so that the parts can be replaced
    load_projections(model, described, folder)
    return model


def verify_frozen(model: nn.Module, report: FreezeReport) -> None:
    """Raise FrozenChanged unless every frozen tensor is what `freeze` left, to the bit and without a gradient."""
    tensors = dict([*model.named_buffers(), *model.named_parameters()])
    parameters = {_bare(name): tensor for name, tensor in tensors.items()} | tensors
    problems = []
    for site in report.sites:
        for name, expected in site.hashes.items():
            parameter = parameters.get(name, parameters.get(_bare(name)))
            if parameter is None:
                problems.append(f"{name} is gone")
            elif parameter.requires_grad:
                problems.append(f"{name} requires a gradient")
            elif parameter.grad is not None:
                problems.append(f"{name} has a gradient")
            elif tensor_hash(parameter) != expected:
                problems.append(f"{name} changed")
    if problems:
        raise FrozenChanged(f"{len(problems)} frozen tensors failed verification: {'; '.join(problems[:5])}")


def tensor_hash(tensor: Tensor) -> str:
    """sha256 over dtype, shape and bytes; of a sharded tensor, over the whole of it."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    flat = tensor.detach().cpu().contiguous().flatten()
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _bare(name: str) -> str:
    """A tensor's name without what wrappers put before and into it, nor the "model" that some models begin with.

    >>> _bare("module.base_model.model.model.layers.0.q_proj.base_layer.weight"), _bare("model.layers.0.q_proj.weight")
    ('layers.0.q_proj.weight', 'layers.0.q_proj.weight')
    """
    words = [word for word in name.split(".") if word not in ("base_layer", "_orig_mod")]
    return ".".join(dropwhile(lambda word: word in ("module", "base_model", "model"), words))


def _require_architecture(model: nn.Module, chosen: Method) -> None:
    """Another shape cannot be given to a finished model: it must have been built with it."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    built = [getattr(config, "method_architecture", None) for config in configs]
    if chosen.architecture and dict(chosen.architecture) not in built:
        raise OelmError(
            f"method {chosen.name!r} changes the architecture ({', '.join(chosen.architecture)}), and this "
            f"{type(model).__name__} was not built with it; only our GPT can be: "
            "GPT(config.with_architecture(method(name).architecture)), then freeze"
        )


def _require_weights(model: nn.Module) -> None:
    """A model on the meta device is counted, a real one is treated; with one that lies elsewhere in part, neither."""
    parameters = dict(model.named_parameters())
    away = [name for name, parameter in parameters.items() if parameter.is_meta]
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate fetches weights as needed
    if away and (hooked or len(away) < len(parameters)):
        raise OelmError(
            f"{len(away)} of {len(parameters)} parameters are offloaded, e.g. {away[0]}; "
            "load the model into memory as a whole (without offloading) to freeze it"
        )


def _sites(model: nn.Module, chosen: Method) -> list[Site]:
    """Every place the method may touch; what cannot be treated is refused before anything is changed."""
    sites = attention_sites(model)
    if chosen.ffn != Part():
        found = ffn_sites(model)
        if not found:
            raise OelmError(
                f"method {chosen.name!r} freezes FFN matrices, but oelm knows none in {type(model).__name__}; "
                "use a method for queries and keys only, or add their names to FFN in oelm/freezing/sites.py"
            )
        sites += found
    for role in ("query", "key"):
        if chosen.part(role) != Part() and role not in {site.role for site in sites}:
            raise OelmError(f"method {chosen.name!r} is about queries and keys, but {type(model).__name__} has none")
    for site in sites:
        module = site.module(model)
        why = getattr(model.get_submodule(site.path.rpartition(".")[0]), "refuses", {}).get(site.role)
        if why and chosen.part(site.role).frozen:
            raise OelmError(f"method {chosen.name!r} cannot freeze {site.path}: {why}")
        if isinstance(module, Projection | FixedProjection):
            raise OelmError(
                f"{site.path} was replaced by an earlier oelm.freeze; start from a fresh model, "
                "or freeze this one again as it is with oelm.freeze_from_report"
            )
        _require_matrix(module, site)
    return sites


def _parts(model: nn.Module, sites: list[Site], chosen: Method) -> list[Part]:
    """What happens at every site: the method's part for its role, in the layers it applies to, stack by stack."""
    depths = {site.stack: 1 + max(s.layer for s in sites if s.stack == site.stack) for site in sites}
    layers = {
        stack: layer_numbers(chosen.layers, depth, stack if len(depths) > 1 else "the model")
        for stack, depth in depths.items()
    }
    parts = [chosen.part(site.role) if site.layer in layers[site.stack] else Part() for site in sites]
    if chosen.ratio is not None:
        kept = _within_ratio(model, sites, parts, chosen)
        parts = [
            part if site in kept or not part.freezes_weights else Part(adapters=part.adapters)
            for site, part in zip(sites, parts, strict=True)
        ]
    can_thaw = [part for site, part in zip(sites, parts, strict=True) if _trains(site.module(model))]
    _require_effect(chosen, parts, can_thaw)
    return parts


def _require_effect(chosen: Method, parts: list[Part], can_thaw: list[Part]) -> None:
    """What a method says must happen somewhere: a wish that would silently come to nothing is refused."""
    if chosen.layers != "all" and all(part == Part() for part in parts):
        raise OelmError(
            f"method {chosen.name!r} changes nothing in layers {chosen.layers!r} of this model; "
            "choose other layers, or a method that does something in them"
        )
    if chosen.thaw and not any(part.freezes_weights for part in can_thaw):
        raise OelmError(f"method {chosen.name!r} thaws, but freezes nothing that trained before; leave thaw out")
    for key in ("lr", "every"):
        given = [part for part in parts if getattr(part, key) != getattr(Part(), key)]
        if given and not any(part.projection == "dense" and (chosen.thaw or not part.frozen) for part in given):
            raise OelmError(f"method {chosen.name!r} sets {key} of weights that never train; leave {key} out, or thaw")


def _within_ratio(model: nn.Module, sites: list[Site], parts: list[Part], chosen: Method) -> list[Site]:
    """The first frozen sites, queries and keys before FFN, whose weights come nearest to the wanted share."""
    if not (chosen.query.frozen or chosen.key.frozen):
        raise OelmError(
            f"method {chosen.name!r} trains queries and keys, but a ratio freezes them before anything else; "
            f"vary a method that freezes them, e.g. oelm_freeze+ratio={chosen.ratio:g}"
        )
    sizes = [sum(t.numel() for _, t in site_tensors(model, site)) for site in sites]
    gone = sum(size for size, part in zip(sizes, parts, strict=True) if part.projection != "dense")  # no weights left
    total = sum(p.numel() for p in model.parameters()) - gone
    target, frozen, size = (chosen.ratio or 0) * total, 0, 0
    kept: list[Site] = []
    for site, part, size in zip(sites, parts, sizes, strict=True):
        if not part.freezes_weights:
            continue
        if abs(frozen + size - target) > abs(frozen - target):
            break
        frozen += size
        kept.append(site)
    if not any(part.freezes_weights for part in parts):
        raise OelmError(
            f"ratio {chosen.ratio:g} of method {chosen.name!r} cannot be met: it has no weights to freeze; "
            "vary a method that freezes some, e.g. oelm_freeze"
        )
    if not kept:
        raise OelmError(
            f"ratio {chosen.ratio:g} of method {chosen.name!r} freezes nothing: its first matrix alone is "
            f"{size / total:.3f} of the model's parameters; ask for at least that"
        )
    if target - frozen > size:
        raise OelmError(
            f"ratio {chosen.ratio:g} of method {chosen.name!r} cannot be met: all its queries, keys and FFN matrices "
            f"are {frozen / total:.3f} of the model's parameters; ask for at most that"
        )
    return kept


def _initialisation(chosen: Method, role: str, part: Part, pretrained: bool) -> str:
    name = part.init_pretrained if pretrained and part.init_pretrained else part.init
    if name not in INITIALISATIONS:
        raise unknown(f"initialisation of {role} in method {chosen.name!r}", name, INITIALISATIONS)
    return name


def _require_fit(model: nn.Module, site: Site, part: Part, init: str) -> None:
    """Refuse what cannot stand at a site, by its shape and by building it without memory."""
    rows, width = site.module(model).weight.shape  # type: ignore[misc]
    try:
        require_fit(init, rows, width, site.num_heads)
        empty = nn.Linear(width, rows, device="meta")
        stand_in(empty, part.projection, site.num_heads, part.adapters, generator=Generator())
    except OelmError as error:
        raise OelmError(f"{site.path}: {error}") from None
    if part.adapters.scale and site.normed:
        raise OelmError(f"{site.path}: a norm comes after it and would undo a learned scale; use gain or mix")


def _treat(model: nn.Module, site: Site, part: Part, init: str, generator: Generator, *, thaws: bool) -> SiteReport:
    """Initialise one projection, replace or equip it, and freeze it, as the method says."""
    standing = site.module(model)
    weight: Tensor = standing.weight  # type: ignore[assignment]
    rows, width = weight.shape
    trained = _trains(standing)
    frozen = part.frozen or not trained  # never the other way round: what a user froze before stays frozen
    unit = 1.0 if init in KEEPS_SCALE and part.projection == "dense" else site.unit
    if part.projection == "dense" and not weight.is_meta:
        with torch.no_grad():
            weight.copy_(unit * INITIALISATIONS[init](weight, site.num_heads, generator))
            bias = getattr(standing, "bias", None)
            if init in DRAWN_AFRESH and site.role != "ffn" and bias is not None:
                bias.zero_()  # it was learned for other rows
    extra = 0
    if part.projection != "dense" or part.adapters.names:
        module = stand_in(standing, part.projection, site.num_heads, part.adapters, unit, generator)
        model.set_submodule(site.path, module)
        extra = sum(p.numel() for p in module.learned.values()) if isinstance(module, Projection) else 0
    hashes = {}
    if frozen:
        for name, tensor in site_tensors(model, site):
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(False)
            hashes[name] = "" if tensor.is_meta else tensor_hash(tensor)
    where = (site.path, site.role, site.layer, site.num_heads, (rows, width))
    return SiteReport(
        *where,
        init if part.projection == "dense" else part.projection,
        frozen,
        None if weight.is_meta else _error(site.module(model), site, unit),
        hashes,
        site.kind,
        part.projection,
        tuple(part.adapters.names),
        extra,
        thaws=thaws and trained and part.freezes_weights,
        every=part.every if trained else 1,
        lr=part.lr,
    )


def _error(module: nn.Module, site: Site, unit: float) -> float:
    """How far the base projection is from orthonormal; FFN matrices are judged by their shorter side."""
    base = module.base if isinstance(module, Projection) else module
    weight: Tensor = dense(base).weight if isinstance(base, FixedProjection) else base.weight  # type: ignore[assignment]
    if site.role == "ffn" and weight.shape[0] > weight.shape[1]:
        weight = weight.T
    return orthonormality_error(weight / unit, site.num_heads)


def site_tensors(model: nn.Module, site: Site | SiteReport) -> Iterator[tuple[str, Tensor]]:
    """What is frozen at a site: the base projection's weights and buffers, but of an FFN only the matrix."""
    module, prefix = model.get_submodule(site.path), site.path
    if isinstance(module, Projection):
        module, prefix = module.base, f"{prefix}.base"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if site.role != "ffn" or name == "weight":
            yield f"{prefix}.{name}", tensor


def _generator(seed: int, place: int, site: Site) -> Generator:
    """A stream of its own for every site, by its place in the model, so that wrappers draw the same weights."""
    digest = hashlib.sha256(f"{seed}:{place}:{site.role}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _trains(module: nn.Module) -> bool:
    return module.weight.requires_grad  # type: ignore[return-value]


def _require_matrix(module: nn.Module, site: Site) -> None:
    if hasattr(module, "base_layer"):
        raise OelmError(f"{site.path} carries an adapter (peft); freeze first and add adapters afterwards")
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise OelmError(f"{site.path} is a {type(module).__name__} without a weight matrix; oelm cannot freeze it")
    if weight.dtype not in TREATABLE:
        raise OelmError(f"{site.path} has weights of {weight.dtype}; load the model unquantised, in 16 bits or more")
