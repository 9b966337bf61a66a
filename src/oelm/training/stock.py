"""The parts of a run with a model of transformers: what fits it, and what it is trained for."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from oelm.data.labelled import TaskData
from oelm.data.masking import spans
from oelm.data.tokenization import SPECIAL, Marks, load_tokenizer, template_hash, tokenizer_hash
from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.models import stock
from oelm.training import setup
from oelm.training.classification import Translation
from oelm.training.config import RunConfig
from oelm.training.distributed import World
from oelm.training.objectives import Denoising, LanguageModelling, MaskedModelling, Objective
from oelm.training.setup import LONGEST_UNASKED, Data, Parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WRITES_ALL = ("bart", "mbart")
"""Types of models that write a whole block again, whatever marks the tokenizer has for hidden spans."""
_VOCABULARIES = ("tokenizer*", "vocab*", "*.model", "*.vocab")


def stock_parts(config: RunConfig, data: Data, device: torch.device, world: World) -> Parts:
    section = config.model
    name, fresh = setup.model_folder(str(section.name), config.method_name, config.seed), section.fresh
    frozen = None if fresh else setup.frozen_by(name, config)
    shape = stock.stock_config(name, fresh=fresh, overrides=section.overrides)
    kind = "corpus" if isinstance(data, TokenData) else "pairs" if data.is_pairs else "task"
    chosen = stock.objective_of(shape, name, section.objective, kind)
    if fresh:
        marks = Marks.of(load_tokenizer(data.tokenizer_path))
        size = section.overrides.get("vocab_size", data.vocab_size)
        shape = stock.fit_to(shape, end=marks.end, pad=marks.pad, vocab_size=size)
    start_from = None if fresh else name
    if isinstance(data, TaskData) and kind == "task":
        section.objective = None  # the data say it; so records are as before
        shape = stock.encoder_config(name, data.classes, shape)
        return replace(setup.classifier_parts(config, data, device, world, shape, start_from), frozen_by=frozen)
    section.objective = chosen  # type: ignore[assignment]
    require_fit(shape, name, data, fresh=fresh)
    objective = _objective(chosen, shape, config, data, {"seed": config.seed, "device": device, "world": world})
    return Parts(config, data, objective, device, partial(stock.build, chosen, shape), start_from, world, frozen)


def _objective(chosen: str, shape: Any, config: RunConfig, data: Data, how: dict[str, Any]) -> Objective:
    marks = Marks.of(load_tokenizer(data.tokenizer_path))
    start = getattr(shape, "decoder_start_token_id", None)
    start = shape.pad_token_id if start is None else start
    if isinstance(data, TaskData):
        _require_marks(marks, data, pad=shape.pad_token_id)
        setup.with_steps(config, data)
        return Translation(data, config.training, start=start, pad_id=shape.pad_token_id, **how)
    room = stock.longest_input(shape)  # models of today have room for more than anybody asks for
    how["length"] = length = setup.block_length(config, room, unasked=min(room or LONGEST_UNASKED, LONGEST_UNASKED))
    if chosen == "causal":
        return LanguageModelling(data, config.training, **how)
    if chosen == "masked":
        _require_marks(marks, data, pad=shape.pad_token_id, mask=marks.mask)
        return MaskedModelling(data, config.training, marks, **how)
    if shape.model_type in WRITES_ALL and marks.mask is not None:
        marks = replace(marks, sentinels=[])
    spans_marked = {} if marks.sentinels else {"mask": marks.mask}
    _require_marks(marks, data, pad=shape.pad_token_id, **spans_marked)
    hidden, count = spans(length)
    if length - hidden < count or (marks.sentinels and count > len(marks.sentinels)):
        raise OelmError(
            f"sequence_length {length} cannot hide {count} spans with the {len(marks.sentinels)} sentinels of "
            f"{data.path}; choose another length"
        )
    return Denoising(data, config.training, marks, start, **how)


def _require_marks(marks: Marks, data: Data, **needed: int | None) -> None:
    lacking = [name for name, token in needed.items() if token is None]
    if lacking:
        raise OelmError(
            f"the tokenizer of {data.path} has no {' and no '.join(lacking)} token, which this objective needs; "
            f"prepare the data with the model's own tokenizer, or train one that has it: --tokenizer bpe:4096{SPECIAL}"
        )


def require_fit(shape: Any, model: str | None, data: Data, *, fresh: bool) -> None:
    """Refuse data that the model cannot read: another tokenizer, ids out of range, longer texts."""
    name = model or "the model"
    if model and not fresh and (own := _own_tokenizer(model)):
        if tokenizer_hash(own) != data.tokenizer_hash:
            raise OelmError(
                f"the data were tokenised with tokenizer {data.tokenizer_hash[:12]}, but {model} has "
                f"{tokenizer_hash(own)[:12]}; prepare the data again with --tokenizer {model}"
            )
        if isinstance(data, TaskData) and data.template_hash not in (None, template_hash(own)):
            raise OelmError(
                f"the data have other special tokens than {model} adds; prepare the task again with --tokenizer {model}"
            )
    if data.vocab_size > shape.vocab_size:
        raise OelmError(
            f"the data's tokenizer has {data.vocab_size} ids, but {name} only {shape.vocab_size}; "
            "prepare the data again with the model's own tokenizer, or train the model --fresh"
        )
    room = stock.longest_input(shape)
    if room is not None and not isinstance(data, TokenData) and data.longest > room:
        raise OelmError(
            f"the data have texts of {data.longest} tokens, but {name} reads at most {room}; "
            f"prepare the data again with --max-length {room}"
        )


def _own_tokenizer(model: str) -> "Tokenizer | None":
    """The tokenizer that the model comes with; None if it comes without one."""
    folder = Path(model)
    files = [file for name in _VOCABULARIES for file in folder.glob(name)]
    try:  # for a folder without a vocabulary transformers would invent one
        return load_tokenizer(model) if files or not folder.is_dir() else None
    except OelmError:
        return None
