"""The quickstart's task: add or subtract two small numbers.

Small enough that a 135M-parameter model answers some of it before training and nearly all of it after, on a
laptop, in minutes. The answer is checked exactly.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from grouprl.errors import TaskError
from grouprl.tasks.builtin_rewards import last_integer
from grouprl.tasks.task import Reward, Task
from grouprl.types import Prompt

MAX_PAIRS = 250_000

_SIGNS = {"add": "+", "subtract": "-"}


def arithmetic(
    *,
    operation: Literal["add", "subtract"] = "add",
    low: int = 1,
    high: int = 20,
    heldout: int = 100,
) -> Task:
    """All pairs (a, b) from low to high: "What is a + b? Reply with only the number."

    Reward 1 where the last number of the completion is the answer, else 0 (`last_integer`).

    The held-out pairs are the first in the order of a hash of the two numbers. So they are the same in every
    run and for both operations, and (a, b) and (b, a) always stand on the same side: no held-out sum is one
    that training has seen the other way round.

    Args:
        operation: "add" or "subtract" (whose answers may be negative).
        low: The smallest number, 0 or more.
        high: The largest number.
        heldout: At least how many ordered pairs are held out (one more where the last comes with its mirror).

    Returns:
        The task. Its prompts are conversations of one user message, with fields `answer`, `a` and `b`.

    Raises:
        TaskError: an unknown operation, numbers that are not integers, negative or out of order, more than
            250,000 pairs, or so many held out that none is left to train on.

    Example:
        >>> task = arithmetic()
        >>> len(task.train), len(task.heldout)
        (300, 100)
        >>> by_id = {prompt.prompt_id: prompt for prompt in [*task.train, *task.heldout]}
        >>> prompt = by_id["arithmetic/7+15"]
        >>> prompt.content[0]["content"], prompt.fields["answer"]
        ('What is 7 + 15? Reply with only the number.', 22)
    """
    _check(operation, low, high, heldout)
    numbers = range(low, high + 1)
    unordered = sorted(((a, b) for a in numbers for b in range(a, high + 1)), key=_split_key)
    held: set[tuple[int, int]] = set()
    for a, b in unordered:
        if len(held) >= heldout:
            break
        held |= {(a, b), (b, a)}
    pairs = [(a, b) for a in numbers for b in numbers]
    train = [pair for pair in pairs if pair not in held]
    if not train:
        raise TaskError(
            f"arithmetic: heldout {heldout} of {len(pairs)} pairs leaves none to train on, expected fewer; "
            "lower heldout or widen low to high"
        )
    return Task(
        name="arithmetic",
        train=[_prompt(operation, a, b) for a, b in train],
        heldout=[_prompt(operation, a, b) for a, b in pairs if (a, b) in held],
        rewards=(Reward("last_integer", last_integer),),
    )


def _prompt(operation: str, a: int, b: int) -> Prompt:
    sign = _SIGNS[operation]
    question = f"What is {a} {sign} {b}? Reply with only the number."
    answer = a + b if operation == "add" else a - b
    return Prompt(
        prompt_id=f"arithmetic/{a}{sign}{b}",
        content=({"role": "user", "content": question},),
        fields={"answer": answer, "a": a, "b": b},
    )


def _split_key(pair: tuple[int, int]) -> str:
    return hashlib.sha256(f"arithmetic {pair[0]} {pair[1]}".encode()).hexdigest()


def _check(operation: str, low: int, high: int, heldout: int) -> None:
    if operation not in _SIGNS:
        raise TaskError(
            f"arithmetic: operation {operation!r}, expected one of {', '.join(map(repr, _SIGNS))}"
        )
    for name, value in (("low", low), ("high", high), ("heldout", heldout)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise TaskError(f"arithmetic: {name} {value!r}, expected an integer, 0 or more")
    if low > high:
        raise TaskError(f"arithmetic: low {low} and high {high}, expected low to be at most high")
    if (high - low + 1) ** 2 > MAX_PAIRS:
        raise TaskError(
            f"arithmetic: {low} to {high} makes {(high - low + 1) ** 2:,} pairs, expected at most "
            f"{MAX_PAIRS:,}; narrow the range"
        )
