import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.errors import OelmError
from oelm.freezing.orthogonal import (
    INITIALISATIONS,
    global_orthogonal,
    head_orthogonal,
    head_polar,
    head_qr,
    head_scales,
    matched_normal,
    orthonormality_error,
    published_normal,
    rescale_heads,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(0, 40)).map(
    lambda s: (s[0], s[1], s[1] + s[2])  # (heads, head_dim, width ≥ head_dim)
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**31))
def test_every_head_of_a_fresh_projection_is_orthonormal(shape, seed):
    heads, head_dim, width = shape
    weight = head_orthogonal(heads, head_dim, width, seeded(seed))
    assert weight.shape == (heads * head_dim, width)
    assert weight.dtype == torch.float32
    assert orthonormality_error(weight, heads) < 1e-5


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(0, 2**31))
def test_qr_of_given_rows_keeps_each_heads_row_space(shape, seed):
    heads, head_dim, width = shape
    given_rows = torch.randn(heads * head_dim, width, generator=seeded(seed))
    result = head_qr(given_rows, heads)
    assert orthonormality_error(result, heads) < 1e-5
    for old, new in zip(given_rows.split(head_dim), result.split(head_dim), strict=True):
        torch.testing.assert_close(old @ new.T @ new, old, atol=1e-4, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(0, 2**31))
def test_no_orthonormal_rows_are_nearer_than_the_polar_factor(shape, seed):
    heads, head_dim, width = shape
    rows = torch.randn(heads * head_dim, width, generator=seeded(seed))
    polar = head_polar(rows, heads)
    assert orthonormality_error(polar, heads) < 1e-5
    for other in (head_qr(rows, heads), head_orthogonal(heads, head_dim, width, seeded(seed + 1))):
        assert (polar - rows).norm() <= (other - rows).norm() + 1e-4


@settings(max_examples=30, deadline=None)
@given(shapes, st.integers(0, 2**31))
def test_rescaling_restores_the_scale_of_every_head(shape, seed):
    heads, head_dim, width = shape
    rows = 0.3 * torch.randn(heads * head_dim, width, generator=seeded(seed))
    for name in ("head_qr_scaled", "head_polar_scaled"):
        scaled = INITIALISATIONS[name](rows, heads, seeded(0))
        torch.testing.assert_close(head_scales(scaled, heads), head_scales(rows, heads), atol=1e-5, rtol=1e-5)


def test_polar_of_orthonormal_rows_changes_nothing():
    rows = head_orthogonal(4, 8, 32, seeded(0))
    torch.testing.assert_close(head_polar(rows, 4), rows, atol=1e-6, rtol=0)


def test_head_scales_of_orthonormal_rows_are_one():
    rows = head_orthogonal(4, 8, 32, seeded(0))
    torch.testing.assert_close(head_scales(rows, 4), torch.ones(4, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        head_scales(rescale_heads(rows, torch.tensor([1.0, 2, 3, 4])), 4), torch.tensor([1.0, 2, 3, 4]).double()
    )


def test_a_global_projection_is_orthonormal_across_heads_a_head_wise_one_only_within():
    together = global_orthogonal(4, 8, 32, seeded(0))
    apart = head_orthogonal(4, 8, 32, seeded(0))
    assert orthonormality_error(together, num_heads=1) < 1e-5
    assert orthonormality_error(apart, num_heads=1) > 0.1
    assert orthonormality_error(apart, num_heads=4) < 1e-5


def test_the_same_seed_gives_the_same_matrix_and_another_seed_another():
    first, again, other = (head_orthogonal(4, 8, 32, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_fresh_frames_are_drawn_uniformly_so_no_direction_is_preferred():
    """Without the sign fix, QR's own sign convention would show as a mean away from zero."""
    frames = torch.stack([head_orthogonal(1, 4, 8, seeded(s)) for s in range(2000)])
    assert frames.mean(0).abs().max() < 0.05
    torch.testing.assert_close(frames.square().mean(0), torch.full((4, 8), 1 / 8), atol=0.02, rtol=0)


def test_random_rows_have_the_norms_their_names_promise():
    matched = matched_normal(8, 64, 512, seeded(0)).norm(dim=1).mean().item()
    published = published_normal(8, 64, 512, seeded(0)).norm(dim=1).mean().item()
    assert matched == pytest.approx(1.0, rel=0.02)
    assert published == pytest.approx(0.02 * 512**0.5, rel=0.02)


def test_more_rows_than_width_cannot_be_orthonormal():
    with pytest.raises(OelmError, match="at most 8 rows"):
        head_orthogonal(1, 9, 8)
    with pytest.raises(OelmError, match="at most 8 rows"):
        global_orthogonal(2, 8, 8)


def test_heads_must_divide_the_rows():
    with pytest.raises(OelmError, match="10 rows cannot be split into 3 heads"):
        orthonormality_error(torch.zeros(10, 4), num_heads=3)


@pytest.mark.parametrize("name", INITIALISATIONS)
def test_every_initialisation_keeps_shape_and_is_finite(name):
    rows = torch.randn(32, 32, generator=seeded(0))
    result = INITIALISATIONS[name](rows, 4, seeded(1))
    assert result.shape == rows.shape
    assert torch.isfinite(result).all()
