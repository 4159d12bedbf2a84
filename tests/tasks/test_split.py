"""The held-out split: its size, and that it follows the content alone."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import TaskError
from grouprl.tasks.split import content_key, split_heldout
from grouprl.types import Prompt


def prompts(contents: list[str]) -> list[Prompt]:
    return [Prompt(f"p{index}", content) for index, content in enumerate(contents)]


@pytest.mark.parametrize(
    ("count", "fraction", "heldout"),
    [
        (1, 0.1, 0),
        (2, 0.1, 1),
        (10, 0.1, 1),
        (11, 0.1, 2),
        (100, 0.1, 10),
        (5000, 0.1, 200),
        (10, 0.99, 9),
        (10, 0, 0),
    ],
)
def test_sizes(count: int, fraction: float, heldout: int) -> None:
    train, held = split_heldout(prompts([str(n) for n in range(count)]), fraction)
    assert (len(train), len(held)) == (count - heldout, heldout)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), st.floats(0, 0.99), st.randoms())
def test_duplicates_stay_together_and_order_does_not_matter(
    contents: list[str], fraction: float, shuffler: random.Random
) -> None:
    given_prompts = prompts(contents)
    train, held = split_heldout(given_prompts, fraction)
    assert train
    assert {p.content for p in train}.isdisjoint(p.content for p in held)
    assert sorted(p.prompt_id for p in train + held) == sorted(p.prompt_id for p in given_prompts)
    shuffled = list(given_prompts)
    shuffler.shuffle(shuffled)
    _, held_again = split_heldout(shuffled, fraction)
    assert {p.prompt_id for p in held} == {p.prompt_id for p in held_again}


def test_content_key_tells_text_from_conversation_and_ignores_the_order_of_keys() -> None:
    one = Prompt("a", ({"role": "user", "content": "Hi"},))
    assert content_key(one) == content_key(Prompt("b", ({"content": "Hi", "role": "user"},)))
    assert content_key(one) != content_key(Prompt("c", "Hi"))


@pytest.mark.parametrize("fraction", [1, 1.0, -0.1, float("nan"), "0.1", True, None])
def test_refuses_other_fractions(fraction: Any) -> None:
    with pytest.raises(TaskError, match=r"heldout_fraction: .* expected a number from 0"):
        split_heldout(prompts(["a"]), fraction)
