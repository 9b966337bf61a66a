"""Published models by their usual names, as `published.yaml` has them: counting their parameters needs no download.

>>> config, model_class = named_config("bert-base", labels=3)
>>> config.hidden_size, model_class.__name__
(768, 'AutoModelForSequenceClassification')
"""

import difflib
from contextlib import suppress
from pathlib import Path
from typing import Any

from oelm.errors import OelmError, Unavailable, unknown
from oelm.hub import reason, unreachable
from oelm.models.shape import ALL_SIZES, SIZES
from oelm.yaml_files import read_yaml

KNOWN: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("published.yaml"), "table")
ENDINGS = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
}
"""The Auto class by how the architecture ends that a model folder says it holds."""


def family(config: Any) -> str:
    """What a configuration says its model is; a family that predicts masked words is one of encoders."""
    if hasattr(config, "causal"):  # ours
        return "decoder" if config.causal else "encoder"
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if config.is_encoder_decoder:
        return "encoder-decoder"
    decodes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    return "decoder" if getattr(config, "is_decoder", False) or decodes else "encoder"


def shape_name(config: Any) -> str:
    """A model by what it is, whatever folder it lies in: "bert 384×6"; nothing where a configuration does not say."""
    width, layers = (getattr(config, key, None) for key in ("hidden_size", "num_hidden_layers"))
    kind = getattr(config, "model_type", "")
    return f"{kind} {width}×{layers}" if kind and width and layers else ""


def named_config(name: str, labels: int | None = None) -> tuple[Any, Any]:
    """The transformers configuration of a known name, a model folder or a hub name, and the Auto class to build."""
    import transformers

    known = KNOWN.get(name, {})
    settings = known.get("settings", {})
    config = transformers.AutoConfig.for_model(known["model_type"], **settings) if known else read_config(name)
    if labels is not None:
        config.num_labels = labels
        images = hasattr(config, "patch_size")
        return config, getattr(transformers, f"AutoModelFor{'Image' if images else 'Sequence'}Classification")
    architecture = (config.architectures or [""])[0]
    found = next((auto for ending, auto in ENDINGS.items() if architecture.endswith(ending)), "AutoModel")
    return config, getattr(transformers, known.get("without_labels", "AutoModel") if known else found)


def require_known(name: str) -> None:
    """Refuse what neither is here nor can be had, at once: transformers would ask the hub for half a minute."""
    if name in (*ALL_SIZES, *KNOWN) or Path(name).exists():
        return
    if difflib.get_close_matches(name, [*SIZES, *KNOWN], cutoff=0.85):
        raise unknown("model", name, [*SIZES, *KNOWN])
    if name.startswith((".", "/", "~")) or name.endswith(".json") or len(Path(name).parts) > 2:
        raise OelmError(f"model {name!r} is not there; give a model folder, its config.json, or a name of the hub")
    from huggingface_hub import constants, try_to_load_from_cache

    with suppress(ValueError):  # no name that the hub could have; it says so itself
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
    if why := "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else unreachable():
        raise Unavailable(
            f"model {name!r} is unknown here, and the hub cannot be reached ({why}); "
            f"known: {', '.join([*SIZES, *KNOWN])}, or a folder with a config.json"
        )


def read_config(name: str) -> Any:
    require_known(name)
    import transformers

    if (latest := Path(name) / "checkpoints" / "latest").is_dir():  # of a run of ours
        name = str(latest)
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # a missing folder, a damaged file and the hub all raise types of their own
        why = reason(error, name)
        what = "is no model folder" if Path(name).exists() else "is unknown here and could not be had from the hub"
        raise OelmError(
            f"model {name!r} {what} ({why}); known: {', '.join([*SIZES, *KNOWN])}, or a folder with a config.json"
        ) from None
