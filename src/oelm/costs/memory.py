"""Peak memory of a training step of our GPT, from what autograd keeps. Pure arithmetic, float32, one process.

With N = batch · length tokens, u = 4·N·d_model and f = 4·N·d_ff bytes, a block keeps for its backward pass

- 8 u: its input, both normalised inputs, queries, keys, values, the joined heads, the input of the second half;
- 2 f: the wide layer before and after GELU, and 16·N bytes of means and deviations;
- attention: the probabilities of the lower triangle in blocks of 128 queries (training on a CPU, with dropout or more
  than 128 tokens), or one number per query and head (torch's kernel, elsewhere);
- with dropout one byte for every number it falls on: those probabilities, and twice N·d_model on the residuals.

With gradient checkpointing a block keeps its input only, u, and one block at a time is computed again.
What is alive when the most is alive is the largest of four moments, on top of the weights and AdamW's two moments:

- in the loss: all blocks, last hidden state, its normalised form and its gradient, the gradient of the vocabulary
  matrix, one chunk of logits and of log-probabilities;
- where the loss hands over its gradients: the vocabulary gradient twice, no chunks;
- in the backward pass of the last block: all blocks and the gradients of its wide layer;
- at the end: the gradients of everything that trains, and that of the vocabulary matrix once more (it is tied).

Not counted: Python, torch and other libraries themselves (about 0.3 GB on a CPU), the data, and CUDA's context.

>>> from types import SimpleNamespace
>>> tiny = SimpleNamespace(
...     vocab_size=4096, d_model=256, num_layers=4, num_heads=4, d_ff=1024, max_seq_len=512, dropout=0.0
... )
>>> parts = training_memory(tiny, parameters=4_335_104, trainable=4_335_104, batch=4, length=512)
>>> parts["live_bytes"] // 10**6
255
"""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

FLOAT = 4
ATTENTION_BLOCK = 128
LOSS_CHUNK_ROWS = 512
"""Both as in `oelm.models.kernels`, which needs torch; a test compares them."""
ALLOCATOR_FACTOR = 1.21
"""What the process holds beyond live tensors: holes in the heap. Measured
(`oelm bench --memory`): 1.15 to 1.26 without gradient checkpointing; with it the holes weigh more, up to 1.8."""


class Shape(Protocol):
    """What is asked of a `GPTConfig`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def d_ff(self) -> int: ...
    @property
    def dropout(self) -> float: ...


@dataclass(frozen=True)
class Moments:
    """Bytes alive beside weights and optimizer, at the four moments that can be the highest."""

    loss: int
    handover: int
    backward: int
    end: int


def training_memory(
    shape: Shape,
    *,
    parameters: int,
    trainable: int,
    batch: int,
    length: int,
    checkpointing: bool = False,
    cpu: bool = True,
) -> dict[str, Any]:
    """Every part in bytes; `live_bytes` is the most that tensors hold, `peak_bytes` what the process will hold."""
    moments = _moments(shape, trainable, batch, length, checkpointing, cpu)
    weights, optimizer = FLOAT * parameters, 2 * FLOAT * trainable
    highest = max(asdict(moments), key=lambda name: getattr(moments, name))
    live = weights + optimizer + getattr(moments, highest)
    return {
        "batch_size": batch,
        "sequence_length": length,
        "gradient_checkpointing": checkpointing,
        "weights": weights,
        "optimizer": optimizer,
        "gradients": FLOAT * trainable,
        "activations": kept_by_blocks(shape, batch, length, checkpointing, cpu),
        "loss_chunks": _chunks(shape, batch * length),
        "highest_moment": highest,
        "live_bytes": live,
        "peak_bytes": round(live * (ALLOCATOR_FACTOR if cpu else 1.0)),
    }


def kept_by_blocks(shape: Shape, batch: int, length: int, checkpointing: bool = False, cpu: bool = True) -> int:
    """What all blocks keep for the backward pass."""
    each = FLOAT * batch * length * shape.d_model if checkpointing else kept_by_block(shape, batch, length, cpu)
    return shape.num_layers * each


def kept_by_block(shape: Shape, batch: int, length: int, cpu: bool = True) -> int:
    tokens = batch * length
    unit, wide = FLOAT * tokens * shape.d_model, FLOAT * tokens * shape.d_ff
    noise = 2 * tokens * shape.d_model if shape.dropout else 0
    return 8 * unit + noise + 2 * wide + 4 * FLOAT * tokens + attention_table(shape, batch, length, cpu)


def attention_table(shape: Shape, batch: int, length: int, cpu: bool = True) -> int:
    """What one layer's attention keeps beside queries, keys, values and its output."""
    heads = batch * shape.num_heads
    if not cpu or (length <= ATTENTION_BLOCK and not shape.dropout):
        return FLOAT * heads * length
    starts = range(0, length, ATTENTION_BLOCK)
    ends = [min(start + ATTENTION_BLOCK, length) for start in starts]
    each = FLOAT + 1 if shape.dropout else FLOAT
    return each * heads * sum((end - start) * end for start, end in zip(starts, ends, strict=True))


def _moments(shape: Shape, trainable: int, batch: int, length: int, checkpointing: bool, cpu: bool) -> Moments:
    tokens = batch * length
    unit, wide = FLOAT * tokens * shape.d_model, FLOAT * tokens * shape.d_ff
    vocabulary = FLOAT * shape.vocab_size * shape.d_model
    kept = kept_by_blocks(shape, batch, length, checkpointing, cpu) + (unit // FLOAT if shape.dropout else 0)
    again = kept_by_block(shape, batch, length, cpu) if checkpointing else 0
    return Moments(
        loss=kept + 3 * unit + vocabulary + _chunks(shape, tokens),
        handover=kept + 3 * unit + 2 * vocabulary,
        backward=kept + again + 2 * unit + wide + vocabulary + 2 * FLOAT * shape.d_model * shape.d_ff,
        end=FLOAT * trainable + vocabulary,
    )


def _chunks(shape: Shape, tokens: int) -> int:
    """Logits and log-probabilities of one chunk."""
    return 2 * FLOAT * min(tokens, LOSS_CHUNK_ROWS) * shape.vocab_size
