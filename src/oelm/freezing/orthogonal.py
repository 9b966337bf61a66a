"""Orthonormal and random projection matrices: pure mathematics, no models.

A projection is a (rows, width) matrix whose rows fall into `num_heads` equal groups, one per attention head, as in
`torch.nn.Linear.weight`. Factorisations run in float64 on the CPU, so that the float32 result is orthonormal to
rounding and the same seed gives the same matrix whatever device the model is on.

>>> weight = head_orthogonal(num_heads=4, head_dim=8, width=32, generator=torch.Generator().manual_seed(0))
>>> weight.shape, orthonormality_error(weight, num_heads=4) < 1e-6
(torch.Size([32, 32]), True)
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from oelm.errors import OelmError

PUBLISHED_STD = 0.02  # standard deviation of the study's random arm, whatever the width


def head_orthogonal(num_heads: int, head_dim: int, width: int, generator: Generator | None = None) -> Tensor:
    """Fresh rows, orthonormal within each head: reduced QR of a Gaussian per head."""
    _require_room(head_dim, width, "a head")
    gaussian = torch.randn(num_heads, width, head_dim, generator=generator, dtype=torch.float64)
    return _as_weight(_orthonormal_columns(gaussian).mT)


def global_orthogonal(num_heads: int, head_dim: int, width: int, generator: Generator | None = None) -> Tensor:
    """Fresh rows, orthonormal across all heads at once: one QR for the whole matrix."""
    rows = num_heads * head_dim
    _require_room(rows, width, "the whole projection")
    gaussian = torch.randn(1, width, rows, generator=generator, dtype=torch.float64)
    return _as_weight(_orthonormal_columns(gaussian).mT)


def matched_normal(num_heads: int, head_dim: int, width: int, generator: Generator | None = None) -> Tensor:
    """Gaussian rows of expected squared norm 1: the scale of orthonormal rows, without their orthogonality."""
    return _normal(num_heads * head_dim, width, width**-0.5, generator)


def published_normal(num_heads: int, head_dim: int, width: int, generator: Generator | None = None) -> Tensor:
    """Gaussian rows with the study's fixed standard deviation of 0.02, so their norm is 0.02·√width."""
    return _normal(num_heads * head_dim, width, PUBLISHED_STD, generator)


def semi_orthogonal(weight: Tensor, generator: Generator) -> Tensor:
    """Fresh, with orthonormal rows or, where there are more rows than columns, orthonormal columns."""
    return semi_orthogonal_qr(torch.randn(weight.shape, generator=generator, dtype=torch.float64))


def semi_orthogonal_qr(weight: Tensor) -> Tensor:
    """Orthonormal rows (or columns, if there are fewer of them) that span the same space as the given ones."""
    given = weight.detach().to("cpu", torch.float64)
    wide = given.shape[0] <= given.shape[1]
    frame = _orthonormal_columns((given.mT if wide else given)[None])[0]
    return (frame.mT if wide else frame).float().contiguous()


def head_qr(weight: Tensor, num_heads: int) -> Tensor:
    """Orthonormal rows that span, in every head, the same space as the given rows (Gram–Schmidt order)."""
    heads = _as_heads(weight, num_heads)
    return _as_weight(_orthonormal_columns(heads.mT).mT)


def head_polar(weight: Tensor, num_heads: int) -> Tensor:
    """The orthonormal rows nearest to the given ones, head by head: the polar factor U·Vᵀ."""
    heads = _as_heads(weight, num_heads)
    left, _, right = torch.linalg.svd(heads, full_matrices=False)
    return _as_weight(left @ right)


def head_scales(weight: Tensor, num_heads: int) -> Tensor:
    """Root-mean-square row norm of every head (num_heads,): 1 for orthonormal rows."""
    heads = _as_heads(weight, num_heads)
    return heads.square().sum(dim=(1, 2)).div(heads.shape[1]).sqrt()


def rescale_heads(weight: Tensor, scales: Tensor) -> Tensor:
    """Multiply the rows of head h by scales[h]."""
    heads = _as_heads(weight, len(scales))
    return _as_weight(heads * scales.to(torch.float64)[:, None, None])


def orthonormality_error(weight: Tensor, num_heads: int) -> float:
    """Largest |W·Wᵀ − I| entry over all heads; 0 is perfect. Heads are judged as stored, scale included."""
    heads = _as_heads(weight, num_heads)
    identity = torch.eye(heads.shape[1], dtype=heads.dtype)
    return (heads @ heads.mT - identity).abs().max().item()


