"""Peak memory of a training step, from what autograd keeps. Pure arithmetic; what trains is counted elsewhere.

With N = batch · length tokens, u = N·d_model and f = N·d_ff numbers, a block keeps for its backward pass

- 8 u: its input and the input of its second half (those two in float32 under autocast), both of them normalised,
  queries, keys, values and the joined heads;
- 2 f: the wide layer before and after GELU, and 16·N bytes of means and deviations;
- attention: one number per query and head (torch's fused kernels), or the probabilities: of the lower triangle in
  blocks of 128 queries (our GPT training in float32 on a CPU, with dropout or more than 128 tokens), or of the whole
  square three times over (torch on a CPU, with dropout);
- with dropout one byte for every number it falls on (torch on a CPU: its input and its noise, in float32).

With gradient checkpointing a block keeps its input only, and one block at a time is computed again.
What is alive when the most is alive is the largest of four moments, on top of weights, AdamW's moments, half-precision
copies of the weights under autocast, and the gradients if several micro-batches or devices share them:

- in the loss: all blocks, last hidden state, its normalised form and its gradient, the gradient of the vocabulary
  matrix, one chunk of logits and of log-probabilities;
- where the loss hands over its gradients: the vocabulary gradient twice, no chunks;
- in the backward pass of the last block: all blocks and the gradients of its wide layer;
- at the end: the gradients of everything that trains, and that of the vocabulary matrix once more (it is tied).

A classifier has no loss over a vocabulary. Not counted: Python, torch and other libraries themselves (about 0.3 GB on a
CPU), the data, and CUDA's context.

>>> tiny = Blocks(d_model=256, num_layers=4, num_heads=4, d_ff=1024, vocab_size=4096)
>>> step = Step(batch=4, length=512)
>>> training_memory(tiny, step, parameters=4_335_104, trainable=4_335_104).live_bytes // 10**6
255
"""

from dataclasses import dataclass

ATTENTION_BLOCK = 128
LOSS_CHUNK_ROWS = 512  # both as in `oelm.models.kernels`, which needs torch; a test compares them
ALLOCATOR_FACTOR = 1.21
"""What a CPU process holds beyond live tensors: holes in the heap. Measured (`oelm bench --memory`): 1.15 to 1.26
without gradient checkpointing; with it the holes weigh more, up to 1.8."""


@dataclass(frozen=True)
class Bytes:
    """What one number takes, by what it is for."""

    weight: int
    gradient: int
    optimizer: int
    activation: int
    stream: int  # the residual stream, which autocast leaves in float32
    copy: int = 0  # a half-precision copy of every weight, which autocast keeps until the backward pass


PRECISIONS = {
    "fp32": Bytes(4, 4, 8, 4, 4),
    "bf16": Bytes(4, 4, 8, 2, 4, copy=2),
    "fp16": Bytes(4, 4, 8, 2, 4, copy=2),
    "mixed": Bytes(2, 2, 12, 2, 2),
}
"""fp32, bf16 and fp16 as our trainer has them (autocast); mixed: bfloat16 weights with float32 copies beside AdamW."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a model, as far as memory goes; `vocab_size` is 0 where there is no loss over a vocabulary."""

    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int
    vocab_size: int
    dropout: float = 0.0
    ffn_dropout: bool = False
    gated: bool = False  # SwiGLU, whose wide layer keeps its gate and both factors as well
    qk_width: int = 0  # channels of all queries; 0: d_model
    ours: bool = True  # our GPT with its own kernels, or a model of torch's own parts


@dataclass(frozen=True)
class Step:
    """One micro-batch of a training step, and where it runs."""

    batch: int
    length: int
    precision: str = "fp32"
    checkpointing: bool = False
    accumulates: bool = False  # whether gradients are there already: of other micro-batches, or in DDP's buckets
    cpu: bool = True


@dataclass(frozen=True)
class Memory:
    """Every part in bytes; `live_bytes` is the most that tensors hold at once, `peak_bytes` what a process holds."""

    batch_size: int
    sequence_length: int
    gradient_checkpointing: bool
    precision: str
    weights: int
    optimizer: int
    gradients: int
    activations: int
    loss_chunks: int
    highest_moment: str
    highest_bytes: int  # what is alive at that moment beside weights, optimizer and resident gradients
    live_bytes: int
    peak_bytes: int


