"""Which samples make up a batch: a pure function of (seed, step), so that resuming needs no data state.

Every epoch visits each of the n samples exactly once, in an order of its own.

>>> sorted(int(i) for step in range(5) for i in batch_samples(seed=0, step=step, batch_size=2, num_samples=10))
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_Words = NDArray[np.uint64]


def batch_samples(seed: int, step: int, batch_size: int, num_samples: int) -> NDArray[np.int64]:
    """Sample indices of the batch at `step` (counted from 0); a batch may span the end of an epoch."""
    if num_samples < 1:
        raise ValueError("there are no samples")
    drawn = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
    epochs, places = drawn // num_samples, drawn % num_samples
    samples = np.empty_like(places)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        samples[chosen] = permute(places[chosen], num_samples, seed=seed, stream=int(epoch))
    return samples


def permute(places: NDArray[np.int64], size: int, *, seed: int, stream: int) -> NDArray[np.int64]:
    """The pseudo-random permutation of range(size) chosen by (seed, stream), evaluated only at `places`.

    A Feistel network permutes the next power of four; a value that lands outside range(size) is permuted again until it
    lands inside ("cycle walking"), which keeps the map one-to-one without ever storing a permutation of the data set.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    keys = np.frombuffer(hashlib.sha512(f"oelm order {seed} {stream}".encode()).digest(), dtype="<u8")[:_ROUNDS]
    values = places.astype(np.uint64)
    outside = np.ones(values.shape, dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], np.uint64(half_bits), mask, keys)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: _Words, bits: np.uint64, mask: np.uint64, keys: _Words) -> _Words:
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(x: _Words) -> _Words:
    """A 64-bit finaliser: every input bit reaches every output bit. Wrap-around multiplication is intended."""
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xC2B2AE3D27D4EB4F)
    return x ^ (x >> np.uint64(32))
