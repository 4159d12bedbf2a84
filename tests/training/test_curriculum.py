"""Which prompts are passed over, for how long, and that the state is the whole of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.training.config import SamplingConfig
from grouprl.training.curriculum import Curriculum
from grouprl.training.prompts import draw_prompts


def curriculum(**options):
    return Curriculum(SamplingConfig(**{"skip_epochs": 2, **options}))


@pytest.mark.parametrize(
    ("groups", "options", "reason"),
    [
        ([(8, 8)], {}, "solved"),
        ([(7, 8)], {}, None),  # 0.875
        ([(9, 10)], {}, "solved"),  # exactly nine times out of ten
        ([(7, 8), (8, 8)], {}, "solved"),  # 15 of 16
        ([(6, 8), (8, 8)], {}, None),  # 14 of 16
        ([(0, 8), (8, 8), (8, 8)], {}, "solved"),  # the first is forgotten
        ([(7, 8)], {"skip_solved": 0.8}, "solved"),
        ([(0, 8)], {}, "unsolved"),
        ([(0, 8), (1, 8)], {}, None),
        ([(1, 8), (0, 8)], {}, None),
        ([(1, 8), (0, 8), (0, 8)], {}, "unsolved"),
        ([(0, 8)], {"skip_unsolved": False}, None),
        ([(8, 8)], {"skip_unsolved": False}, "solved"),
        ([(8, 8)], {"skip_epochs": 0}, None),
        ([(2, 2), (0, 0)], {}, "solved"),  # nothing scored says nothing
        ([(0, 0)], {}, None),
        ([], {}, None),
    ],
)
def test_what_is_passed_over(groups, options, reason):
    one = curriculum(**options)
    for right, scored in groups:
        one.saw("p", 0, right=right, scored=scored, spread=0 < right < scored)
    assert one.skips("p", 1) == reason
    assert one.skips("another", 1) is None


def test_a_prompt_that_teaches_by_degrees_is_not_passed_over():
    """Never right, but some wrong answers got more than others: its groups have spread."""
    one = curriculum()
    one.saw("p", 0, right=0, scored=8, spread=True)
    assert one.skips("p", 1) is None
    one.saw("p", 1, right=0, scored=8, spread=False)
    assert one.skips("p", 2) is None
    one.saw("p", 2, right=0, scored=8, spread=False)
    assert one.skips("p", 3) == "unsolved"


def test_it_is_looked_at_again_after_skip_epochs():
    one = curriculum(skip_epochs=2)
    one.saw("p", 3, right=8, scored=8, spread=False)
    assert [one.skips("p", epoch) for epoch in range(4, 8)] == ["solved", "solved", None, None]
    one.saw("p", 6, right=8, scored=8, spread=False)
    assert [one.skips("p", epoch) for epoch in range(7, 10)] == ["solved", "solved", None]


def test_a_step_that_was_not_recorded_leaves_the_state():
    one = curriculum()
    one.saw("p", 0, right=8, scored=8, spread=False)
    assert one.state == "{}"
    one.commit()
    saved = one.state
    one.saw("p", 3, right=0, scored=8, spread=False)
    one.saw("q", 3, right=0, scored=8, spread=False)
    assert one.state == saved
    again = curriculum()
    again.load_state(saved)
    assert again.skips("p", 1) == "solved"
    assert again.skips("q", 4) is None
    assert again.state == saved


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.integers(0, 4), st.integers(0, 4))),
    st.integers(0, 30),
)
def test_a_loaded_state_is_the_state(events, cut):
    """Whatever was seen, and wherever it was saved: the same answers, and the same state to the bit."""
    whole, first, second = curriculum(), curriculum(), curriculum()
    for i, (name, epoch, a, b) in enumerate(events):
        if i == cut:
            second.load_state(first.state)
            first = second
        for one in (whole, first):
            one.saw(name, epoch, right=min(a, b), scored=b, spread=a > b)
            one.commit()
        assert [whole.skips(n, e) for n in "abcde" for e in range(12)] == [
            first.skips(n, e) for n in "abcde" for e in range(12)
        ]
    assert whole.state == first.state


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=30, max_size=30),
)
def test_drawing_ends_and_each_prompt_comes_back(size, skip_epochs, count, outcomes):
    """Also where every prompt is passed over: none is out for longer than skip_epochs."""
    one, items, position = curriculum(skip_epochs=skip_epochs), list(range(size)), 0
    last = dict.fromkeys(items, -1)
    for outcome in outcomes:
        drawn = draw_prompts(
            items, position=position, count=count, seed=0, skip=lambda i, epoch: one.skips(str(i), epoch)
        )
        for item, epoch in zip(drawn.prompts, drawn.epochs):
            assert epoch - last[item] <= skip_epochs + 1
            last[item] = epoch
            one.saw(str(item), epoch, right=outcome, scored=2, spread=outcome == 1)
        one.commit()
        position = drawn.position
