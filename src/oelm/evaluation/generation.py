"""Text from a language model, through transformers' own generate() with a key–value cache; and what it is like."""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.evaluation.perplexity import nats
from oelm.evaluation.subjects import Subject, load
from oelm.training import checkpoints

AT_ONCE = 64
REPEATED = 4  # a text repeats itself where so many words in a row were in it before
READ = "validation text"


def generate(run: str | Path, prompt: str = "", *, which: str = checkpoints.BEST, **how: Any) -> str:
    """What the model of a run, a checkpoint, a model folder or the hub writes after `prompt`; `how` as in `write`."""
    return write(load(run, which), prompt, **how)[0]


def write(
    subject: Subject,
    prompt: str = "",
    *,
    tokens: int = 120,
    temperature: float = 0.8,
    top_k: int = 50,
    top_p: float = 1.0,
    seed: int = 0,
    batch: int = 1,
    stream: Callable[[str], None] | None = None,
) -> list[str]:
    """`batch` continuations, each up to the end of its document; `stream` gets the only one word by word."""
    # Documents are separated by the end mark, so after one the model expects a document to begin.
    ids = subject.encode(prompt)
    room = subject.context - len(ids)
    if room < 1:
        raise OelmError(
            f"the prompt has {len(ids)} tokens, the model's context is {subject.context}; shorten the prompt"
        )
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    given, end = torch.tensor([ids] * batch), subject.end
    output = subject.model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=min(tokens, room),
        eos_token_id=end,
        pad_token_id=end,
        streamer=_streamer(subject, stream) if stream else None,
        **(sampling if temperature > 0 else {"do_sample": False}),
    )
    written = ([token for token in row[len(ids) :] if token != end] for row in output.tolist())
    return [subject.tokenizer.decode(tokens) for tokens in written]


def _streamer(subject: Subject, stream: Callable[[str], None]) -> Any:
    from transformers import TextStreamer

    how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    streamer: Any = TextStreamer(subject.wrapped(), skip_prompt=True, **how)
    streamer.on_finalized_text = lambda text, stream_end=False: stream(text)
    return streamer


def quality(
    subject: Subject, *, prompt: str, samples: int, tokens: int, seed: int, reference: Subject | None, **how: Any
) -> dict[str, Any]:
    """Figures of `samples` texts, beside those of as many beginnings of the documents that the run was validated on."""
    texts: list[str] = []
    while len(texts) < samples:
        more = min(AT_ONCE, samples - len(texts))
        texts += write(subject, prompt, tokens=tokens, seed=seed + len(texts), batch=more, **how)
    read = _validation_texts(subject, samples, tokens)
    return {
        **{"name": "generation", "prompt": prompt, "samples": samples, "tokens": tokens, "seed": seed, **how},
        "reference": reference and reference.name,
        "headlines": figures(texts, reference),
        "beside": {READ: figures(read, reference)} if read else {},
        "texts": texts[:3],
    }


def figures(texts: Sequence[str], reference: Subject | None = None) -> dict[str, float]:
    """Distinct-n: how many of all runs of n words, over all texts, are different ones.

    >>> found = figures(["a b a b a b a b", "c"])
    >>> found["distinct-1 %"], found["repetition %"], found["words per text"]
    (33.333333333333336, 60.0, 4.5)
    """
    words = [text.split() for text in texts]
    found = {"words per text": sum(map(len, words)) / len(words)}
    for size in (1, 2, 3):
        runs = [run for text in words for run in _runs(text, size)]
        if runs:
            found[f"distinct-{size} %"] = 100 * len({*runs}) / len(runs)
    long = [_runs(text, REPEATED) for text in words]
    if any(long):
        found["repetition %"] = 100 * (1 - sum(len({*runs}) for runs in long) / sum(map(len, long)))
    if reference is not None:
        ids = [reference.encode(text) for text in texts if text.strip()]
        count, stride = sum(map(len, ids)) - len(ids), max(1, reference.context // 2)
        if count:
            spent = sum(nats(reference, one, stride) for one in ids if len(one) > 1)
            found["reference perplexity"] = math.exp(min(spent / count, 700.0))
    return found


def _runs(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def _validation_texts(subject: Subject, samples: int, tokens: int) -> list[str]:
    """Beginnings of documents, evenly spread; none if the run's data are not there any more."""
    if subject.run is None:
        return []
    try:
        data = TokenData.open(subject.run.config()["data"]["path"])
    except OelmError:
        return []
    end = data.end_of_text_id
    ends = np.flatnonzero(data.validation == end)
    starts = np.concatenate(([0], ends + 1))[: len(ends) or 1]
    chosen = starts[np.linspace(0, len(starts), min(samples, len(starts)), endpoint=False).astype(int)]
    documents = (takewhile(lambda token: token != end, data.validation[at : at + tokens].tolist()) for at in chosen)
    return [subject.tokenizer.decode(list(one)) for one in documents]
