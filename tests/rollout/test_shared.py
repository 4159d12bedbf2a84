"""Decoding with prompts held once, against decoding with a cache that repeats them."""

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.rollout.plain import RepeatedPrompts
from grouprl.rollout.shared import SharedPrompts

PROMPTS = [(5, 6, 7), (9,), (20, 21, 22, 23, 24), (30, 31, 32)]


def walk(state, keeps, rows):
    """Hidden states of every step, some completions leaving on the way."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 200, (rows, len(keeps) + 1), generator=generator)
    active = torch.arange(rows)
    seen = [state.start()]
    for t, keep in enumerate(keeps):
        if keep is not None:
            kept = torch.tensor([i for i, row in enumerate(active.tolist()) if row in keep])
            state.keep(kept)
            active = active[kept]
        seen.append(state.next(tokens[active, t]))
    return seen


@pytest.mark.parametrize("family", ["llama", "qwen3", "granite", "gpt2", "phi"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], [PROMPTS[0], PROMPTS[3]]])
@torch.inference_mode()
def test_hidden_states_equal_those_of_a_repeated_cache(family, prompts):
    """Prompts of several lengths and of one; a whole group leaves, then all but one completion of another."""
    policy, rows = tiny.policy(family), 3 * len(prompts)
    some = set(range(rows)) - {1}
    fewer = some - {3, 4, 5} or some
    keeps = [None, some, None, fewer, {min(fewer)}]
    found = walk(SharedPrompts(policy, prompts, 3, 6), keeps, rows)
    expected = walk(RepeatedPrompts(policy, prompts, 3, 6), keeps, rows)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=11, unique=True), st.integers(1, 4))
@torch.inference_mode()
def test_whoever_leaves_the_others_do_not_notice(stay, prompts):
    policy, rows = tiny.policy(), 3 * prompts
    kept = {i % rows for i in stay}
    chosen = PROMPTS[:prompts]
    partly = walk(SharedPrompts(policy, chosen, 3, 4), [None, kept, None], rows)[-1]
    whole = walk(SharedPrompts(policy, chosen, 3, 4), [None, None, None], rows)[-1]
    torch.testing.assert_close(partly, whole[sorted(kept)], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_bfloat16_weights_decode():
    policy = tiny.policy().copy(torch.bfloat16)
    (start, first) = walk(SharedPrompts(policy, PROMPTS, 2, 3), [None], 8)
    assert start.dtype == first.dtype == torch.bfloat16
    assert first.isfinite().all()
