"""load: names and files, the held-out prompts, options, and the checks that come before training."""

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl import tasks
from grouprl.errors import TaskError
from grouprl.types import Prompt


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return write(
        tmp_path / "sums.jsonl", [{"prompt": f"What is {n} + 1?", "answer": n + 1} for n in range(30)]
    )


def test_a_built_in_task_with_options_and_other_rewards() -> None:
    task = tasks.load("arithmetic", high=9, heldout=10)
    assert len(task.train) + len(task.heldout) == 81
    task = tasks.load(
        "arithmetic", rewards=["last_number", "only_number"], reward_weights=[1, 0.5], success_reward=1.5
    )
    assert [(r.name, r.weight) for r in task.rewards] == [("last_number", 1), ("only_number", 0.5)]
    assert task.success_reward == 1.5


def test_a_file(sums: Path) -> None:
    task = tasks.load(sums, rewards="last_number")
    assert (task.name, len(task.train), len(task.heldout), task.success_reward) == ("sums", 27, 3, 1.0)
    again = tasks.load(str(sums), rewards="last_integer")
    assert task.fingerprint() == again.fingerprint()
    assert len(tasks.load(sums, rewards="last_number", heldout_fraction=0).heldout) == 0
    assert len(tasks.load(sums, rewards="last_number", heldout_fraction=0.5).heldout) == 15


def test_a_prompt_listed_twice_stays_on_one_side_under_two_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "twice.jsonl", [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}] * 3)
    task = tasks.load(path, rewards="last_number", heldout_fraction=0.5)
    assert {p.content for p in task.train}.isdisjoint(p.content for p in task.heldout)
    assert sorted(p.prompt_id for p in [*task.train, *task.heldout]) == [f"twice:{n}" for n in range(1, 7)]


def test_a_heldout_file(sums: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "test.jsonl", [{"prompt": "What is 50 + 1?", "answer": 51, "id": "sums:1"}])
    task = tasks.load(sums, rewards="last_number", heldout_path=other)
    assert len(task.train) == 30
    assert [p.prompt_id for p in task.heldout] == ["heldout/sums:1"]


def test_heldout_prompts_that_are_trained_on_are_refused(sums: Path) -> None:
    with pytest.raises(
        TaskError, match=r"sums.jsonl, line 1: the same prompt stands in .*line 1, .*30 of 30"
    ):
        tasks.load(sums, rewards="last_number", heldout_path=sums)


def test_a_field_that_a_line_lacks_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.jsonl", [{"prompt": "a", "hint": "x"}, {"prompt": "b"}])

    def hinted(completions: list[str], hint: list[str | None]) -> list[int]:
        return [h is not None for h in hint]

    task = tasks.load(path, rewards=hinted, heldout_fraction=0)
    assert [p.fields for p in task.train] == [{"hint": "x"}, {"hint": None}]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("abc", r"answer 'abc', expected one number"),
        ("#### 72", r"answer '#### 72', expected one number"),
        ("80,000+50,000=$<<80000+50000=130000>>130,000 ... #### 70000", "expected one number"),
        ("3/4", "answer '3/4'"),
        ("28%", "answer '28%'"),
        ("", "answer ''"),
        (None, "answer missing"),
        (True, "answer True"),
        ([4], r"answer \[4\]"),
        (0.1 + 0.2, "answer 0.30000000000000004, expected a float of at most 15 digits"),
    ],
)
def test_an_answer_that_cannot_be_read_stops_before_training(
    tmp_path: Path, answer: Any, problem: str
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n}?", "answer": n} for n in range(10)]
    rows[3]["answer"] = rows[7]["answer"] = answer
    path = write(tmp_path / "gold.jsonl", rows)
    with pytest.raises(TaskError, match=problem) as caught:
        tasks.load(path, rewards="last_number", heldout_fraction=0)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 4 (prompt 'gold:4'): answer ")
    assert "reward 'last_number'" in message
    assert f"2 of 10 prompts affected (then {path}, line 8" in message


