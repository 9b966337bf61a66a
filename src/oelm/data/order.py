"""Which samples make up a batch: a pure function of (seed, step), so that resuming needs no data state.

Every epoch visits each of the n samples exactly once, in an order of its own.

>>> sorted(int(i) for step in range(5) for i in batch_samples(seed=0, step=step, batch_size=2, num_samples=10))
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

GROUPED = 64  # batches per pool of texts that are grouped by length
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


class GroupedOrder:
    """Batches of samples of similar length, so that little of a batch is padding; still a pure function of the step.

    Each epoch's random order is cut into pools of GROUPED batches; a pool is sorted by length, cut into batches, and
    these are shuffled. The last samples of an epoch may make a smaller batch; every sample comes once per epoch.
    """

    def __init__(self, seed: int, batch_size: int, lengths: NDArray[np.int64]) -> None:
        self.seed, self.batch_size, self.lengths = seed, batch_size, lengths
        self.batches_per_epoch = -(-len(lengths) // batch_size)
        self._sorted: tuple[tuple[int, int], NDArray[np.int64]] | None = None  # the pool in use

    def batch(self, step: int) -> NDArray[np.int64]:
        """Sample indices of the batch at `step` (counted from 0)."""
        epoch, place = divmod(step, self.batches_per_epoch)
        pool, place = divmod(place, GROUPED)
        samples = self._pool(epoch, pool)
        batches = -(-len(samples) // self.batch_size)
        stream = -1 - (epoch * self.batches_per_epoch + pool)  # of its own: epochs are the streams from 0 on
        chosen = int(permute(np.array([place]), batches, seed=self.seed, stream=stream)[0])
        return samples[chosen * self.batch_size :][: self.batch_size]

    def _pool(self, epoch: int, pool: int) -> NDArray[np.int64]:
        if self._sorted is None or self._sorted[0] != (epoch, pool):
            size, count = GROUPED * self.batch_size, len(self.lengths)
            drawn = np.arange(pool * size, min((pool + 1) * size, count), dtype=np.int64)
            samples = permute(drawn, count, seed=self.seed, stream=epoch)
            self._sorted = (epoch, pool), samples[np.argsort(self.lengths[samples], kind="stable")]
        return self._sorted[1]


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
