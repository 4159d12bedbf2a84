"""Length rewards against their equations."""

import math
from itertools import pairwise
from typing import Any

import pytest

from grouprl.errors import TaskError
from grouprl.tasks import load, reward_from_spec
from grouprl.tasks.length_rewards import CosineLength, LinearLength, SoftOverlong


def ids(*lengths: int) -> list[list[int]]:
    return [[7] * length for length in lengths]


def test_case_84_soft_overlong() -> None:
    assert SoftOverlong(20, 4)(ids(16, 17, 18, 20, 21)) == [0, -0.25, -0.5, -1, -1]


def test_soft_overlong_is_the_tensor_function() -> None:
    torch = pytest.importorskip("torch")
    from grouprl.objectives import soft_overlong_penalty

    lengths = list(range(130))
    expected = soft_overlong_penalty(torch.tensor(lengths), max_tokens=100, buffer_tokens=32)
    assert SoftOverlong(100, 32)(ids(*lengths)) == expected.tolist()  # 1/32 is exact in float32


def test_linear() -> None:
    assert LinearLength(8)(ids(0, 2, 8, 9)) == [1, 0.75, 0, 0]


@pytest.mark.parametrize(
    ("right", "tokens", "value"),
    [
        (True, 0, 1.0),
        (True, 50, 0.75),
        (True, 100, 0.5),
        (False, 0, -1.0),
        (False, 50, -0.75),
        (False, 100, -0.5),
        (True, 25, 0.75 + 0.25 * math.sqrt(0.5)),
        (True, 101, -10.0),
        (False, 101, -10.0),
    ],
)
def test_cosine(right: bool, tokens: int, value: float) -> None:
    """The four ends of Yeo et al.'s equation 1, its middle, a quarter (cos 45°), and beyond the limit."""
    reward = CosineLength(lambda completions: [right], 100, exceed=-10.0)
    assert reward(completions=["a"], completion_ids=ids(tokens)) == [pytest.approx(value, abs=1e-12)]


def test_cosine_falls_for_right_and_rises_for_wrong() -> None:
    lengths = list(range(101))
    for right, sign in ((True, -1), (False, 1)):
        reward = CosineLength(lambda completions, right=right: [right] * len(completions), 100)
        values = reward(completions=["a"] * 101, completion_ids=ids(*lengths))
        assert all(sign * (b - a) > 0 for a, b in pairwise(values))


def test_cosine_of_a_named_reward_checks_its_gold_and_keeps_unscored(tmp_path: Any) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "2 + 2?", "answer": 4}\n{"prompt": "3 + 3?", "answer": "six"}\n')
    with pytest.raises(
        TaskError, match=r"line 2 .*answer 'six', expected one number, which reward 'cosine_length'"
    ):
        load(path, rewards="cosine_length:last_number,64")
    reward = reward_from_spec("cosine_length:last_number,64,-2")
    columns = {"completions": ["4", "4", "5"], "answer": [4] * 3, "completion_ids": ids(0, 65, 64)}
    assert reward.function(**columns) == [1.0, -2.0, -0.5]
    unscored = CosineLength(lambda completions: [None] * len(completions), 64)
    assert unscored(completions=["a"], completion_ids=ids(70)) == [None]


def test_a_missing_column_of_the_inner_reward_is_found_before_training(tmp_path: Any) -> None:
    path = tmp_path / "no_answer.jsonl"
    path.write_text('{"prompt": "2 + 2?"}\n')
    with pytest.raises(TaskError, match=r"reward 'cosine_length': parameter 'answer' matches no column"):
        load(path, rewards="cosine_length:last_number,64")


@pytest.mark.parametrize(
    "spec",
    [
        "length_linear",
        "length_linear:0",
        "length_linear:-1",
        "length_linear:many",
        "length_linear:1,2",
        "soft_overlong:4",
        "soft_overlong:4,5",
        "soft_overlong:4,0",
        "cosine_length:64",
        "cosine_length:nothing,64",
        "cosine_length:length_linear,64",
        "cosine_length:math,0",
        "cosine_length:math,1.5",
        "cosine_length:math,64,low",
        "last_number:3",
        "math:lenient",
    ],
)
def test_options_that_do_not_fit(spec: str) -> None:
    with pytest.raises(TaskError, match=r"reward '.*expected ") as caught:
        reward_from_spec(spec)
    assert "\n" not in str(caught.value)
