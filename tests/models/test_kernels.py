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


@pytest.mark.parametrize("chunk", [1, 3, 37, 512])  # a row, three rows with a rest, all rows, more than all
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "LOSS_CHUNK_ROWS", chunk)
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


@pytest.mark.parametrize("chunk", [3, 512])
def test_ignored_targets_count_neither_in_the_loss_nor_in_its_gradients(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "LOSS_CHUNK_ROWS", chunk)
    hidden, weight, targets = inputs()
    targets[::3] = -100
    ours = kernels.vocabulary_loss(hidden, weight, targets)
    theirs = F.cross_entropy(hidden @ weight.T, targets)
    torch.testing.assert_close(ours, theirs)
    mine = torch.autograd.grad(ours, (hidden, weight))
    for g, r in zip(mine, torch.autograd.grad(theirs, (hidden, weight)), strict=True):
        torch.testing.assert_close(g, r)
    nothing = kernels.vocabulary_loss(hidden, weight, torch.full_like(targets, -100))
    assert nothing.item() == 0
    assert all(g.abs().sum() == 0 for g in torch.autograd.grad(nothing, (hidden, weight)))


def test_an_evaluation_allocates_no_gradient_of_the_vocabulary(monkeypatch):
    hidden, weight, targets = inputs()
    made = []
    monkeypatch.setattr(kernels.torch, "zeros_like", lambda like: made.append(like) or torch.zeros(like.shape))
    with torch.no_grad():
        kernels.vocabulary_loss(hidden, weight, targets)
    assert made == []
    kernels.vocabulary_loss(hidden, weight, targets)
    assert len(made) == 1


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


@pytest.mark.parametrize("length", [5, 128, 300])
def test_blocked_attention_with_dropout_equals_attention_with_the_same_probabilities_dropped(length):
    q, k, v = (torch.randn(2, 3, length, 4, dtype=torch.float32).requires_grad_() for _ in range(3))
    torch.manual_seed(1)
    ours = kernels.causal_attention(q, k, v, 0.25)
    torch.manual_seed(1)
    kept = torch.zeros(6, length, length)
    for start in range(0, length, kernels.ATTENTION_BLOCK):
        end = min(start + kernels.ATTENTION_BLOCK, length)
        kept[:, start:end, :end] = kernels._keep_mask(torch.Size((6, end - start, end)), 0.75)
    future = torch.full((length, length), -torch.inf).triu(1)
    probabilities = torch.softmax(q @ k.mT / 2 + future, dim=-1)
    theirs = (probabilities * kept.view(2, 3, length, length) / 0.75) @ v
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    weights = torch.randn(2, 3, length, 4)
    mine = torch.autograd.grad((ours * weights).sum(), (q, k, v))
    for g, r in zip(mine, torch.autograd.grad((theirs * weights).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [1e-7, 0.1, 0.5, 0.999_999])
def test_dropout_drops_its_share_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.ones(1001, 999).requires_grad_()
    y = kernels.Dropout(p)(x)
    y.sum().backward()
    share = (y == 0).float().mean().item()
    assert share == pytest.approx(p, abs=2**-15 + 3 * (p * (1 - p) / x.numel()) ** 0.5)
    torch.testing.assert_close(x.grad, y.detach())  # what is kept grows by 1 / keep, and so does its gradient
    values = y.detach().unique().tolist()
    assert len(values) <= 2 and values[-1] == pytest.approx(1 / kernels._keep_share(p))


def test_dropout_repeats_itself_from_one_seed_and_never_twice_in_a_row():
    layer, x = kernels.Dropout(0.3), torch.ones(64, 64)
    torch.manual_seed(5)
    first, second = layer(x), layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    # Neighbours share a 64-bit draw; their fates must be independent all the same.
    fate = (torch.cat([layer(torch.ones(1000, 400)) for _ in range(3)]) > 0).double().view(-1, 4)
    assert torch.corrcoef(fate.T).fill_diagonal_(0).abs().max() < 0.01


def test_dropout_is_torchs_own_where_there_is_nothing_to_gain():
    assert torch.equal(kernels.Dropout(0.5).eval()(torch.ones(9)), torch.ones(9))
    assert torch.equal(kernels.Dropout(1.0)(torch.ones(9)), torch.zeros(9))
    assert kernels.Dropout(0.5)(torch.ones(9, device="meta")).shape == (9,)


def names_behind(tensor: torch.Tensor) -> str:
    """The names of all autograd nodes that lead to the tensor."""
    seen, queue = set(), [tensor.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue += [parent for parent, _ in node.next_functions]
    return " ".join(node.name() for node in seen)
