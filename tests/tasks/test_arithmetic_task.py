"""The arithmetic task: every pair once, right answers, and a split that is fixed and symmetric."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import TaskError
from grouprl.tasks import Task, arithmetic


def pairs(prompts: Any) -> set[tuple[int, int]]:
    return {(p.fields["a"], p.fields["b"]) for p in prompts}


def test_the_quickstart() -> None:
    task = arithmetic()
    every = [*task.train, *task.heldout]
    assert pairs(every) == {(a, b) for a in range(1, 21) for b in range(1, 21)}
    assert len(every) == 400
    assert len(task.heldout) >= 100
    assert not pairs(task.train) & pairs(task.heldout)
    for prompt in every:
        a, b = prompt.fields["a"], prompt.fields["b"]
        assert prompt.prompt_id == f"arithmetic/{a}+{b}"
        assert prompt.content == (
            {"role": "user", "content": f"What is {a} + {b}? Reply with only the number."},
        )
        assert prompt.fields["answer"] == a + b
    (reward,) = task.rewards
    assert (reward.name, reward.weight, task.success_reward) == ("last_integer", 1.0, 1.0)
    assert list(reward.function(completions=["7 + 15 = 22", "2", "122"], answer=[22] * 3)) == [1, 0, 0]


def test_the_split_is_fixed() -> None:
    # Pinned: a change would let an old run's training prompts into a new run's held-out ones.
    held = [prompt.prompt_id for prompt in arithmetic().heldout]
    assert held[:4] == ["arithmetic/1+7", "arithmetic/1+9", "arithmetic/1+10", "arithmetic/1+11"]
    assert hashlib.sha256(" ".join(held).encode()).hexdigest()[:16] == "7e2831d7381877ff"


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 60), st.sampled_from(["add", "subtract"]))
def test_mirrored_pairs_stand_on_the_same_side(low: int, width: int, heldout: int, operation: Any) -> None:
    try:
        task = arithmetic(operation=operation, low=low, high=low + width, heldout=heldout)
    except TaskError:
        assert heldout > (width + 1) ** 2 - 2
        return
    held = pairs(task.heldout)
    assert held == {(b, a) for a, b in held}
    assert heldout <= len(held) <= heldout + 1
    assert held.isdisjoint(pairs(task.train))


def test_both_operations_hold_out_the_same_pairs() -> None:
    add, subtract = arithmetic(), arithmetic(operation="subtract")
    assert pairs(add.heldout) == pairs(subtract.heldout)
    by_id = {p.prompt_id: p for p in [*subtract.train, *subtract.heldout]}
    assert by_id["arithmetic/7-15"].fields["answer"] == -8
    assert by_id["arithmetic/7-15"].content[0]["content"] == "What is 7 - 15? Reply with only the number."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operation": "times"}, "operation 'times', expected one of 'add', 'subtract'"),
        ({"low": -1}, "low -1, expected an integer, 0 or more"),
        ({"high": 2.5}, "high 2.5, expected an integer"),
        ({"heldout": True}, "heldout True, expected an integer"),
        ({"low": 21}, "low 21 and high 20"),
        ({"high": 10**9}, "expected at most 250,000; narrow the range"),
        ({"high": 5}, "heldout 100 of 25 pairs leaves none to train on"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        arithmetic(**options)


def test_no_heldout_at_all() -> None:
    task: Task = arithmetic(low=3, high=3, heldout=0)
    assert (len(task.train), len(task.heldout)) == (1, 0)
