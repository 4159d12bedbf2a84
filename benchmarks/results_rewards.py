"""Rewards of the measured runs: what an answer is, recorded in every run, and a coin that says nothing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from grouprl.tasks import Verdict
from grouprl.tasks.builtin_rewards import last_integer, only_number


class Judged:
    """Right or not, in the form that was asked for or not: the task told apart from its format.

    strict    the right number and nothing else
    lenient   the right number last, with other text round it
    form      a number and nothing else, and not the right one
    neither   all the rest

    1 where it is strict, for no reason but to be a number: give it weight 0.
    """

    name = "judged"
    outcomes = ("strict", "lenient", "form", "neither")

    def __call__(self, completions: Sequence[str], answer: Sequence[Any]) -> list[Verdict]:
        right = last_integer(completions, answer)
        form = only_number(completions)
        return [Verdict(r * f, self._outcome(bool(r), bool(f))) for r, f in zip(right, form, strict=True)]

    def _outcome(self, right: bool, form: bool) -> str:
        if right:
            return "strict" if form else "lenient"
        return "form" if form else "neither"


judged = Judged()


def coin(completions: Sequence[str], prompts: Sequence[Any], completion_ids: Sequence[Any]) -> list[float]:
    """1 or 0 by a hash of prompt, place and completion: alike for right and wrong answers, the same in every run."""
    rows = zip(completions, prompts, completion_ids, strict=True)
    return [
        float(hashlib.sha256(repr((place, *row)).encode()).digest()[0] % 2) for place, row in enumerate(rows)
    ]
