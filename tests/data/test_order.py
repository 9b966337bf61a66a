import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.data.order import batch_samples, permute


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(0, 50))
def test_every_epoch_is_a_permutation(size, seed, epoch):
    assert sorted(permute(np.arange(size), size, seed=seed, stream=epoch)) == list(range(size))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(1, 32), st.integers(0, 1000))
def test_every_sample_comes_once_per_epoch_whatever_the_batch_size(size, batch, seed):
    steps = -(-3 * size // batch)
    drawn = np.concatenate([batch_samples(seed, step, batch, size) for step in range(steps)])
    for epoch in range(3):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_a_batch_depends_on_seed_and_step_only():
    assert np.array_equal(batch_samples(1, 7, 8, 100), batch_samples(1, 7, 8, 100))
    assert not np.array_equal(batch_samples(1, 7, 8, 100), batch_samples(2, 7, 8, 100))
    assert not np.array_equal(batch_samples(1, 7, 8, 100), batch_samples(1, 8, 8, 100))


def test_epochs_have_different_orders():
    first, second = (permute(np.arange(1000), 1000, seed=0, stream=epoch) for epoch in (0, 1))
    assert (first == second).mean() < 0.02


def test_the_order_looks_random():
    """Neighbours in the order are far apart in the data: about a third of its length on average."""
    order = permute(np.arange(10_000), 10_000, seed=3, stream=0)
    assert 0.30 < np.abs(np.diff(order)).mean() / 10_000 < 0.37


def test_a_huge_data_set_costs_nothing():
    places = batch_samples(0, 10**9, 16, 10**12)
    assert len(set(places.tolist())) == 16
    assert places.max() < 10**12
