"""A model that sorts texts into classes: a pretrained encoder with a new head, or our GPT from scratch.

What cannot fit is refused by `encoder_config` or `gpt_classifier_config`, which need no weights; `build_classifier`
then loads or makes them.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from oelm.errors import OelmError
from oelm.models.known import read_config
from oelm.models.shape import GPTConfig
from oelm.models.stock import build

_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text")
"""Model types whose positions start after the padding id, so that they have room for fewer tokens than positions."""


def gpt_classifier_config(gpt: GPTConfig, classes: Sequence[str]) -> Any:
    """Our GPT with a classifier's head, as a transformers configuration."""
    from oelm.models.huggingface import HFGPTConfig

    return _with_classes(HFGPTConfig(**asdict(gpt)), classes)


def encoder_config(encoder: str, classes: Sequence[str], config: Any = None) -> Any:
    """The configuration of a model, its own or the one given, with a head for these classes."""
    config = config or read_config(encoder)
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
    return build("classification", config, weights)


def reads_segments(model: nn.Module) -> bool:
    """Whether the model can be told which of two texts a token belongs to.

    GPT-2 takes segments, too, but looks them up among its words: there even zeros change what is read.
    """
    kinds = getattr(model.config, "type_vocab_size", None) or 0
    return kinds > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


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
