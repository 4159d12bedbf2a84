"""The order of prompts: every epoch visits each once, and any position can be taken up again."""

from hypothesis import given
from hypothesis import strategies as st

from grouprl.training.prompts import draw_prompts


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 3))
def test_each_epoch_visits_each_prompt_once(size, count, seed):
    items = list(range(size))
    drawn, position = [], 0
    while position < 3 * size:
        drawn += draw_prompts(items, position=position, count=count, seed=seed)
        position += count
    for epoch in range(3):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == items


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 9))
def test_a_position_says_everything(size, position, count):
    items = list(range(size))
    whole = draw_prompts(items, position=0, count=position + count, seed=5)
    assert draw_prompts(items, position=position, count=count, seed=5) == whole[position:]


def test_epochs_and_seeds_differ():
    items = list(range(50))
    first = draw_prompts(items, position=0, count=50, seed=0)
    assert first != draw_prompts(items, position=50, count=50, seed=0)
    assert first != draw_prompts(items, position=0, count=50, seed=1)
