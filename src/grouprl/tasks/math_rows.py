"""Rows of mathematics data sets as prompts: GSM8K's question and answer, MATH's problem and solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUESTION_KEYS = ("prompt", "question", "problem")
GOLD_KEYS = ("answer", "solution")

INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
"""Follows the question, after an empty line."""


def math_row(row: Mapping[str, Any]) -> dict[str, Any]:
    r"""A row with `prompt` and `answer`.

    A `question` or `problem` becomes a conversation of one message, with the instruction to box the answer after it; a
    `prompt` stays as it is. Without an `answer` the `solution` is it: `MathReward` finds the gold answer in either. All
    other keys stay.

    Args:
        row: As it was read.

    Raises:
        ValueError: Nothing to ask, several, or no answer.

    Example:
        >>> row = math_row({"problem": "What is 1 + 1?", "solution": "It is $\\boxed{2}$.", "level": "1"})
        >>> row["prompt"][0]["content"]
        'What is 1 + 1?\n\nReason step by step, and put your final answer within \\boxed{}.'
        >>> row["answer"], row["level"], sorted(row)
        ('It is $\\boxed{2}$.', '1', ['answer', 'level', 'prompt', 'solution'])
    """
    made = dict(row)
    asked = [key for key in QUESTION_KEYS if made.get(key) is not None]
    if len(asked) != 1:
        found = f"both {' and '.join(map(repr, asked))}" if asked else "none"
        raise ValueError(f"{found} among its keys {list(row)}, expected one of {', '.join(QUESTION_KEYS)}")
    question = made.pop(asked[0])
    if asked[0] != "prompt":
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"{asked[0]} {question!r}, expected text that is not blank")
        question = [{"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}"}]
    golds = [key for key in GOLD_KEYS if made.get(key) is not None]
    if not golds:
        raise ValueError(f"no gold answer among its keys {list(row)}, expected {' or '.join(GOLD_KEYS)}")
    return made | {"prompt": question, "answer": made[golds[0]]}
