"""Log-probs from the LM head, and their gradients, against autograd on all logits at once."""

import math

import pytest
import torch

from grouprl.policy import head as module
from grouprl.policy.head import Head, token_logprobs

V, H, N = 11, 5, 7


def parameters(*, bias, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((N, H), (V, H), (V,))]
    hidden, weight = made[0].requires_grad_(), torch.nn.Parameter(made[1])
    return hidden, weight, torch.nn.Parameter(made[2]) if bias else None


def reference(hidden, weight, bias, scale, cap, temperature):
    z = scale * torch.nn.functional.linear(hidden, weight, bias)
    z = z if cap is None else cap * torch.tanh(z / cap)
    logprobs = (z / temperature).log_softmax(-1)
    return logprobs, -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("scale", "cap"), [(1.0, None), (0.25, None), (1.0, 2.0), (3.0, 5.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk", [V, 3 * V, 1000 * V])
def test_values_and_gradients_equal_autograd(bias, scale, cap, temperature, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    target = torch.tensor([0, 10, 3, 3, 7, 1, 0])
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)

    hidden, weight, offset = parameters(bias=bias)
    logprobs, entropies = token_logprobs(Head(weight, offset, scale, cap), hidden, target, temperature)
    (logprobs * weights).sum().backward()
    found = [hidden.grad, weight.grad, *([offset.grad] if bias else [])]

    hidden, weight, offset = parameters(bias=bias)
    all_logprobs, expected_entropies = reference(hidden, weight, offset, scale, cap, temperature)
    chosen = all_logprobs.gather(-1, target[:, None])[:, 0]
    (chosen * weights).sum().backward()

    torch.testing.assert_close(logprobs.double(), chosen.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropies.double(), expected_entropies.detach(), rtol=0, atol=1e-5)
    for a, b in zip(found, [hidden.grad, weight.grad, *([offset.grad] if bias else [])]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("scale", "cap"), [(1.0, None), (0.25, None), (3.0, 5.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk", [V, 3 * V, 1000 * V])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_of_the_entropy_equals_autograd(
    bias, scale, cap, temperature, chunk, dtype, monkeypatch
):
    """Alone, and with that of the log-probs; against all logits at once, in float64."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    target = torch.tensor([0, 10, 3, 3, 7, 1, 0])
    of_entropy = torch.linspace(2, -1, N, dtype=torch.float64)
    for of_logprobs in (torch.zeros(N).double(), torch.linspace(-1, 2, N, dtype=torch.float64)):
        hidden, weight, offset = parameters(bias=bias, dtype=dtype)
        logprobs, entropies = token_logprobs(
            Head(weight, offset, scale, cap), hidden, target, temperature, entropy_gradient=True
        )
        (logprobs * of_logprobs + entropies * of_entropy).sum().backward()
        found = [hidden.grad, weight.grad, *([offset.grad] if bias else [])]

        leaves = [x.detach().double().requires_grad_() for x in (hidden, weight, *([offset] if bias else []))]
        all_logprobs, expected = reference(*leaves, *([] if bias else [None]), scale, cap, temperature)
        chosen = all_logprobs.gather(-1, target[:, None])[:, 0]
        (chosen * of_logprobs + expected * of_entropy).sum().backward()
        torch.testing.assert_close(entropies.double(), expected, rtol=0, atol=1e-5)
        for a, leaf in zip(found, leaves):
            torch.testing.assert_close(a.double(), leaf.grad, rtol=2e-5, atol=2e-5)


def test_the_entropy_of_two_tokens_by_hand():
    """Logits ±h at h = 1/2: p = σ(2h), dH/dp = −ln(p / (1 − p)) = −1, dp/dh = 2 p (1 − p)."""
    weight = torch.nn.Parameter(torch.tensor([[1.0], [-1.0]]))
    hidden = torch.tensor([[0.5]], requires_grad=True)
    _, entropy = token_logprobs(Head(weight, None), hidden, torch.tensor([0]), 1.0, entropy_gradient=True)
    entropy.sum().backward()
    p = 1 / (1 + math.exp(-1.0))
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-6)
    assert hidden.grad.item() == pytest.approx(-2 * p * (1 - p), abs=1e-6)


def test_chunks_bound_what_exists_at_once_also_for_the_entropy(monkeypatch):
    """Forward and backward see the logits of two tokens at a time, never of all."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * V)
    seen, real = [], Head.logits
    monkeypatch.setattr(Head, "logits", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    hidden, weight, _ = parameters(bias=False)
    logprobs, entropies = token_logprobs(
        Head(weight, None), hidden, torch.arange(N), 1.0, entropy_gradient=True
    )
    (logprobs + entropies).sum().backward()
    assert [z.numel() for z in seen] == [2 * V, 2 * V, 2 * V, V] * 2


def test_the_entropy_carries_no_gradient_unless_asked():
    hidden, weight, _ = parameters(bias=False)
    _, entropies = token_logprobs(Head(weight, None), hidden, torch.arange(N), 1.0)
    assert not entropies.requires_grad


def test_logits_of_two_tokens_at_half_temperature():
    """log softmax([2, 0] / 0.5)[0] = −log(1 + e^−4) = −0.018150; at T = 1 it would be −0.126928."""
    head = Head(torch.tensor([[2.0], [0.0]]), None)
    half, _ = token_logprobs(head, torch.ones(1, 1), torch.tensor([0]), 0.5)
    one, _ = token_logprobs(head, torch.ones(1, 1), torch.tensor([0]), 1.0)
    assert half.item() == pytest.approx(-0.0181499, abs=1e-6)
    assert one.item() == pytest.approx(-0.1269280, abs=1e-6)


def test_the_weight_gradient_adds_to_what_is_there():
    hidden, weight, _ = parameters(bias=False)
    target = torch.arange(N)
    for _ in range(2):
        token_logprobs(Head(weight, None), hidden, target, 1.0)[0].sum().backward()
    twice = weight.grad.clone()
    weight.grad = None
    token_logprobs(Head(weight, None), hidden, target, 1.0)[0].sum().backward()
    torch.testing.assert_close(twice, 2 * weight.grad)


def test_a_weight_that_is_watched_gets_its_gradient_through_autograd():
    hidden, weight, _ = parameters(bias=False)
    seen = []
    weight.register_hook(lambda grad: seen.append(grad.clone()))
    token_logprobs(Head(weight, None), hidden, torch.arange(N), 1.0)[0].sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], weight.grad)


def test_no_tokens():
    hidden, weight, _ = parameters(bias=False)
    logprobs, entropies = token_logprobs(
        Head(weight, None), hidden[:0], torch.empty(0, dtype=torch.long), 1.0
    )
    logprobs.sum().backward()
    assert logprobs.shape == entropies.shape == (0,)
    assert weight.grad is None or not weight.grad.any()


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_extreme_logits_are_finite(entropy_gradient):
    weight = torch.nn.Parameter(torch.tensor([[1e4], [-1e4], [0.0]]))
    logprobs, entropies = token_logprobs(
        Head(weight, None), torch.ones(1, 1), torch.tensor([1]), 1.0, entropy_gradient=entropy_gradient
    )
    (logprobs + entropies if entropy_gradient else logprobs).sum().backward()
    assert logprobs.item() == pytest.approx(-2e4)
    assert entropies.item() == 0.0
    assert weight.grad.isfinite().all()
