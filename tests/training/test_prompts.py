"""The order of prompts: every epoch visits each once, and any position can be taken up again."""

from hypothesis import given
from hypothesis import strategies as st

from grouprl.training.prompts import draw_prompts, order_of_epoch


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 3))
def test_each_epoch_visits_each_prompt_once(size, count, seed):
    items = list(range(size))
    drawn, position = [], 0
    while position < 3 * size:
        drawn += draw_prompts(items, position=position, count=count, seed=seed).prompts
        position += count
    for epoch in range(3):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == items


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 9))
def test_a_position_says_everything(size, position, count):
    items = list(range(size))
    whole = draw_prompts(items, position=0, count=position + count, seed=5).prompts
    assert draw_prompts(items, position=position, count=count, seed=5).prompts == whole[position:]


def test_epochs_and_seeds_differ():
    items = list(range(50))
    first = draw_prompts(items, position=0, count=50, seed=0).prompts
    assert first != draw_prompts(items, position=50, count=50, seed=0).prompts
    assert first != draw_prompts(items, position=0, count=50, seed=1).prompts


@given(
    st.integers(1, 9), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2**9)), min_size=1, max_size=20)
)
def test_each_epoch_visits_each_prompt_once_whatever_is_passed_over(size, draws):
    """A prompt is drawn or passed over once an epoch, in the epoch's order, in draws of any size and any pattern."""
    items = list(range(size))
    order = [
        index for epoch in range(200) for index in order_of_epoch(size, seed=3, epoch=epoch)[:size].tolist()
    ]
    position = 0
    for count, pattern in draws:
        visited = []

        def skip(item, epoch, pattern=pattern, visited=visited):
            visited.append((item, epoch))
            # By the pattern's bits; in every third epoch nothing is passed over.
            return "bit" if epoch % 3 and pattern >> item & 1 else None

        drawn = draw_prompts(items, position=position, count=count, seed=3, skip=skip)
        assert len(drawn.prompts) == len(drawn.epochs) == count
        assert [item for item, _ in visited] == order[position : drawn.position]
        assert [epoch for _, epoch in visited] == [i // size for i in range(position, drawn.position)]
        assert count + drawn.skipped["bit"] == drawn.position - position
        position = drawn.position
