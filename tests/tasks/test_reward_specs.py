"""Rewards from names, modules, files and functions, and what is said where one is not found."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl import tasks
from grouprl.errors import TaskError
from grouprl.tasks import Reward, make_rewards, reward_from_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


SOURCE = """
from grouprl.tasks import Reward

def short(completions):
    return [len(text) < 5 for text in completions]

class Judge:
    def __call__(self, completions):
        return [0.5] * len(completions)
    def strict(self, completions):
        return [0.0] * len(completions)

judge = Judge()
ready = Reward("named", short, weight=0.25)
number = 3
"""


def test_a_module_in_the_current_folder(folder: Path) -> None:
    (folder / "grouprl_test_rewards.py").write_text(SOURCE)
    reward = reward_from_spec("grouprl_test_rewards:short", weight=2.0)
    assert (reward.name, reward.weight) == ("short", 2.0)
    assert list(reward.function(completions=["abc", "abcdef"])) == [True, False]
    assert reward_from_spec("grouprl_test_rewards:judge").name == "judge"
    assert list(reward_from_spec("grouprl_test_rewards:judge.strict").function(completions=["a"])) == [0.0]
    ready = reward_from_spec("grouprl_test_rewards:ready")
    assert (ready.name, ready.weight) == ("named", 0.25)


def test_a_file_anywhere_with_its_neighbours(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour_of_random.py").write_text("VALUE = 1\n")
    (folder / "sub" / "random.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Kept:\n    x: int = 0\n\n"
        "def f(completions):\n    from neighbour_of_random import VALUE\n\n"
        "    return [VALUE] * len(completions)\n"
    )
    reward = reward_from_spec("sub/random.py:f")
    assert list(reward.function(completions=["a"])) == [1]
    assert "sub" not in (sys.modules["random"].__file__ or "")  # the standard library's stays
    assert reward_from_spec(str(folder / "sub" / "random.py") + ":f").function is reward.function


def test_a_package_module(folder: Path) -> None:
    (folder / "grouprl_test_package").mkdir()
    (folder / "grouprl_test_package" / "rewards.py").write_text(SOURCE)
    assert reward_from_spec("grouprl_test_package.rewards:short").name == "short"


def test_the_folder_ends_up_last_in_the_path(folder: Path) -> None:
    (folder / "grouprl_test_path.py").write_text(SOURCE)
    before = list(sys.path)
    for _ in range(2):
        reward_from_spec("grouprl_test_path:short")
    assert sys.path == [*before, str(folder)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("last_numbr", "not a built-in reward, expected .*exact_match, .*did you mean 'last_number'"),
        ("", "not a built-in reward"),
        ("module:", "not a built-in reward"),
        (":f", "not a built-in reward"),
        ("grouprl_absent:f", "no module 'grouprl_absent', neither installed nor in"),
        ("grouprl_absent.deep:f", "no module 'grouprl_absent.deep'"),
        ("absent.py:f", "no file absent.py in"),
        ("some/absent:f", "no file some/absent in"),
        ("grouprl_test_rewards:shrt", "no 'shrt' in grouprl_test_rewards.*did you mean 'short'"),
        ("grouprl_test_rewards:number", "number is of type int, expected a function"),
        ("grouprl_test_rewards:Judge", "Judge is of type type, expected a function, an object"),
        ("grouprl_test_broken:f", r"importing grouprl_test_broken raised NameError: name 'nope'"),
        ("grouprl_test_broken.py:f", r"importing grouprl_test_broken.py raised NameError"),
        ("grouprl_test_exits:f", "importing grouprl_test_exits raised SystemExit: 3"),
        ("grouprl_test_syntax:f", "importing grouprl_test_syntax raised SyntaxError"),
        (
            "grouprl_test_needs:f",
            "importing grouprl_test_needs raised ModuleNotFoundError: .*'grouprl_not_here'",
        ),
        ("text/file.txt:f", "importing text/file.txt raised ImportError: .*not a Python source file"),
    ],
)
def test_refusals(folder: Path, spec: str, message: str) -> None:
    (folder / "grouprl_test_rewards.py").write_text(SOURCE)
    (folder / "grouprl_test_broken.py").write_text("nope\n")
    (folder / "grouprl_test_exits.py").write_text("import sys\n\nsys.exit(3)\n")
    (folder / "grouprl_test_syntax.py").write_text("def\n")
    (folder / "grouprl_test_needs.py").write_text("import grouprl_not_here\n")
    (folder / "text").mkdir()
    (folder / "text" / "file.txt").write_text("x")
    with pytest.raises(
        TaskError, match=f"^reward '{spec}': .*{message}|^reward '{spec}': {message}"
    ) as caught:
        reward_from_spec(spec)
    assert "\n" not in str(caught.value)


def short(completions: list[str]) -> list[bool]:
    return [len(text) < 5 for text in completions]


def test_make_rewards_takes_one_or_many_of_each_kind() -> None:
    class Judge:
        def __call__(self, completions: list[str]) -> list[float]:
            return [0.0] * len(completions)

    ready = Reward("ready", short, 3.0)
    made = make_rewards(
        ["last_integer", short, functools.partial(short), Judge(), ready, lambda completions: []]
    )
    assert [r.name for r in made] == ["last_integer", "short", "short", "Judge", "ready", "lambda"]
    assert [r.weight for r in made] == [1, 1, 1, 1, 3, 1]
    assert make_rewards("last_integer")[0].name == make_rewards(["last_integer"])[0].name
    assert make_rewards(short)[0].function is short
    assert make_rewards(ready, [0.5])[0].weight == 0.5


def test_three_rewards_and_one_weight_are_refused() -> None:
    # The kind: pairing lists of different length stops at the shortest, and two rewards are never called.
    names = ["last_integer", "last_number", "only_number"]
    with pytest.raises(TaskError, match=r"1 for 3 rewards .*expected one weight each"):
        make_rewards(names, [1.0])
    with pytest.raises(TaskError, match="4 for 3 rewards"):
        make_rewards(names, [1.0] * 4)


@pytest.mark.parametrize("reward", [[3], [None], [{"name": "x"}], 3])
def test_make_rewards_refuses_other_things(reward: Any) -> None:
    with pytest.raises(TaskError, match="expected a function, a name, 'module:function' or a"):
        make_rewards(reward)


def test_task_stands_for_the_tasks_own_rewards() -> None:
    own = (Reward("right", len), Reward("score", len, weight=0.0), Reward("style", len, weight=0.25))
    made = make_rewards(["tags:think,answer", "task"], [0.5, 2.0], own=own)
    assert [(r.name, r.weight) for r in made] == [
        ("tags", 0.5),
        ("right", 2.0),
        ("score", 0.0),
        ("style", 0.5),
    ]
    assert [r.weight for r in make_rewards(["task", "tags"], own=own)] == [1.0, 0.0, 0.25, 1.0]
    assert make_rewards("task", own=own) == own


def test_task_without_a_task_that_has_rewards_is_refused() -> None:
    with pytest.raises(
        TaskError, match=r"^reward 'task': stands for the task's own rewards, .* has none; name"
    ):
        make_rewards(["task", "tags"])
    with pytest.raises(TaskError, match=r"^reward 'task': stands for a task's own rewards, expected a task"):
        reward_from_spec("task")
    own = (Reward("right", len),)
    with pytest.raises(TaskError, match=r"reward weights: 1 for 2 rewards \(task, tags\)"):
        make_rewards(["task", "tags"], [1.0], own=own)
    with pytest.raises(TaskError, match="two rewards named 'last_integer'"):
        tasks.load("arithmetic", rewards=["task", "last_integer"])


@pytest.mark.parametrize(
    ("written", "near"), [("tag", "tags"), ("tsak", "task"), ("lenght_linear", "length_linear")]
)
def test_a_name_that_is_none_is_refused_with_the_nearest(written: str, near: str) -> None:
    with pytest.raises(TaskError, match=f"not a built-in reward, expected .*; did you mean '{near}'\\?$"):
        reward_from_spec(written)


def test_task_beside_a_format_reward_for_every_kind_of_task(folder: Path) -> None:
    arithmetic = tasks.load("arithmetic", rewards=["task", "tags"], reward_weights=[1.0, 0.5])
    assert [(r.name, r.weight) for r in arithmetic.rewards] == [("last_integer", 1.0), ("tags", 0.5)]
    (folder / "sums.jsonl").write_text('{"question": "2 + 2?", "answer": "#### 4"}\n' * 2)
    mathematics = tasks.load("math:sums.jsonl", rewards=["task", "tags"], heldout_fraction=0)
    assert [r.name for r in mathematics.rewards] == ["math", "tags"]
    (folder / "plain.jsonl").write_text('{"prompt": "2 + 2?", "answer": 4}\n')
    with pytest.raises(TaskError, match="a file of prompts has none"):
        tasks.load("plain.jsonl", rewards=["task", "tags"], heldout_fraction=0)
