"""Training step of our GPT against Hugging Face GPT-2 of the same shape, and of the frozen arm against our baseline.

    python benchmarks/step_time.py [--rounds 12] [--json]

Everything runs in one process, interleaved A-B-C-C-B-A, float32, SDPA on both sides, no dropout, AdamW, clipping at 1.
Peak memory is measured in a process of its own for each arm, because a process never gives memory back reliably.
"""

import argparse
import json
import subprocess
import sys

import torch

import oelm
from oelm.inspection import model_flops
from oelm.training.arms import training_step
from oelm.training.config import TrainingSection
from oelm.training.environment import peak_memory_bytes
from oelm.training.interleaved import Step, interleave, ratio

WIDTH, LAYERS, HEADS, LENGTH, BATCH, VOCABULARY = 512, 6, 8, 512, 4, 4096
OURS_LIMIT, FROZEN_MARGIN = 0.75, 0.02
ARMS = ("gpt2", "gpt2_fused", "baseline", "oelm_freeze")
"""GPT-2 with AdamW as torch gives it by default, and with the fused AdamW that our trainer uses."""


def gpt2_step(tokens: torch.Tensor, settings: TrainingSection, fused: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.max_lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=fused,
    )

    def step() -> float:
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def build(arm: str) -> tuple[Step, int]:
    """A ready step and its matmul FLOPs per token (0 where we do not count them)."""
    torch.manual_seed(0)
    settings = TrainingSection(max_steps=1000)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    if arm.startswith("gpt2"):
        return gpt2_step(tokens[:, :-1].contiguous(), settings, fused=arm == "gpt2_fused"), 0
    model = oelm.GPT(
        oelm.GPTConfig(
            vocab_size=VOCABULARY, d_model=WIDTH, num_layers=LAYERS, num_heads=HEADS, d_ff=4 * WIDTH,
            max_seq_len=LENGTH, dropout=0.0,
        )
    )  # fmt: skip
    oelm.freeze(model, arm)
    flops = model_flops(model, sequence_length=LENGTH, causal=True).step
    return training_step(model, settings, tokens[:, :-1], tokens[:, 1:]), flops


def peak_memory(arm: str) -> int:
    """Bytes that three steps of one arm need beyond what the libraries take, in a process of its own."""
    program = f"import sys; sys.path.insert(0, {str(sys.path[0])!r}); import step_time; step_time.print_peak({arm!r})"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def print_peak(arm: str) -> None:
    import transformers  # noqa: F401 - both sides pay for it, so that only the step differs

    before = peak_memory_bytes()
    step, _ = build(arm)
    for _ in range(3):
        step()
    print(peak_memory_bytes() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    built = {arm: build(arm) for arm in ARMS}
    seconds = interleave({arm: step for arm, (step, _) in built.items()}, rounds=arguments.rounds)
    saving = 1 - built["oelm_freeze"][1] / built["baseline"][1]
    memory = {arm: peak_memory(arm) for arm in ARMS}
    facts = {
        "shape": f"{WIDTH} wide, {LAYERS} layers, {BATCH} × {LENGTH} tokens, vocabulary {VOCABULARY}",
        "threads": torch.get_num_threads(),
        "baseline / gpt2": {**ratio(seconds["baseline"], seconds["gpt2"]), "limit": OURS_LIMIT},
        "baseline / gpt2_fused": {**ratio(seconds["baseline"], seconds["gpt2_fused"]), "limit": OURS_LIMIT},
        "oelm_freeze / baseline": {
            **ratio(seconds["oelm_freeze"], seconds["baseline"]),
            "limit": 1 - saving + FROZEN_MARGIN,
            "predicted_by_flops": 1 - saving,
        },
        "peak_memory_bytes": memory,
        "memory baseline / gpt2": memory["baseline"] / memory["gpt2"],
        "memory oelm_freeze / baseline": memory["oelm_freeze"] / memory["baseline"],
    }
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return
    print(facts["shape"], f"({facts['threads']} threads)")
    for name in ("baseline / gpt2", "baseline / gpt2_fused", "oelm_freeze / baseline"):
        row = facts[name]
        verdict = "within" if row["ratio"] <= row["limit"] else "ABOVE"
        print(
            f"{name:24s} {row['ratio']:.3f}  [{row['low']:.3f}, {row['high']:.3f}]  {verdict} limit {row['limit']:.3f}"
            + (f", FLOPs predict {row['predicted_by_flops']:.3f}" if "predicted_by_flops" in row else "")
        )
    for arm, size in memory.items():
        print(f"peak memory of {arm:12s} {size / 1e6:8.0f} MB, {size / memory['gpt2']:.2f} of gpt2's")


if __name__ == "__main__":
    main()
