"""Any model of transformers that reads or writes text: its configuration, its weights, its loss.

What cannot be is refused by `stock_config`, `objective_of`, `fit_to` and those that give a classifier's head, which
need no weights; `build` loads or draws them. A language model comes out as one that gives its loss, like our GPT:
`model(inputs, targets)`.
"""

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from oelm.errors import OelmError
from oelm.freezing.apply import restore
from oelm.freezing.projections import CONFIG_KEY, described_in
from oelm.models.kernels import vocabulary_loss
from oelm.models.known import KNOWN, family, named_config, read_config
from oelm.models.shape import GPTConfig

log = logging.getLogger("oelm")
OBJECTIVES = {
    "causal": "CausalLM",
    "masked": "MaskedLM",
    "seq2seq": "Seq2SeqLM",
    "classification": "SequenceClassification",
}
"""What each is called in the names of transformers' Auto classes."""
_OF_FAMILY = {"decoder": "causal", "encoder": "masked", "encoder-decoder": "seq2seq"}
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text")
"""Model types whose positions start after the padding id, so that they have room for fewer tokens than positions."""
PICKLED = "OELM_PICKLED_WEIGHTS"
"""Set to 1 to load weights that are no safetensors: unpickling a stranger's file is trusting the stranger."""


def stock_config(name: str, *, fresh: bool = False, overrides: Mapping[str, Any] | None = None) -> Any:
    """The configuration of a hub name, a model folder or a config.json; if fresh, also of a bare type (llama, t5)."""
    from transformers import CONFIG_MAPPING, AutoConfig

    bare = fresh and name in CONFIG_MAPPING and name not in KNOWN and not Path(name).exists()
    config = AutoConfig.for_model(name) if bare else named_config(name)[0]
    if not hasattr(config, "vocab_size"):
        raise OelmError(f"model {name} is a {config.model_type!r} model, which reads no text; give a language model")
    folder = Path(name)
    if not fresh and (folder.is_file() or (name in KNOWN and not folder.exists())):
        raise OelmError(
            f"{name} describes a model without its weights; add --fresh, or give its folder or hub name (OWNER/NAME)"
        )
    if not fresh and folder.is_dir() and not any(folder.glob("*.safetensors")) and os.environ.get(PICKLED) != "1":
        raise OelmError(
            f"model folder {name} has no safetensors; add --fresh to train it from scratch"
            f"{f' (or set {PICKLED}=1 if you trust its pickled weights)' if any(folder.glob('*.bin')) else ''}"
        )
    unknown = [key for key in overrides or {} if not hasattr(config, key)]
    if unknown:
        raise OelmError(f"model.overrides: a {config.model_type} has no setting {unknown[0]!r}; see its config.json")
    if overrides:
        # Of a bare type nothing is given: what follows from its sizes (head_dim) must follow from the new ones.
        given = {} if bare else config.to_diff_dict()
        kept = {key: value for key, value in given.items() if key not in ("model_type", "layer_types")}
        config = AutoConfig.for_model(config.model_type, **{**kept, **overrides})
    return config


def objective_of(config: Any, name: str, wanted: str | None, data: str) -> str:
    """What to train a model for: what is wanted, else what its data ("corpus", "pairs", "task") and family say."""
    import transformers

    usual = _OF_FAMILY[family(config)]
    possible = [
        objective
        for objective in (usual, "classification")
        if type(config) in getattr(transformers, f"AutoModelFor{OBJECTIVES[objective]}")._model_mapping
    ]
    objective = wanted or {"task": "classification", "pairs": "seq2seq"}.get(data, usual)
    if objective not in possible:
        kind = f"{'a' if usual == 'causal' else 'an'} {family(config)} ({config.model_type})"
        raise OelmError(
            f"{name} is {kind}, which cannot be trained as {objective}; possible: {', '.join(possible) or 'nothing'}"
        )
    wants = {"classification": ("task",), "seq2seq": ("pairs", "corpus")}.get(objective, ("corpus",))
    if data not in wants:
        how = {"task": "oelm data task", "corpus": "oelm data prepare", "pairs": "oelm data prepare --source-field"}
        raise OelmError(f"objective {objective} needs a prepared {' or '.join(wants)}, not a {data}: {how[wants[0]]}")
    return objective


def fit_to(config: Any, *, end: int, pad: int | None, vocab_size: int) -> Any:
    """The configuration of a fresh model, with the vocabulary of its data."""
    starts_with_end = getattr(config, "decoder_start_token_id", None) == config.eos_token_id is not None
    config.architectures = None  # its head is new, whatever the folder was trained for
    config.vocab_size, config.pad_token_id = vocab_size, pad
    for name in ("eos", "bos", "cls", "sep"):
        if hasattr(config, f"{name}_token_id"):
            setattr(config, f"{name}_token_id", end)
    if config.is_encoder_decoder:
        config.decoder_start_token_id = end if starts_with_end else pad
        config.forced_eos_token_id = None
    return config


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


