"""How fast models write: tokens per second with a key–value cache, and its bytes, by how much was read before.

Ours runs as `generate()` runs it, beside Hugging Face's models of the same shape; reading the context (prefill) is
timed apart. Arms take turns as in `oelm.bench.ratios`; after a turn the cache is cut back to the context.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from oelm.bench.measure import Say, Shape, protocol_of
from oelm.bench.names import DECODERS, arm_name
from oelm.bench.ratios import FEWEST_ROUNDS, Step, interleave, ratio
from oelm.errors import OelmError
from oelm.freezing.apply import freeze
from oelm.freezing.methods import method
from oelm.freezing.projections import FixedProjection, has_shift
from oelm.models.export import to_stock
from oelm.models.gpt import GPT, GPTConfig
from oelm.models.huggingface import GPTForCausalLM, HFGPTConfig
from oelm.training.environment import environment, keep_freed_memory

CONTEXTS = (128, 1024, 4096)
TOKENS = 4  # written in one turn


def bench_decode(
    arms: Sequence[str],
    shape: Shape,
    *,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int = 24,
    device: torch.device,
    say: Say = lambda what, done, total: None,
) -> dict[str, Any]:
    """The arms side by side at every context; ratios are to the first of them. The result is plain JSON."""
    names = list(dict.fromkeys(arm_name(name, DECODERS) for name in arms))
    if rounds < FEWEST_ROUNDS:
        raise OelmError(f"{rounds} rounds decide nothing; use at least {FEWEST_ROUNDS}")
    if device.type == "cpu":
        keep_freed_memory()
    turns = {"prefill_rounds": FEWEST_ROUNDS, "tokens_per_turn": TOKENS}
    return {
        "shape": {**asdict(shape), "length": " / ".join(map(str, contexts))},
        "protocol": protocol_of(rounds, device) | turns,
        "environment": environment(str(device)),
        "reference": names[0],
        "contexts": {str(n): _at(n, names, replace(shape, length=n + TOKENS), rounds, device, say) for n in contexts},
    }


@torch.inference_mode()
def _at(context: int, names: list[str], shape: Shape, rounds: int, device: torch.device, say: Say) -> dict[str, Any]:
    read, write, held = {}, {}, {}
    ids = torch.randint(shape.vocab, (shape.batch, context + TOKENS), generator=torch.Generator().manual_seed(0))
    for name in names:
        say(f"building {name} for {context} tokens", 0, 0)
        model = build_decoder(name, shape.model()).to(device).eval()
        read[name], write[name], cache = _steps(model, ids.to(device), context)
        cached = sum(kept.nbytes for layer in cache.layers for kept in (layer.keys, layer.values))
        held[name] = {"cache_bytes": cached, "stream_bytes": _stream_bytes(model, shape.batch * context)}
    tell = lambda what: lambda done, total: say(f"{what} {context} tokens", done, total)  # noqa: E731
    reading = interleave(read, rounds=FEWEST_ROUNDS, warmup=1, watch=tell("reading"))
    writing = interleave(write, rounds=rounds, watch=tell("writing after"))
    found = {}
    for name in names:
        prefill, decode = (ratio(times[name], times[names[0]]) for times in (reading, writing))
        found[name] = {
            "tokens_per_second": TOKENS * shape.batch / decode["median_seconds"],
            **decode,
            "prefill_tokens_per_second": context * shape.batch / prefill["median_seconds"],
            "prefill": prefill,
            **held[name],
            "seconds": writing[name].tolist(),
        }
    found[names[0]]["verdict"] = "reference"
    return found


def build_decoder(name: str, config: GPTConfig) -> Any:
    """A method on our GPT behind transformers' classes, or a stock model of the same shape, with fresh weights."""
    torch.manual_seed(0)
    if name == "llama":  # whose FFN has three matrices instead of two
        config = replace(config, positions="rotary", norm="rms", ffn="swiglu", d_ff=2 * config.d_ff // 3)
    if name in DECODERS:
        logging.set_verbosity_error()  # their special tokens lie beyond a small vocabulary
        return to_stock(GPT(config))
    model = GPTForCausalLM(HFGPTConfig(**asdict(config.with_architecture(method(name).architecture))))
    freeze(model, name)
    if has_shift(model):
        raise OelmError(f"arm {name!r} shifts tokens, which no cache holds; leave it out of --decode")
    return model


def _steps(model: Any, ids: torch.Tensor, context: int) -> tuple[Step, Step, Any]:
    """Reading the context, writing a few tokens after it, and the cache that was filled by reading."""
    mask = torch.ones_like(ids)

    def forward(start: int, end: int, cache: Any) -> Any:
        given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        found = model(ids[:, start:end], **given)
        if ids.device.type == "cuda":
            torch.cuda.synchronize(ids.device)
        return found.past_key_values

    cache = forward(0, context, None)

    def write(number: int) -> None:
        for at in range(context, context + TOKENS):
            forward(at, at + 1, cache)
        cache.crop(-TOKENS)

    return lambda number: forward(0, context, None), write, cache


def _stream_bytes(model: nn.Module, tokens: int) -> int | None:
    """What a cache of the stream would take; None where keys are no fixed map of it."""
    blocks: Any = getattr(getattr(model, "gpt", None), "blocks", ())
    if not blocks or not all(isinstance(getattr(one.attention, "key", None), FixedProjection) for one in blocks):
        return None
    return 4 * tokens * sum(one.attention.key.in_features for one in blocks)
