"""Rewards that come with grouprl: 1 where the completion is right, 0 where it is not.

Those that compare with a prompt's `answer` find an answer that they cannot read before training starts
(`check_prompts`), and raise on one that nobody checked: never a wrong score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np

from grouprl.errors import TaskError
from grouprl.tasks import answers
from grouprl.types import Prompt

EXACT_DIGITS = 15
"""Decimals of up to 15 significant digits survive float64; a float that shows more shows rounding."""


@dataclass(frozen=True)
class AnswerReward:
    """1 where what is read from the completion equals what is read from the prompt's `answer`, else 0.

    Args:
        name: The built-in name.
        read: The completion's text → its answer, None where it has none.
        read_gold: The `answer` field → the right answer. Raises ValueError, saying what is wrong with it.
    """

    name: str
    read: Callable[[str], Any]
    read_gold: Callable[[Any], Any]

    def __call__(self, completions: Sequence[str], answer: Sequence[Any]) -> list[float]:
        """Score the batch.

        Raises:
            TaskError: an answer that cannot be read.
        """
        scores = []
        for text, gold in zip(completions, answer, strict=True):
            try:
                right = self.read_gold(gold)
            except ValueError as error:
                raise TaskError(f"reward {self.name!r}: {error}") from error
            scores.append(float(self.read(text) == right))
        return scores

    def check_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, str]]:
        """The prompts whose `answer` cannot be read, each with what is wrong with it."""
        for prompt in prompts:
            try:
                self.read_gold(prompt.fields.get("answer"))
            except ValueError as error:
                yield prompt, str(error)


def only_number(completions: Sequence[str]) -> list[float]:
    """1 where the completion is one number and nothing else but white space round it, else 0.

    Args:
        completions: The completions' texts.

    Returns:
        One score each.

    Example:
        >>> only_number(["22", " -1,234.5\\n", "It is 22", "22.", ""])
        [1.0, 1.0, 0.0, 0.0, 0.0]
    """
    return [float(answers.number(text) is not None) for text in completions]


def gold_number(answer: Any) -> Fraction:
    """The exact value of an `answer` field that is a number, or text that is one number and nothing else.

    Args:
        answer: int, float, Decimal, a NumPy scalar, or text ("72", "-1,234.5", "$29.00").

    Returns:
        The value. A float counts as the decimal that it is written as: 0.1 is 1/10.

    Raises:
        ValueError: anything else; text with more in it than the number ("#### 72", "3/4", "28%"); a float
            that needs more than 15 digits (0.1 + 0.2), which is not the decimal that was meant; a number
            longer than the longest that is read from a completion.

    Example:
        >>> gold_number("1,234.00"), gold_number(29.5)
        (Fraction(1234, 1), Fraction(59, 2))
    """
    value: Fraction | None = None
    if isinstance(answer, str):
        value = answers.number(answer)
    elif isinstance(answer, bool | np.bool_):
        pass
    elif isinstance(answer, Integral):
        value = Fraction(int(answer)) if abs(int(answer)) < 10**answers.MAX_CHARACTERS else None
    elif isinstance(answer, Decimal) and answer.is_finite():
        value = answers.number(str(answer))
    elif isinstance(answer, float | np.floating) and np.isfinite(answer):
        written = Decimal(str(answer))
        if len(written.normalize().as_tuple().digits) > EXACT_DIGITS:
            raise ValueError(
                f"answer {answer!r}, expected a float of at most {EXACT_DIGITS} digits, or the number as text"
            )
        value = Fraction(written)
    if value is None:
        raise ValueError(f"answer {shown(answer)}, expected one number")
    return value


def gold_integer(answer: Any) -> int:
    """The value of an `answer` field that is a whole number: `gold_number`, refused where it is not whole.

    Args:
        answer: As for `gold_number`; "22.0" and 22.0 are 22.

    Returns:
        The integer.

    Raises:
        ValueError: as `gold_number`, and for a number that is not whole.

    Example:
        >>> gold_integer("22")
        22
    """
    value = gold_number(answer)
    if value.denominator != 1:
        raise ValueError(f"answer {shown(answer)}, expected a whole number")
    return int(value)


def gold_text(answer: Any) -> str:
    """An `answer` field that is text or an integer, as text without white space round it.

    Args:
        answer: str, or int.

    Returns:
        The text.

    Raises:
        ValueError: anything else (how would a float be written?), or nothing but white space.

    Example:
        >>> gold_text(" Paris "), gold_text(7)
        ('Paris', '7')
    """
    if isinstance(answer, Integral):
        return str(gold_integer(answer))
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"answer {shown(answer)}, expected text that is not blank")
    return answer.strip()


last_integer = AnswerReward("last_integer", answers.last_integer, gold_integer)
last_number = AnswerReward("last_number", answers.last_number, gold_number)
exact_match = AnswerReward("exact_match", str.strip, gold_text)


def shown(answer: Any) -> str:
    """A field's value for a message: its repr, cut short; "missing" for None."""
    if answer is None:
        return "missing"
    if isinstance(answer, int) and abs(answer) >= 10**answers.MAX_CHARACTERS:
        return f"of {answer.bit_length()} bits"  # repr() refuses integers of 4,300 digits
    text = repr(answer)
    return text if len(text) <= 80 else text[:80] + "…"