def build(objective: str, config: Any, weights: str | Path | None) -> nn.Module:
    """The model with the weights of a folder or hub name, or with fresh ones."""
    import transformers
    from transformers.utils import logging as their_logging

    auto = getattr(transformers, f"AutoModelFor{OBJECTIVES[objective]}")
    their_logging.disable_progress_bar()  # also for every checkpoint to come
    verbosity = their_logging.get_verbosity()
    their_logging.set_verbosity_error()  # a new head is what we want, not news
    try:
        if weights is None or (described_in(weights) and not getattr(config, CONFIG_KEY, None)):
            model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
            model = model if weights is None else restore(model, weights)
        else:
            model, loaded = auto.from_pretrained(
                str(weights),
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=None if os.environ.get(PICKLED) == "1" else True,
            )
            _require_loaded(model, loaded, weights)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if weights is None:
            raise
        reason = " ".join(str(error).split())[:160]
        hint = f" with safetensors (or set {PICKLED}=1 if you trust pickled ones)" if "safetensors" in reason else ""
        raise OelmError(
            f"the weights of {weights} cannot be loaded ({reason}); give a complete model folder{hint}"
        ) from error
    finally:
        their_logging.set_verbosity(verbosity)
    return model if objective == "classification" else with_loss(model, causal=objective == "causal")


def _require_loaded(model: nn.Module, loaded: dict[str, Any], weights: str | Path) -> None:
    """A new head may be what is wanted, and is noted; a new body under the name of a pretrained one is not."""
    body = f"{getattr(model, 'base_model_prefix', '')}."
    if new := sorted(name for name in loaded["missing_keys"] if not name.startswith(body)):
        log.info("%s has no weights for %s: drawn anew", weights, ", ".join(new))
    missing = sorted(name for name in loaded["missing_keys"] if name.startswith(body) and ".pooler." not in name)
    missing += sorted(str(name) for name in loaded["mismatched_keys"])
    if missing:
        raise OelmError(
            f"the weights of {weights} lack {len(missing)} tensors of a {type(model).__name__} (first: {missing[0]}); "
            "give a complete model folder"
        )


class _LateHead(nn.Linear):
    """A head whose product with the vocabulary is left to the loss, which never holds all logits."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def with_loss(model: Any, *, causal: bool) -> nn.Module:
    """Have `model(inputs, targets)` give the mean cross-entropy; without targets it answers as before.

    `inputs` are ids or everything that the model reads, by name; among them `places` (B, K) says which outputs are
    asked for, otherwise all (B, T). Targets below 0 do not count.
    """
    own_forward = model.forward
    no_cache = {"use_cache": False} if "use_cache" in inspect.signature(own_forward).parameters else {}
    late = model.device.type != "meta" and _leave_head(model, causal)

    def forward(inputs: Tensor | dict[str, Tensor], targets: Tensor | None = None, **given: Any) -> Any:
        given |= inputs if isinstance(inputs, dict) else {"input_ids": inputs}
        places = given.pop("places", None)
        output = own_forward(**given, **no_cache)
        rows, head = output.logits, model.get_output_embeddings()  # (B, T, vocabulary), or the head's input (B, T, d)
        if targets is None:
            output.logits = F.linear(rows, head.weight, head.bias) if late else rows
            return output
        if places is not None:
            rows = rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))  # (B, K, …)
        rows, targets = rows.flatten(0, 1), targets.flatten()
        if not late:
            return F.cross_entropy(rows.float(), targets, ignore_index=-100)
        if head.bias is None:
            return vocabulary_loss(rows, head.weight, targets)
        ones = rows.new_ones(len(rows), 1)  # a bias is the weight of an input that is always 1
        return vocabulary_loss(torch.cat([rows, ones], 1), torch.cat([head.weight, head.bias[:, None]], 1), targets)

    model.forward = forward
    return model


@torch.no_grad()
def _leave_head(model: Any, causal: bool) -> bool:
    """Make the head a late one, if nothing but its product comes of it: no cap, no scale, no second bias.

    A few tokens tell. They tell as well whether a causal model sees what it should predict.
    """
    known = range(2, min(14, model.config.vocab_size))
    ids = torch.tensor([[i for i in known if i != model.config.pad_token_id]], device=model.device)
    given = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    was_training, head = model.training, model.get_output_embeddings()
    model.eval()
    try:
        logits = model(**given).logits
        half = ids.shape[1] // 2
        if causal and not torch.allclose(model(ids[:, :half]).logits, logits[:, :half], rtol=1e-3, atol=1e-3):
            raise OelmError(f"{type(model).__name__} sees the tokens that it should predict; it cannot train as causal")
        if type(head) is not nn.Linear:
            return False
        head.__class__ = _LateHead
        found = F.linear(model(**given).logits, head.weight, head.bias)
        same = found.shape == logits.shape and torch.allclose(found, logits, rtol=1e-4, atol=1e-5)
    except RuntimeError:  # what follows the head does not fit its input
        same = False
    finally:
        model.train(was_training)
    if not same:
        head.__class__ = nn.Linear
    return same
