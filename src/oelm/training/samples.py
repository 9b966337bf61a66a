"""Texts that a model writes while it is being trained: one at every validation, kept in `samples.jsonl`."""

from collections.abc import Callable
from typing import Any

import torch

from oelm.data.tokenization import end_of_text_id, load_tokenizer
from oelm.errors import OelmError
from oelm.training.setup import Parts

LONGEST = 60
"""Tokens of a sample."""


def sampler(parts: Parts) -> Callable[[Any], str] | None:
    """What lets a model write after the run's `sample` prompt, or None if none is asked for (here).

    The likeliest token each time: nothing is drawn, so a run with samples computes what one without them computes.
    """
    prompt = parts.config.runtime.sample
    if prompt is None:
        return None
    if (
        parts.config.model.objective not in (None, "causal")
        or parts.objective.headline != "perplexity"
        or parts.config.runtime.strategy == "fsdp"
    ):
        raise OelmError(f"sample {prompt!r} needs a language model that is whole in one process: no task and no fsdp")
    if not parts.world.leads:
        return None
    tokenizer = load_tokenizer(parts.data.tokenizer_path)
    end = end_of_text_id(tokenizer)
    given = [end, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    context = parts.objective.tokens_per_batch // parts.config.training.batch_size

    @torch.no_grad()
    def write(model: Any) -> str:
        ids = list(given)
        for _ in range(LONGEST):
            inputs = torch.tensor([ids[-context:]], device=parts.device)
            scores = (
                model.head(model.hidden(inputs)[:, -1]) if hasattr(model, "hidden") else model(inputs).logits[:, -1]
            )
            ids.append(int(scores[0].argmax()))
            if ids[-1] == end:
                break
        return tokenizer.decode([token for token in ids[len(given) :] if token != end])

    return write
