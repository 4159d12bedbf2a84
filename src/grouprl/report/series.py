"""A run's logs as columns of numbers, and the few sums and words that the report takes from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

MOST_STRETCHES = 8
Series = list[float | None]
"""One number a step; None where the step has none (nothing finished, nothing scored)."""


def column(records: Sequence[Mapping[str, Any]], name: str) -> Series:
    """One value a record; None where it lacks the name, or holds no finite number there.

    Example:
        >>> column([{"loss": 1}, {"loss": None}, {}, {"loss": "nan"}], "loss")
        [1.0, None, None, None]
    """
    return [number(record.get(name)) for record in records]


def number(value: Any) -> float | None:
    """The value as a float, None where it is no finite number (a bool is none)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:  # an integer beyond float64
        return None
    return converted if math.isfinite(converted) else None


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are there."""
    return [value for value in values if value is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean over the values present, None where there are none.

    Example:
        >>> mean([1.0, None, 2.0]), mean([None])
        (1.5, None)
    """
    there = present(values)
    return math.fsum(value / len(there) for value in there) if there else None


def thin(steps: Series, columns: Sequence[Series], most: int = 1500) -> tuple[Series, list[Series]]:
    """At most `most` points: longer series are averaged over equal stretches, so a figure stays fluid."""
    if len(steps) <= most:
        return steps, list(columns)
    bounds = [i * len(steps) // most for i in range(most + 1)]

    def averaged(values: Series) -> Series:
        return [mean(values[a:b]) for a, b in pairwise(bounds)]

    return averaged(steps), [averaged(values) for values in columns]


def rounded(values: Iterable[float | None], digits: int = 5) -> Series:
    """The values with so many significant digits, which is what a figure can show and its JSON need hold.

    Example:
        >>> rounded([1 / 3, None, 1234567.0])
        [0.33333, None, 1234600.0]
    """
    return [None if value is None else float(f"{value:.{digits}g}") for value in values]


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent, "–" where there is none.

    Example:
        >>> percent(0.5), percent(0.1234, 1), percent(None)
        ('50%', '12.3%', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f}%"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals (large and tiny ones in exponent form), "–" where there is none.

    Example:
        >>> decimal(0.75), decimal(-1e-9), decimal(3.2e7), decimal(None)
        ('0.75', '-1.0e-09', '3.2e+07', '–')
    """
    if value is None:
        return "–"
    if value != 0 and not 10**-digits / 2 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """Seconds in words.

    Example:
        >>> duration(7.25), duration(134), duration(7260), duration(None)
        ('7.2 s', '2 min 14 s', '2 h 1 min', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def from_to(values: Series, say: Callable[[float], str]) -> str:
    """The first and last value present, in words; one where they read the same, "–" where there is none.

    Example:
        >>> from_to([0.17, None, 0.75], decimal), from_to([1.0, 0.5, 1.0], percent), from_to([None], decimal)
        ('0.17 to 0.75', '100%', '–')
    """
    there = present(values)
    if not there:
        return "–"
    first, last = say(there[0]), say(there[-1])
    return first if first == last else f"{first} to {last}"


def steps_in_words(stretches: Sequence[tuple[int, int]]) -> str:
    """Stretches of steps, (first, last) each, in words.

    Example:
        >>> steps_in_words([(1, 3), (7, 7)]), steps_in_words([(5, 5)]), steps_in_words([])
        ('steps 1–3, 7', 'step 5', '')
    """
    said = [str(first) if first == last else f"{first}–{last}" for first, last in stretches]
    if not said:
        return ""
    one = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
    if len(said) > MOST_STRETCHES:
        said = [*said[: MOST_STRETCHES - 1], "…", said[-1]]
    return f"step{'' if one else 's'} {', '.join(said)}"
