"""A finding: what was seen in a run's records, how sure it is, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from grouprl.report.findings.statistics import Interval

Unit = Literal["share", "tokens", "count", "nats", "number", "times"]


class Severity(IntEnum):
    """How much a finding matters; they compare, so `finding.severity >= Severity.WARNING` works.

    INFO: worth knowing, nothing is broken. WARNING: compute or signal is being lost. ERROR: what was learned
    from is not what was meant.
    """

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """As the command line and JSON name it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind a finding.

    Args:
        label: What was measured.
        value: How much.
        unit: "share" (0 to 1), "tokens", "count", "nats", "times" or "number".
        low, high: Its interval (99.8 %), None where it is a plain count.
    """

    label: str
    value: float
    unit: Unit = "share"
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, label: str, interval: Interval, unit: Unit = "share") -> Evidence:
        """The evidence that an interval is."""
        return cls(label, interval.value, unit, interval.low, interval.high)


@dataclass(frozen=True, slots=True)
class Example:
    """A completion to see it by. Its text is untrusted: whoever shows it escapes it.

    Args:
        step, group_id: Where it stands.
        prompt, completion: Their text, None where the records hold none.
        reward, advantage: None where there is none.
    """

    step: int
    group_id: str
    prompt: str | None
    completion: str | None
    reward: float | None = None
    advantage: float | None = None

    @property
    def outcome(self) -> str:
        """ "reward 1, advantage +0.50", or as much of it as is known."""
        reward = "unscored" if self.reward is None else f"reward {self.reward:.3g}"
        return reward if self.advantage is None else f"{reward}, advantage {self.advantage:+.2f}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Args:
        name: Of the kind of finding; its section in docs/findings.md has this name.
        severity: How much it matters.
        title: One line, without a full stop.
        meaning: What it means here, in one to three sentences.
        advice: What to do, the first first.
        steps: The steps it concerns, as (first, last) stretches.
        evidence: The numbers behind it.
        examples: A few completions to see it by.
    """

    name: str
    severity: Severity
    title: str
    meaning: str
    advice: tuple[str, ...]
    steps: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    examples: tuple[Example, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As plain Python that JSON can hold; the texts of examples are as they were recorded."""
        return {
            "name": self.name,
            "severity": self.severity.label,
            "title": self.title,
            "meaning": self.meaning,
            "advice": list(self.advice),
            "steps": [list(stretch) for stretch in self.steps],
            "evidence": [
                {"label": e.label, "value": e.value, "unit": e.unit, "low": e.low, "high": e.high}
                for e in self.evidence
            ],
            "examples": [
                {
                    "step": e.step,
                    "group_id": e.group_id,
                    "prompt": e.prompt,
                    "completion": e.completion,
                    "reward": e.reward,
                    "advantage": e.advantage,
                }
                for e in self.examples
            ],
        }


def stretches(steps: Iterable[int], known: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The steps as (first, last) stretches; steps that no record has do not interrupt one.

    Args:
        steps: The steps to name, in any order.
        known: All steps of the run.

    Example:
        >>> stretches([1, 2, 3, 8, 6], known=[1, 2, 3, 4, 6, 8])
        ((1, 3), (6, 8))
    """
    chosen, found = set(steps), []
    start = last = None
    for step in sorted(set(known) | chosen):
        if step in chosen:
            start, last = (step if start is None else start), step
        elif start is not None and last is not None:
            found.append((start, last))
            start = None
    if start is not None and last is not None:
        found.append((start, last))
    return tuple(found)
