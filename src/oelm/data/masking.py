"""What is hidden from a model that must find it again: single tokens (BERT) or spans (T5, BART). Pure functions.

Every row of a batch hides equally much: the mean over rows is the mean over hidden tokens, however a batch is shared.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASKED, SPAN = 0.15, 3
"""Share of the tokens that are hidden, and how many of them a hidden span has on average."""
SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.8, 0.1
"""Of the hidden tokens; the rest is shown as it is, so that every token must be understood."""

Ids = NDArray[np.int64]
Numbers = NDArray[np.float64]


def draws(keys: Sequence[Sequence[int]], width: int) -> Numbers:
    """(len(keys), width): random numbers from 0 to 1, each row a function of its key alone."""
    return np.stack([np.random.default_rng(list(key)).random(width) for key in keys])


def mask_tokens(blocks: Ids, numbers: Numbers, mask_id: int, vocab_size: int) -> tuple[Ids, Ids, Ids]:
    """What is shown (B, T), the hidden places (B, K), and what is hidden there (B, K). Takes 3 T numbers per row.

    >>> shown, places, hidden = mask_tokens(np.arange(20)[None], draws([(0,)], 60), mask_id=99, vocab_size=20)
    >>> places.tolist() == hidden.tolist(), places.shape
    (True, (1, 3))
    """
    order, kind, other = np.split(numbers, 3, axis=1)
    count = hidden_tokens(blocks.shape[1])
    places: Ids = np.sort(np.argsort(order, axis=1)[:, :count], axis=1).astype(np.int64)
    hidden = np.take_along_axis(blocks, places, axis=1)
    kind, other = (np.take_along_axis(array, places, axis=1) for array in (kind, other))
    instead = np.where(kind < SHOWN_AS_MASK + SHOWN_AS_OTHER, (other * vocab_size).astype(np.int64), hidden)
    shown = blocks.copy()
    np.put_along_axis(shown, places, np.where(kind < SHOWN_AS_MASK, mask_id, instead), axis=1)
    return shown, places, hidden


def hidden_tokens(length: int) -> int:
    return max(1, round(MASKED * length))


def spans(length: int) -> tuple[int, int]:
    """Hidden tokens of a block, and into how many spans they fall."""
    hidden = hidden_tokens(length)
    return hidden, max(1, round(hidden / SPAN))


def hide_spans(blocks: Ids, numbers: Numbers, marks: Sequence[int], end: int, *, whole: bool) -> tuple[Ids, Ids]:
    """Each hidden span becomes its mark; what to write is the spans, each after its mark, or the `whole` block again.

    Both end with `end`. Takes 2 T numbers per row; equal lengths for all rows.
    """
    rows, length = blocks.shape
    hidden, count = spans(length)
    kept_lengths = _partition(length - hidden, count, numbers[:, :length])
    hidden_lengths = _partition(hidden, count, numbers[:, length:])
    ends = np.stack([kept_lengths, hidden_lengths], axis=2).reshape(rows, -1).cumsum(axis=1)  # kept, hidden, kept, …
    segment = (np.arange(length)[None, :, None] >= ends[:, None, :]).sum(axis=2)  # (B, T)
    first = np.diff(segment, axis=1, prepend=-1) != 0
    marked = np.asarray(marks)[segment // 2]

    def without(odd: int) -> Ids:
        gone = segment % 2 == odd
        return _closed(np.where(gone, marked, blocks)[~gone | first].reshape(rows, -1), end)

    return without(1), _closed(blocks, end) if whole else without(0)


def _partition(total: int, parts: int, numbers: Numbers) -> Ids:
    """(B, parts): positive lengths that add up to `total`, all ways equally likely."""
    cuts = np.sort(np.argsort(numbers[:, : total - 1], axis=1)[:, : parts - 1], axis=1) + 1
    return np.diff(cuts, axis=1, prepend=0, append=total)


def _closed(rows: Ids, end: int) -> Ids:
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=end)
