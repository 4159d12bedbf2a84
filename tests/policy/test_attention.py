"""Attention over rows that share a prompt, against attention with an explicit mask over the whole sequence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from grouprl.policy import attention
from grouprl.policy.attention import pack, packed_attention

SCALE = 0.3
ROWS = [
    [(5, [3, 0, 7, 1]), (1, [2]), (4, []), (3, [0, 0])],
    [(4, []), (2, [0])],
    [(1, [1])],
    [(2, [4] * 3)],
]


def explicit(q, k, v, rows):
    """Every token's keys, one mask entry at a time."""
    length = q.shape[2]
    mask = torch.zeros(length, length, dtype=torch.bool)
    at = 0
    for prompt, completions in rows:
        start, at = at, at + prompt
        mask[start:at, start:at] = torch.ones(prompt, prompt).tril().bool()
        for n in completions:
            mask[at : at + n, start : start + prompt] = True
            mask[at : at + n, at : at + n] = torch.ones(n, n).tril().bool()
            at += n
    copies = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE).transpose(1, 2)


def through_the_kernel(q, k, v, rows):
    return pack(rows).attend(0, q, k, v, SCALE)


def through_torch(q, k, v, rows):
    return packed_attention(q, k, v, pack(rows), SCALE)


def states(rows, heads=(6, 2, 2), width=8, dtype=torch.float64):
    length = sum(prompt + sum(completions) for prompt, completions in rows)
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(1, length, h, width, generator=generator, dtype=dtype).transpose(1, 2) for h in heads]


def value_and_gradients(function, rows, **options):
    inputs = [x.clone().requires_grad_() for x in states(rows, **options)]
    out = function(*inputs, rows)
    generator = torch.Generator().manual_seed(1)
    out.backward(torch.randn(out.shape, generator=generator, dtype=out.dtype))
    return [out, *(x.grad for x in inputs)]


@pytest.mark.parametrize("function", [through_the_kernel, through_torch])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("heads", [(6, 2, 2), (3, 3, 3), (4, 1, 1)])
def test_value_and_gradients_equal_an_explicit_mask(function, rows, heads):
    found = value_and_gradients(function, rows, heads=heads)
    expected = value_and_gradients(explicit, rows, heads=heads)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


shapes = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=4)), min_size=1, max_size=4
)


@settings(deadline=None)
@given(shapes)
def test_any_rows_equal_an_explicit_mask(rows):
    expected = value_and_gradients(explicit, rows)
    for function in (through_the_kernel, through_torch):
        for a, b in zip(value_and_gradients(function, rows), expected):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", [through_the_kernel, through_torch])
def test_bfloat16_is_within_its_rounding(function):
    found = value_and_gradients(function, ROWS[0], dtype=torch.bfloat16)
    for a in found:
        assert a.dtype == torch.bfloat16
        assert a.isfinite().all()
    exact = explicit(*(x.double() for x in states(ROWS[0], dtype=torch.bfloat16)), ROWS[0])
    torch.testing.assert_close(found[0].double(), exact, rtol=0, atol=2e-2)


def test_large_scores_stay_finite():
    """Parts whose normalisers differ by hundreds of nats: the smaller one's share is 0, not NaN."""
    rows = [(3, [2, 4])]
    inputs = [x * 40 for x in states(rows, dtype=torch.float32)]
    found = through_the_kernel(*inputs, rows)
    torch.testing.assert_close(found, explicit(*inputs, rows), rtol=1e-4, atol=1e-3)


def test_a_value_of_another_width_goes_through_torch():
    q, k, _ = states(ROWS[0])
    v = torch.randn(1, 2, q.shape[2], 4, dtype=torch.float64)
    out = pack(ROWS[0]).attend(0, q, k, v, SCALE)
    torch.testing.assert_close(out, explicit(q, k, v, ROWS[0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_what_a_layout_does_not_know_is_refused(name):
    q, k, v = states(ROWS[3])
    with pytest.raises(attention.UnsupportedAttentionError, match=name):
        attention._attention(
            torch.nn.Identity(), q, k, v, None, layout=pack(ROWS[3]), **{name: torch.ones(1)}
        )


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_the_same_on_a_gpu(rows):
    inputs = [x.cuda().float().requires_grad_() for x in states(rows)]
    out = pack(rows, "cuda").attend(0, *inputs, SCALE)
    out.sum().backward()
    reference = [x.detach().cpu().double().requires_grad_() for x in inputs]
    expected = explicit(*reference, rows)
    expected.sum().backward()
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=1e-4)
    for a, b in zip(inputs, reference):
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=0, atol=1e-4)
