"""Task and Reward: what they refuse, uniform fields, and a fingerprint that follows the data alone."""

import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from grouprl.errors import TaskError
from grouprl.tasks import Reward, Task
from grouprl.types import Prompt


def ones(completions: list[str]) -> list[int]:
    return [1] * len(completions)


REWARD = Reward("ones", ones)


def task(*train: Prompt, heldout: tuple[Prompt, ...] = (), rewards: tuple[Reward, ...] = (REWARD,)) -> Task:
    return Task("t", train, heldout, rewards)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "1", None, True])
def test_a_weight_is_a_finite_number(weight: Any) -> None:
    with pytest.raises(TaskError, match=r"reward 'ones': weight .*expected a finite number"):
        Reward("ones", ones, weight)


@pytest.mark.parametrize("name", ["", " ", "a\nb", 3])
def test_a_reward_has_a_printable_name(name: Any) -> None:
    with pytest.raises(TaskError, match="expected printable text"):
        Reward(name, ones)


@pytest.mark.parametrize("function", [3, "last_number", dict])
def test_a_reward_function_can_be_called(function: Any) -> None:
    with pytest.raises(TaskError, match="is not a function"):
        Reward("r", function)


def test_what_a_task_refuses() -> None:
    one = Prompt("p", "Hi")
    with pytest.raises(TaskError, match="no prompt to train on"):
        task()
    with pytest.raises(TaskError, match="prompt_id 'p' stands twice"):
        task(one, heldout=(one,))
    with pytest.raises(TaskError, match="has a field 'completions', which is a keyword"):
        task(Prompt("p", "Hi", {"completions": 1}))
    with pytest.raises(TaskError, match="prompt 'p': the prompt is blank"):
        task(Prompt("p", " "))
    with pytest.raises(TaskError, match="prompt_id 3, expected text"):
        task(Prompt(3, "Hi"))  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="no reward, expected at least one"):
        task(one, rewards=())
    with pytest.raises(TaskError, match=r"two rewards named 'ones'.*another name"):
        task(one, rewards=(REWARD, replace(REWARD, weight=2.0)))
    with pytest.raises(TaskError, match="every reward has weight 0"):
        task(one, rewards=(replace(REWARD, weight=0.0),))
    with pytest.raises(TaskError, match="a reward of type function"):
        task(one, rewards=(ones,))  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="success_reward nan"):
        replace(task(one), success_reward=float("nan"))


def test_every_prompt_has_every_field() -> None:
    made = task(
        Prompt("a", "Hi", {"answer": 1}), Prompt("b", "Ho"), heldout=(Prompt("c", "Hm", {"level": 2}),)
    )
    assert made.field_names == ("answer", "level")
    assert [dict(p.fields) for p in [*made.train, *made.heldout]] == [
        {"answer": 1, "level": None},
        {"answer": None, "level": None},
        {"answer": None, "level": 2},
    ]


def test_fingerprint_follows_ids_content_fields_order_and_side() -> None:
    a, b = Prompt("a", "Hi", {"answer": 1}), Prompt("b", "Ho", {"answer": 2})
    base = task(a, b).fingerprint()
    changed = [
        task(b, a),
        task(a, heldout=(b,)),
        task(replace(a, prompt_id="z"), b),
        task(replace(a, content="Hi!"), b),
        task(replace(a, content=({"role": "user", "content": "Hi"},)), b),
        task(replace(a, fields={"answer": "1"}), b),
        task(replace(a, fields={"answer": True}), b),
        task(replace(a, fields={"answer": None}), b),
    ]
    assert len({base, *(t.fingerprint() for t in changed)}) == len(changed) + 1


def test_fingerprint_ignores_name_rewards_and_the_order_of_keys() -> None:
    one = task(Prompt("a", "Hi", {"x": 1, "y": 2}))
    other = Task("other", [Prompt("a", "Hi", {"y": 2, "x": 1})], [], (Reward("r", ones, 3.0),))
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() == pickle.loads(pickle.dumps(one)).fingerprint()


def test_fingerprint_takes_any_value() -> None:
    class Plain:
        pass

    values = [
        10**5000,
        float("nan"),
        np.float32(1.5),
        np.arange(3),
        np.longdouble(1),
        {"b", "a"},
        {1: [2, (3,)]},
        b"x",
        date(2024, 1, 2),
        Decimal("1.50"),
        Plain(),
        "\ud800",
    ]
    prints = [task(Prompt("a", "Hi", {"v": value})).fingerprint() for value in values]
    assert len(set(prints)) == len(values)
    assert prints[10] == task(Prompt("a", "Hi", {"v": Plain()})).fingerprint()  # no memory address in it


def test_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "from grouprl.tasks import Task, Reward\nfrom grouprl.types import Prompt\n"
        "t = Task('t', [Prompt('a', 'Hi', {'s': {'x', 'y', 'z'}})], [], (Reward('r', lambda **k: []),))\n"
        "print(t.fingerprint())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == task(Prompt("a", "Hi", {"s": {"z", "y", "x"}})).fingerprint()
