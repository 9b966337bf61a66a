"""A model that sorts texts into classes: a pretrained encoder with a new head, or our GPT from scratch.

What cannot fit is refused by `encoder_config` or `gpt_classifier_config`, which need no weights; `build_classifier`
then loads or makes them.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from oelm.errors import OelmError
from oelm.freezing.apply import restore
from oelm.freezing.projections import described_in
from oelm.models.known import read_config
from oelm.models.shape import GPTConfig

PICKLED = "OELM_PICKLED_WEIGHTS"
"""Set to 1 to load weights that are no safetensors: unpickling a stranger's file is trusting the stranger."""
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text")
"""Model types whose positions start after the padding id, so that they have room for fewer tokens than positions."""


def gpt_classifier_config(gpt: GPTConfig, classes: Sequence[str]) -> Any:
    """Our GPT with a classifier's head, as a transformers configuration."""
    from oelm.models.huggingface import HFGPTConfig

    return _with_classes(HFGPTConfig(**asdict(gpt)), classes)


def encoder_config(encoder: str, classes: Sequence[str]) -> Any:
    """The configuration of a pretrained encoder with a head for these classes."""
    config = read_config(encoder)
    _require_classifier(config, encoder)
    trained_for = [name for name in config.architectures or [] if name.endswith("ForSequenceClassification")]
    if not trained_for:
        return _with_classes(config, classes)
    names = [str(config.id2label[i]) for i in range(config.num_labels)]
    if len(classes) > len(names):
        raise OelmError(
            f"the data have {len(classes)} classes ({', '.join(classes)}), but {encoder} is a classifier of "
            f"{len(names)} ({', '.join(names)}); use an encoder without a classifier's head"
        )
    generic = all(name.startswith("LABEL_") for name in names)
    if not generic and [name.lower() for name in names[: len(classes)]] != [name.lower() for name in classes]:
        raise OelmError(
            f"{encoder} is a classifier of {', '.join(names)}, the data's classes are {', '.join(classes)}; "
            "use an encoder without a classifier's head, or prepare the data with the same classes in the same order"
        )
    return _with_padding(config)


def longest_input(config: Any) -> int | None:
    """How many tokens the model can read; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions and config.model_type in _OFFSET_POSITIONS:
        return positions - (config.pad_token_id or 0) - 1
    return positions


def build_classifier(config: Any, weights: str | Path | None) -> nn.Module:
    """The model with the weights of a folder or hub name, or with fresh ones."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    if weights is None:
        return AutoModelForSequenceClassification.from_config(config, dtype=torch.float32, trust_remote_code=False)
    logging.disable_progress_bar()  # also for every checkpoint to come
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # a new head is what we want, not news
    try:
        if described_in(weights):
            return restore(
                AutoModelForSequenceClassification.from_config(config, dtype=torch.float32, trust_remote_code=False),
                weights,
            )
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(weights),
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=None if os.environ.get(PICKLED) == "1" else True,
        )
        _require_loaded(model, loaded, weights)
        return model
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        hint = (
            "" if "safetensors" not in reason else f" with safetensors (or set {PICKLED}=1 if you trust pickled ones)"
        )
        raise OelmError(
            f"the weights of {weights} cannot be loaded ({reason}); give a complete model folder{hint}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def reads_segments(model: nn.Module) -> bool:
    """Whether the model can be told which of two texts a token belongs to.

    GPT-2 takes segments, too, but looks them up among its words: there even zeros change what is read.
    """
    kinds = getattr(model.config, "type_vocab_size", None) or 0
    return kinds > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def _require_classifier(config: Any, encoder: str) -> None:
    """Only a model of texts that transformers knows a classifier for."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or not hasattr(config, "vocab_size"):
        raise OelmError(
            f"encoder {encoder} is a {config.model_type!r} model, for which transformers has no classifier of texts; "
            "use another, e.g. BERT, RoBERTa, DistilBERT, ELECTRA, GPT-2 or Llama"
        )


def _require_loaded(model: nn.Module, loaded: dict[str, Any], weights: str | Path) -> None:
    """A new head is what we want; a new body under the name of a pretrained one is not."""
    body = f"{getattr(model, 'base_model_prefix', '')}."
    missing = sorted(name for name in loaded["missing_keys"] if name.startswith(body) and ".pooler." not in name)
    missing += sorted(str(name) for name in loaded["mismatched_keys"])
    if missing:
        raise OelmError(
            f"the weights of {weights} lack {len(missing)} tensors of a {type(model).__name__} (first: {missing[0]}); "
            "give a complete model folder"
        )


def _with_classes(config: Any, classes: Sequence[str]) -> Any:
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: number for number, name in enumerate(classes)}
    return _with_padding(config)


def _with_padding(config: Any) -> Any:
    """Decoders have no padding id, or -1: then it is their end of text, or else the first token."""
    end = getattr(config, "eos_token_id", None)
    wanted = (getattr(config, "pad_token_id", None), end[0] if isinstance(end, list) else end, 0)
    config.pad_token_id = next(token for token in wanted if token is not None and 0 <= token < config.vocab_size)
    return config
