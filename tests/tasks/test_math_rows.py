"""GSM8K-style and MATH-style data, from each kind of file and from a data set."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.errors import MissingDependency, TaskError
from grouprl.tasks import load
from grouprl.tasks.hub import HubDataset, hub_dataset
from grouprl.tasks.math_rows import INSTRUCTION, math_row

polars = pytest.importorskip("polars")
pytest.importorskip("math_verify")

GSM8K = [
    {"question": "Ada has 3 bags of 4 nuts. How many?", "answer": "3*4=<<3*4=12>>12 nuts.\n#### 12"},
    {"question": "A shirt of $30 is 10% off. What does it cost?", "answer": "30*0.9=<<30*.9=27>>27\n#### 27"},
    {"question": "How many legs have 250 spiders, and 500 more?", "answer": "#### 2,500"},
]
MATH = [
    {
        "problem": "Simplify $\\sqrt{12}$.",
        "solution": "It is $\\boxed{2\\sqrt{3}}$.",
        "level": "Level 1",
        "type": "Algebra",
    },
    {
        "problem": "Expand $(x+1)^2$.",
        "solution": "$\\boxed{x^2+2x+1}$",
        "level": "Level 2",
        "type": "Algebra",
    },
    {
        "problem": "Which is even, 2 or 3?",
        "solution": "$\\boxed{\\text{2}}$",
        "level": "Level 1",
        "type": "Numbers",
    },
]


def write(folder: Path, rows: list[dict[str, Any]], suffix: str) -> Path:
    path = folder / f"data{suffix}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    match suffix:
        case ".jsonl":
            path.write_text(lines)
        case ".jsonl.gz":
            path.write_bytes(gzip.compress(lines.encode()))
        case ".parquet":
            polars.DataFrame(rows).write_parquet(path)
        case ".csv":
            with path.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, rows[0])
                writer.writeheader()
                writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("rows", "right"), [(GSM8K, ["12", "$27.00", "2500"]), (MATH, ["\\sqrt{12}", "(x+1)^2", "2"])]
)
def test_each_kind_of_file(tmp_path: Path, suffix: str, rows: list[dict[str, Any]], right: list[str]) -> None:
    task = load(f"math:{write(tmp_path, rows, suffix)}", heldout_fraction=0)
    assert (task.name, [reward.name for reward in task.rewards]) == ("data", ["math"])
    assert [prompt.prompt_id for prompt in task.train] == ["data:1", "data:2", "data:3"]
    question = rows[0].get("question") or rows[0]["problem"]
    assert task.train[0].content == ({"role": "user", "content": f"{question}\n\n{INSTRUCTION}"},)
    golds = [prompt.fields["answer"] for prompt in task.train]
    said = [f"Thus \\boxed{{{answer}}}." for answer in right]
    assert [v.outcome for v in task.rewards[0].function(said, golds)] == ["right"] * 3
    assert [v.outcome for v in task.rewards[0].function(["\\boxed{77}"] * 3, golds)] == ["wrong"] * 3


def test_other_rewards_beside_it_and_a_held_out_file(tmp_path: Path) -> None:
    train, test = write(tmp_path, GSM8K[:2], ".jsonl"), write(tmp_path, GSM8K[2:], ".csv")
    task = load(f"math:{train}", rewards=["math", "tags"], reward_weights=[1, 0.1], heldout_path=test)
    assert [(r.name, r.weight) for r in task.rewards] == [("math", 1), ("tags", 0.1)]
    assert [prompt.prompt_id for prompt in task.heldout] == ["heldout/data:1"]
    assert len(load(f"math:{train}", heldout_path=f"math:{test}").heldout) == 1


def test_the_reward_alone_reads_worked_solutions(tmp_path: Path) -> None:
    path = write(tmp_path, [{"prompt": row["question"], "answer": row["answer"]} for row in GSM8K], ".jsonl")
    task = load(path, rewards="math", heldout_fraction=0)
    assert task.train[0].content == GSM8K[0]["question"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": "1"}, "none among its keys"),
        ({"question": "a", "problem": "b", "answer": "1"}, "both 'question' and 'problem'"),
        ({"question": " ", "answer": "1"}, "question ' ', expected text"),
        ({"question": ["a"], "answer": "1"}, "expected text"),
        ({"question": "a", "answer": None}, "no gold answer"),
    ],
)
def test_rows_that_do_not_fit(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        math_row(row)


def test_a_prompt_stays_as_it_is_and_answer_goes_before_solution() -> None:
    row = {
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "answer": 4,
        "solution": "\\boxed{5}",
        "problem": None,
    }
    assert math_row(row) == row


def test_csv_refusals(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    for text, problem in (
        ("question,answer\na,1,2\n", r"data.csv, row 1: 3 values under 2 columns"),
        ("question,question\n", r"column 'question' twice"),
        ("question,\na,1\n", r"a column without a name"),
        ('question,answer\n"a,1\n', r"cannot be read .*expected CSV"),
        ("", r"no prompts in it"),
    ):
        path.write_text(text)
        with pytest.raises(TaskError, match=problem):
            load(f"math:{path}")
    path.write_bytes(b"question,answer\n\xff,1\n")
    with pytest.raises(TaskError, match=r"cannot be read .*UTF-8"):
        load(f"math:{path}")


@pytest.mark.parametrize("name", ["math", "math:"])
def test_the_name_alone_says_what_is_missing(name: str) -> None:
    with pytest.raises(TaskError, match="no file after it, expected math:FILE"):
        load(name)


def test_names_of_data_sets(tmp_path: Path) -> None:
    assert hub_dataset("openai/gsm8k") == HubDataset("openai/gsm8k", None, "train")
    assert hub_dataset("openai/gsm8k:main") == HubDataset("openai/gsm8k", "main", "train")
    assert hub_dataset("openai/gsm8k:main@test") == HubDataset("openai/gsm8k", "main", "test")
    assert hub_dataset(f"{tmp_path}@test") == HubDataset(str(tmp_path), None, "test")
    for other in ("arithmetic", "a/b/c", "/absolute/name", "reasoning:x"):
        assert hub_dataset(other) is None
    assert str(HubDataset("openai/gsm8k", "main", "test")) == "openai/gsm8k:main@test"


def test_without_datasets_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        MissingDependency, match=r"^openai/gsm8k:main@train: .*pip install datasets, or give a file$"
    ):
        load("math:openai/gsm8k:main")


def test_a_folder_that_datasets_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "sums"
    folder.mkdir()
    for split, rows in (("train", GSM8K[:2]), ("test", GSM8K[2:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load(f"math:{folder}", heldout_path=f"{folder}@test")
    assert (task.name, [p.prompt_id for p in task.train]) == ("sums", ["sums:1", "sums:2"])
    assert [p.prompt_id for p in task.heldout] == ["heldout/sums:1"]
    with pytest.raises(TaskError, match=r"sums@dev: cannot be loaded"):
        load(f"math:{folder}@dev")
