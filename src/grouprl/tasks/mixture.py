"""Several sources of prompts in one task, by weight: "a*2+b" is two of a for each of b."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from grouprl.errors import TaskError

T = TypeVar("T")

_PART = re.compile(r"\s*(?P<name>[^*+\s]+)\s*(?:\*\s*(?P<weight>[0-9]{1,6}(?:\.[0-9]{1,6})?)\s*)?")


def parse_mixture(text: str, *, where: str) -> dict[str, Fraction]:
    """The parts of a mixture and their weights.

    Args:
        text: Names, each with "*weight" where it is not 1, joined by "+".
        where: Begins the messages.

    Returns:
        name → weight, in the order of the text.

    Raises:
        TaskError: a part that is not of this form, a weight of 0, or a name that stands twice.

    Example:
        >>> parse_mixture("chain_sum*2+leg_counting", where="task")
        {'chain_sum': Fraction(2, 1), 'leg_counting': Fraction(1, 1)}
    """
    weights: dict[str, Fraction] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part)
        if match is None:
            raise TaskError(f"{where}: {part!r} is not a part of a mixture, expected NAME or NAME*WEIGHT")
        weight = Fraction(match["weight"] or "1")
        if weight == 0:
            raise TaskError(f"{where}: {part.strip()!r} has weight 0, expected more; leave it out")
        if match["name"] in weights:
            raise TaskError(
                f"{where}: {match['name']!r} stands twice, expected each name once; give it a weight"
            )
        weights[match["name"]] = weight
    return weights


def apportion(total: int, weights: Sequence[Fraction]) -> list[int]:
    """How many of `total` each part gets: its share rounded down, and the rest to the largest remainders.

    Args:
        total: 0 or more.
        weights: Above 0.

    Returns:
        Counts that add up to `total` (Hamilton's method; of equal remainders the first part's comes first).

    Example:
        >>> apportion(10, [Fraction(2), Fraction(1)])
        [7, 3]
    """
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """All items, spread evenly: any beginning of the list holds the parts in about their proportion.

    Args:
        parts: Sequences of any lengths.

    Returns:
        Their items; those of one part in their order.

    Example:
        >>> interleave(["aaaa", "bb"])
        ['a', 'b', 'a', 'a', 'b', 'a']
    """
    placed = [
        (Fraction(2 * index + 1, 2 * len(part)), number, item)
        for number, part in enumerate(parts)
        for index, item in enumerate(part)
    ]
    placed.sort(key=lambda place: place[:2])
    return [item for _, _, item in placed]
