"""The two computations of our own give what torch gives: values, gradients, dtypes, and where they apply."""

import pytest
import torch
import torch.nn.functional as F

import oelm
from oelm.models import kernels


def inputs(rows: int = 37, width: int = 8, vocabulary: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    return hidden, weight, torch.randint(vocabulary, (rows,))


@pytest.mark.parametrize("chunk", [1, 150, 50 * 37, 1 << 20])  # a row, three rows with a rest, all rows, more than all
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "LOSS_CHUNK_ELEMENTS", chunk)
    hidden, weight, targets = inputs()
    ours = kernels.vocabulary_loss(hidden, weight, targets)
    theirs = F.cross_entropy(hidden @ weight.T, targets)
    torch.testing.assert_close(ours, theirs)
    scaled = zip(
        torch.autograd.grad(3 * ours, (hidden, weight)), torch.autograd.grad(3 * theirs, (hidden, weight)), strict=True
    )
    for mine, reference in scaled:
        torch.testing.assert_close(mine, reference)


def test_a_frozen_vocabulary_gets_no_gradient_and_an_evaluation_takes_none():
    hidden, weight, targets = inputs()
    kernels.vocabulary_loss(hidden, weight.detach(), targets).backward()
    assert hidden.grad is not None and weight.grad is None
    with torch.no_grad():
        assert not kernels.vocabulary_loss(hidden, weight, targets).requires_grad


def test_the_loss_under_autocast_is_float32_and_its_gradients_have_the_parameters_dtype():
    hidden, weight, targets = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = kernels.vocabulary_loss(hidden, weight, targets)
        reference = F.cross_entropy(F.linear(hidden, weight).float(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, reference, rtol=1e-5, atol=1e-5)
    mine = torch.autograd.grad(loss, (hidden, weight))
    assert [g.dtype for g in mine] == [torch.float32, torch.float32]
    for g, r in zip(mine, torch.autograd.grad(reference, (hidden, weight)), strict=True):
        torch.testing.assert_close(g, r, rtol=0.05, atol=2e-3)


def test_the_division_by_the_batch_comes_after_half_precision():
    """p / N of a large batch lies below what float16 can hold; the gradient must not vanish."""
    rows, vocabulary = 4096, 64
    hidden = torch.full((rows, 4), 0.1, requires_grad=True)
    weight = torch.randn(vocabulary, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = kernels.vocabulary_loss(hidden, weight, torch.zeros(rows, dtype=torch.long))
    loss.backward()
    exact = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, torch.zeros(rows, dtype=torch.long)), hidden)[0]
    torch.testing.assert_close(hidden.grad, exact, rtol=0.02, atol=1e-7)


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300])
def test_blocked_attention_is_causal_attention(length):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, length, 12).unflatten(-1, (3, 4)).transpose(1, 2).requires_grad_() for _ in range(3))
    weights = torch.randn(2, 3, length, 4)
    ours = kernels.causal_attention(q, k, v)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad((ours * weights).sum(), (q, k, v))
    for g, r in zip(mine, torch.autograd.grad((theirs * weights).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-5)


def test_blocked_attention_is_used_in_training_only_and_never_changes_what_a_model_says():
    torch.manual_seed(0)
    model = oelm.GPT(oelm.GPTConfig(vocab_size=40, d_model=16, num_layers=2, num_heads=2, d_ff=32, dropout=0.0))
    tokens = torch.randint(40, (2, 200))
    trained = model(tokens)
    assert "_CausalAttention" in names_behind(trained)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), trained, rtol=1e-4, atol=1e-5)
    assert "_CausalAttention" not in names_behind(model(tokens[:, :100]))


def names_behind(tensor: torch.Tensor) -> str:
    """The names of all autograd nodes that lead to the tensor."""
    seen, queue = set(), [tensor.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue += [parent for parent, _ in node.next_functions]
    return " ".join(node.name() for node in seen)
