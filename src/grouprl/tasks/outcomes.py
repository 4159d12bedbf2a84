"""A score that says why it is what it is, so that records can count "no answer" apart from "wrong"."""

from __future__ import annotations


class Verdict(float):
    """A score with the name of its outcome. It is a float in every other way.

    A reward function returns Verdicts where a plain number would hide something: 0 for a wrong answer and 0 for
    none at all. `score` counts them, and metrics.jsonl holds `reward_<name>_<outcome>_share`. A function object
    lists the outcomes that it can give in an attribute `outcomes`, so that one that never happened counts 0.

    Args:
        value: The score.
        outcome: A short name, part of a column's: "right", "no_answer".

    Example:
        >>> verdict = Verdict(0.0, "no_answer")
        >>> verdict == 0.0, verdict.outcome
        (True, 'no_answer')
    """

    outcome: str

    def __new__(cls, value: float, outcome: str) -> Verdict:
        self = super().__new__(cls, value)
        self.outcome = outcome
        return self

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.outcome

    def __repr__(self) -> str:
        return f"Verdict({float(self)!r}, {self.outcome!r})"