def _orthonormal_columns(matrices: Tensor) -> Tensor:
    """Reduced QR of a (batch, n, k) stack; signs fixed by diag(R), so a Gaussian gives a uniformly drawn frame."""
    q, r = torch.linalg.qr(matrices, mode="reduced")
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    return q * signs[:, None, :]


def _normal(rows: int, width: int, std: float, generator: Generator | None) -> Tensor:
    return (torch.randn(rows, width, generator=generator, dtype=torch.float64) * std).float()


def _as_heads(weight: Tensor, num_heads: int) -> Tensor:
    """(rows, width) → (num_heads, head_dim, width) in float64 on the CPU."""
    rows, width = weight.shape
    _require_heads(rows, num_heads)
    return weight.detach().to("cpu", torch.float64).reshape(num_heads, rows // num_heads, width)


def _as_weight(heads: Tensor) -> Tensor:
    """(num_heads, head_dim, width) → (rows, width) in float32."""
    return heads.reshape(-1, heads.shape[-1]).float().contiguous()


def require_fit(initialisation: str, rows: int, width: int, num_heads: int) -> None:
    """Refuse, by shape alone, a projection that an initialisation cannot fill."""
    _require_heads(rows, num_heads)
    for names, together, what in (
        (ORTHONORMAL_IN_HEADS, rows // num_heads, "a head"),
        (ORTHONORMAL_ACROSS_HEADS, rows, "the whole projection"),
    ):
        if initialisation in names:
            _require_room(together, width, what)


def _require_heads(rows: int, num_heads: int) -> None:
    if num_heads < 1 or rows % num_heads:
        raise OelmError(f"{rows} rows cannot be split into {num_heads} heads; use a divisor of {rows}")


def _require_room(rows: int, width: int, what: str) -> None:
    if rows > width:
        raise OelmError(f"{what} has {rows} rows of width {width}; at most {width} rows can be orthonormal")


def _fresh(draw: Callable[..., Tensor]) -> "Initialisation":
    """A drawing function as an initialisation: it takes only the shape from the weight that stands there."""

    def initialise(weight: Tensor, num_heads: int, generator: Generator) -> Tensor:
        rows, width = weight.shape
        return draw(num_heads, rows // num_heads, width, generator)

    return initialise


def _of_weight(transform: Callable[[Tensor, int], Tensor]) -> "Initialisation":
    """A transformation of the weight that stands there as an initialisation."""
    return lambda weight, num_heads, generator: transform(weight, num_heads)


def _with_scale(transform: Callable[[Tensor, int], Tensor]) -> "Initialisation":
    """The same, with every head brought back to the scale its weight had."""
    return lambda weight, heads, generator: rescale_heads(transform(weight, heads), head_scales(weight, heads))


Initialisation = Callable[[Tensor, int, Generator], Tensor]  # (weight that stands there, heads, generator) → weight

INITIALISATIONS: dict[str, Initialisation] = {
    "keep": lambda weight, num_heads, generator: weight,
    "head_orthogonal": _fresh(head_orthogonal),
    "global_orthogonal": _fresh(global_orthogonal),
    "matched_normal": _fresh(matched_normal),
    "published_normal": _fresh(published_normal),
    "semi_orthogonal": lambda weight, num_heads, generator: semi_orthogonal(weight, generator),
    "semi_orthogonal_qr": lambda weight, num_heads, generator: semi_orthogonal_qr(weight),
    "head_qr": _of_weight(head_qr),
    "head_qr_scaled": _with_scale(head_qr),
    "head_polar": _of_weight(head_polar),
    "head_polar_scaled": _with_scale(head_polar),
}
"""Every way to fill a projection, by the name a method uses. A new one is a function above and a row here."""

KEEPS_SCALE = {"keep", "head_qr_scaled", "head_polar_scaled"}
"""Initialisations that leave a head at the scale it had; all others have a scale of their own."""

DRAWN_AFRESH = {"head_orthogonal", "global_orthogonal", "matched_normal", "published_normal", "semi_orthogonal"}
"""Initialisations that take nothing but the shape from the weight that stands there."""

ORTHONORMAL_IN_HEADS = {"head_orthogonal", "head_qr", "head_qr_scaled", "head_polar", "head_polar_scaled"}
ORTHONORMAL_ACROSS_HEADS = {"global_orthogonal"}
"""Initialisations that make the rows of a head, or of all heads at once, orthonormal: there must be room for them."""
