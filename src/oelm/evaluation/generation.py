"""Text from a language model, through transformers' own generate() with a key–value cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from oelm.errors import OelmError
from oelm.evaluation.subjects import Subject, load
from oelm.training import checkpoints


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
    import torch

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
