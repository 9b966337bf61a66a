"""Peak memory of training steps: what `oelm inspect` predicts, what is measured, and Hugging Face GPT-2 beside it.

    python benchmarks/peak_memory.py [--batches 2,4,8] [--length 512] [--vocab 50257] [--dropout 0] [--json]
    python benchmarks/peak_memory.py --claim      # medium-512, 8 × 512 tokens: at most 55 % of GPT-2's, no slower

Every case runs in a process of its own for two steps (the first makes the optimizer's moments) and counts the most
that this process ever held, less what it held with all libraries loaded. Memory does not mind a busy machine.
"""

import argparse
import json
from typing import Any

from oelm.bench.footprint import measure
from oelm.bench.protocol import Shape
from oelm.costs.inspection import inspect_gpt

CLAIM, CLAIM_LIMIT, LOSS_TOLERANCE = Shape("medium-512", batch=8, length=512, vocab=50_257), 0.55, 1e-5
TIME_LIMIT, TIME_ROUNDS = 1.03, 6


def prediction(shape: Shape, method: str = "baseline") -> dict[str, Any]:
    """What `oelm inspect` says of the memory of a training step."""
    facts = inspect_gpt(
        shape.size,
        method,
        batch_size=shape.batch,
        vocab_size=shape.vocab,
        dropout=shape.dropout,
        max_seq_len=shape.model().max_seq_len,
    )
    return facts["training_memory"]


def compare(shape: Shape, method: str = "baseline") -> dict[str, Any]:
    """Predicted and measured bytes of one case."""
    predicted, live = (prediction(shape, method)[key] for key in ("peak_bytes", "live_bytes"))
    measured = measure(method, shape)["bytes"]
    case = {"size": shape.size, "batch": shape.batch, "live": live, "predicted": predicted, "measured": measured}
    return {**case, "error": predicted / measured - 1}


def claim() -> dict[str, Any]:
    """Our step against GPT-2's at the same shape, and our loss in chunks against the loss over all logits."""
    ours, theirs = (measure(arm, CLAIM)["bytes"] for arm in ("baseline", "gpt2"))
    return {
        "baseline": ours,
        "gpt2": theirs,
        "ratio": ours / theirs,
        "limit": CLAIM_LIMIT,
        "loss_difference": loss_difference(CLAIM),
        "loss_tolerance": LOSS_TOLERANCE,
        "time": time_ratio(CLAIM),
        "time_limit": TIME_LIMIT,
    }


def loss_difference(shape: Shape) -> float:
    import torch
    import torch.nn.functional as F

    from oelm.models.gpt import GPT

    torch.manual_seed(0)
    model = GPT(shape.model())
    ids = torch.randint(shape.vocab, (3, shape.model().max_seq_len + 1))  # several chunks
    with torch.no_grad():
        whole = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        return abs(model(ids[:, :-1], ids[:, 1:]).item() - whole.item())


def time_ratio(shape: Shape) -> dict[str, Any]:
    """Step time with the loss in chunks over the same model's with all logits at once, interleaved."""
    import torch
    import torch.nn.functional as F

    from oelm.bench.arms import random_text, training_step
    from oelm.bench.interleaved import interleave, ratio
    from oelm.models.gpt import GPT
    from oelm.training.environment import keep_freed_memory
    from oelm.training.optimizer import build_optimizer
    from oelm.training.timing import StepTimer

    class AllLogits(GPT):
        def forward(self, input_ids: Any, targets: Any = None) -> Any:
            return F.cross_entropy(super().forward(input_ids).flatten(0, 1), targets.flatten())

    keep_freed_memory()
    device, settings, steps = torch.device("cpu"), shape.settings(), {}
    for name, kind in (("whole", AllLogits), ("chunks", GPT)):
        model = kind(shape.model())
        text = random_text(shape.vocab, shape.model().max_seq_len, settings, device)
        optimizer = build_optimizer(model, settings, fused=True)
        steps[name] = training_step(model, optimizer, settings, text, StepTimer(device, 0))
    seconds = interleave(steps, rounds=TIME_ROUNDS)
    return ratio(seconds["chunks"], seconds["whole"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,small,medium-512")
    parser.add_argument("--batches", default="2,4,8")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--claim", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if options.claim:
        found = claim()
        print(json.dumps(found, indent=2) if options.json else _claim_text(found))
        return
    if not options.json:
        print(f"{options.length} tokens, vocabulary {options.vocab:,}, dropout {options.dropout:g}; MB")
        print(f"{'size':12s} {'batch':>5s} {'live':>8s} {'predicted':>10s} {'measured':>9s} {'error':>7s}")
    for size in options.sizes.split(","):
        for batch in map(int, options.batches.split(",")):
            row = compare(Shape(size, batch, options.length, options.vocab, options.dropout))
            print(json.dumps(row) if options.json else _row_text(row), flush=True)


def _row_text(row: dict[str, Any]) -> str:
    live, predicted, measured = (f"{row[key] / 1e6:.0f}" for key in ("live", "predicted", "measured"))
    return f"{row['size']:12s} {row['batch']:5d} {live:>8s} {predicted:>10s} {measured:>9s} {row['error']:+7.1%}"


def _claim_text(found: dict[str, Any]) -> str:
    verdict = "within" if found["ratio"] <= found["limit"] else "ABOVE"
    time = found["time"]
    in_time = "within" if time["ratio"] <= found["time_limit"] else "ABOVE"
    return (
        f"medium-512, 8 × 512 tokens, vocabulary 50,257: ours {found['baseline'] / 1e6:,.0f} MB, GPT-2 "
        f"{found['gpt2'] / 1e6:,.0f} MB, ratio {found['ratio']:.3f}, {verdict} limit {found['limit']:.2f}\n"
        f"loss in chunks differs by {found['loss_difference']:.1e} (limit {found['loss_tolerance']:.0e})\n"
        f"step time with chunks / with all logits: {time['ratio']:.3f} [{time['low']:.3f}, {time['high']:.3f}], "
        f"{in_time} limit {found['time_limit']:.2f}"
    )


if __name__ == "__main__":
    main()