def training_memory(blocks: Blocks, step: Step, parameters: int, trainable: int) -> Memory:
    size = PRECISIONS[step.precision]
    weights, optimizer, gradients = size.weight * parameters, size.optimizer * trainable, size.gradient * trainable
    moments = _moments(blocks, step, size, size.copy * parameters, gradients)
    highest = max(moments, key=lambda name: moments[name])
    live = weights + optimizer + moments[highest] + (gradients if step.accumulates else 0)
    return Memory(
        batch_size=step.batch,
        sequence_length=step.length,
        gradient_checkpointing=step.checkpointing,
        precision=step.precision,
        weights=weights,
        optimizer=optimizer,
        gradients=gradients,
        activations=_kept_by_blocks(blocks, step, size),
        loss_chunks=_chunks(blocks, step),
        highest_moment=highest,
        highest_bytes=moments[highest],
        live_bytes=live,
        peak_bytes=round(live * (ALLOCATOR_FACTOR if step.cpu else 1.0)),
    )


def _moments(blocks: Blocks, step: Step, size: Bytes, copies: int, gradients: int) -> dict[str, int]:
    """Bytes alive beside weights, optimizer and resident gradients, at the four moments that can be the highest."""
    tokens = step.batch * step.length
    unit, wide = size.stream * tokens * blocks.d_model, size.activation * tokens * blocks.d_ff
    vocabulary = size.gradient * blocks.vocab_size * blocks.d_model
    embedding = tokens * blocks.d_model if blocks.dropout else 0
    kept = copies + embedding + _kept_by_blocks(blocks, step, size)
    again = _kept_by_block(blocks, step, size) if step.checkpointing else 0
    matrices = 2 * size.gradient * blocks.d_model * blocks.d_ff
    return {
        "loss": kept + 3 * unit + vocabulary + _chunks(blocks, step),
        "handover": kept + 3 * unit + 2 * vocabulary,
        "backward": kept + again + 2 * unit + wide + vocabulary + matrices,
        "end": (0 if step.accumulates else gradients) + vocabulary,
    }


def _kept_by_blocks(blocks: Blocks, step: Step, size: Bytes) -> int:
    """What all blocks keep for the backward pass."""
    if step.checkpointing:
        return blocks.num_layers * size.stream * step.batch * step.length * blocks.d_model
    return blocks.num_layers * _kept_by_block(blocks, step, size)


def _kept_by_block(blocks: Blocks, step: Step, size: Bytes) -> int:
    tokens, qk = step.batch * step.length, blocks.qk_width or blocks.d_model
    # Two normalised inputs, values and joined heads; queries and keys; the wide layer.
    numbers = 4 * blocks.d_model + 2 * qk + (4 if blocks.gated else 2) * blocks.d_ff
    kept = tokens * (2 * size.stream * blocks.d_model + size.activation * numbers + 16)
    if blocks.dropout:
        kept += tokens * blocks.d_ff * blocks.ffn_dropout
        kept += 2 * tokens * blocks.d_model * (1 if blocks.ours or not step.cpu else 2 * size.stream)
    return kept + _attention_table(blocks, step)


def _attention_table(blocks: Blocks, step: Step) -> int:
    """What one layer's attention keeps beside queries, keys, values and its output."""
    heads, length = step.batch * blocks.num_heads, step.length
    on_cpu = step.cpu and step.precision == "fp32"
    if on_cpu and not blocks.ours and blocks.dropout:
        return 3 * 4 * heads * length * length
    if not on_cpu or not blocks.ours or (length <= ATTENTION_BLOCK and not blocks.dropout):
        return 4 * heads * length
    starts = range(0, length, ATTENTION_BLOCK)
    ends = [min(start + ATTENTION_BLOCK, length) for start in starts]
    each = 4 + 1 if blocks.dropout else 4
    return each * heads * sum((end - start) * end for start, end in zip(starts, ends, strict=True))


def _chunks(blocks: Blocks, step: Step) -> int:
    """Logits and log-probabilities of one chunk."""
    return 2 * 4 * min(step.batch * step.length, LOSS_CHUNK_ROWS) * blocks.vocab_size
