"""Built-in rewards: the right completions, and golds that are read exactly or refused."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import TaskError
from grouprl.tasks.builtin_rewards import (
    exact_match,
    gold_integer,
    gold_number,
    gold_text,
    last_integer,
    last_number,
    only_number,
)


@pytest.mark.parametrize(
    ("gold", "completion", "score"),
    [
        (72, "The total is 72 clips, altogether.", 1),
        (29, "total cost is $29.00.", 1),
        ("29", "total cost is $29.00.", 1),
        (1234, "The answer is $1,234.00", 1),
        (-7, "#### -7", 1),
        (7, "#### -7", 0),
        (-3, "from 2 to -3 ... #### -3", 1),
        (-1234.5, "... #### -1,234.5", 1),
        ("-1,234.5", "-1234.50", 1),
        ("1", "12", 0),
        ("1", "21", 0),
        (0.1, "0.10", 1),
        (0.1, "1e-1", 1),
        (0, "no idea", 0),
        (5, "5-3", 0),
    ],
)
def test_last_number(gold: Any, completion: str, score: float) -> None:
    assert last_number([completion], [gold]) == [score]


def test_last_integer() -> None:
    texts = ["7 + 15 = 22.", "22.0", "22.5", "2", "122", "-22", "", "9" * 10_000]
    assert last_integer(texts, [22] * 8) == [1, 1, 0, 0, 0, 0, 0, 0]


def test_exact_match() -> None:
    texts = [" Paris\n", "paris", "Paris.", "It is Paris", "", "7"]
    assert exact_match(texts, [*["Paris "] * 5, 7]) == [1, 0, 0, 0, 0, 1]


def test_only_number() -> None:
    texts = ["22", " -4\n", "1,234.5", "-4 extra", "The answer is -4", "", "2 2"]
    assert only_number(texts) == [1, 1, 1, 0, 0, 0, 0]


def test_unchecked_gold_raises_and_never_scores() -> None:
    for reward in (last_integer, last_number, exact_match):
        with pytest.raises(TaskError, match=f"reward '{reward.name}': answer missing"):
            reward(["7", "8"], [7, None])


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        last_number(["7", "8"], [7])


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (72, 72),
        (np.int64(72), 72),
        ("72", 72),
        (" $1,234.00 ", 1234),
        ("\u22124", -4),
        (0.1, Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        (1e22, 10**22),
        (Decimal("2.50"), Fraction(5, 2)),
    ],
)
def test_gold_number(answer: Any, value: Fraction | int) -> None:
    assert gold_number(answer) == value


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        np.bool_(True),
        "",
        "seven",
        "7 apples",
        "#### 7",
        "1/2",
        "50%",
        "1.2.3",
        float("nan"),
        float("inf"),
        0.1 + 0.2,
        1 / 3,
        Decimal("NaN"),
        Decimal("1e999999"),
        Fraction(1, 3),
        10**300,
        10**5000,
        "9" * 301,
        [7],
        {"answer": 7},
    ],
    ids=lambda answer: str(type(answer)),
)
def test_gold_number_refuses(answer: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        gold_number(answer)


def test_gold_integer_refuses_a_fraction() -> None:
    assert gold_integer("22.0") == gold_integer(22.0) == 22
    with pytest.raises(ValueError, match=r"answer 22.5, expected a whole number"):
        gold_integer(22.5)


@pytest.mark.parametrize(
    "answer", [None, "", "  ", 1.5, True, ["a"], 10**5000], ids=lambda answer: str(type(answer))
)
def test_gold_text_refuses(answer: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        gold_text(answer)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_a_float_gold_equals_the_decimal_it_was_written_as(value: Decimal) -> None:
    assert last_number([f"It is {value:,}."], [float(value)]) == [1.0]