def test_a_missing_answer_column_stops_before_training(tmp_path: Path) -> None:
    # The kind: rows turned into chat format, the answers dropped on the way.
    path = write(tmp_path / "chat.jsonl", [{"prompt": [{"role": "user", "content": "2 + 2?"}], "level": 1}])
    with pytest.raises(TaskError, match=r"parameter 'answer' matches no column, .*completions, .*, level; "):
        tasks.load(path, rewards="last_number")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetics", {}, "neither a built-in task nor a file.*did you mean 'arithmetic'"),
        ("absent.jsonl", {}, "absent.jsonl: no such file"),
        ("arithmetic", {"lo": 1}, "no option 'lo', expected one of operation, low, .*did you mean 'low'"),
        ("arithmetic", {"heldout_fraction": 0.1}, "heldout_fraction is for files"),
        ("arithmetic", {"heldout_path": "x.jsonl"}, "heldout_path is for files"),
        (
            "arithmetic",
            {"reward_weights": [1, 2]},
            r"2 for 1 rewards \(last_integer\), expected one weight each",
        ),
        ("arithmetic", {"rewards": ["only_number", "only_number"]}, "two rewards named 'only_number'"),
        ("arithmetic", {"success_reward": "1"}, "success_reward '1'"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        tasks.load(name, **{"rewards": "last_number"} | options if name.endswith("jsonl") else options)


def test_refusals_for_files(sums: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no reward for its prompts"):
        tasks.load(sums)
    with pytest.raises(TaskError, match="has no option 'low'"):
        tasks.load(sums, rewards="last_number", low=1)
    with pytest.raises(TaskError, match="both heldout_path and heldout_fraction"):
        tasks.load(sums, rewards="last_number", heldout_path=sums, heldout_fraction=0.1)
    write(tmp_path / "taken.jsonl", [{"prompt": "a", "prompts": 1}])
    with pytest.raises(TaskError, match="field 'prompts', which is a keyword"):
        tasks.load(tmp_path / "taken.jsonl", rewards="only_number")
    with pytest.raises(TaskError, match="neither a built-in task nor a file"):
        tasks.load(tmp_path / "data")
    (tmp_path / "data.json").write_text("[]")
    with pytest.raises(TaskError, match=r"data.json: unknown kind of file"):
        tasks.load(tmp_path / "data.json", rewards="only_number")


def test_check_rewards_of_a_task_made_by_hand() -> None:
    def right(completions: list[str], gold: list[int]) -> list[int]:
        return [0] * len(completions)

    async def later(completions: list[str]) -> list[int]:
        return [0] * len(completions)

    def yields(completions: list[str]) -> Any:
        yield from completions

    class Object:
        async def __call__(self, completions: list[str]) -> list[int]:
            return [0] * len(completions)

    prompts = [Prompt("p", "Hi", {"answer": 1})]
    for function, message in [
        (right, "reward 'r': parameter 'gold' matches no column, expected one of .*answer"),
        (later, "reward 'r': an async function"),
        (Object(), "reward 'r': an async function"),
        (yields, "reward 'r': a generator"),
    ]:
        with pytest.raises(TaskError, match=message):
            tasks.check_rewards(tasks.Task("t", prompts, [], (tasks.Reward("r", function),)))


def test_a_reward_of_ones_own_may_check_the_prompts() -> None:
    class Picky:
        def __call__(self, completions: list[str]) -> list[int]:
            return [0] * len(completions)

        def check_prompts(self, prompts: Any) -> Any:
            return [(prompt, "too hard") for prompt in prompts if prompt.fields["level"] > 3]

    prompts = [Prompt(f"p{n}", "Hi", {"level": n}) for n in range(6)]
    task = tasks.Task("t", prompts, [], (tasks.Reward("picky", Picky()),))
    with pytest.raises(
        TaskError, match=r"^prompt 'p4': too hard, which reward 'picky' .*2 of 6 .*\(then prompt 'p5'\)"
    ):
        tasks.check_rewards(task)
