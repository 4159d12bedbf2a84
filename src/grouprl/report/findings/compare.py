"""Two runs side by side: their numbers, which differences are sure, and the findings that only one has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grouprl.report.findings.finding import Finding, Unit
from grouprl.report.findings.overview import Overview, Report
from grouprl.report.findings.statistics import Interval, difference


@dataclass(frozen=True, slots=True)
class Line:
    """One number of both runs.

    Args:
        label: What was measured.
        unit: As in `Evidence`.
        a, b: Of the first and the second run; None where its records do not say.
        change: b − a with its interval; None where one is not known well enough.
    """

    label: str
    unit: Unit
    a: Interval | float | None
    b: Interval | float | None
    change: Interval | None

    @property
    def sure(self) -> bool:
        """Whether the difference's interval leaves 0 out."""
        return self.change is not None and not self.change.low <= 0 <= self.change.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports side by side.

    Args:
        a, b: The reports.
        lines: Their numbers.
        only_a, only_b, both: The findings by name: of one alone, and of both (as the second has them).
    """

    a: Report
    b: Report
    lines: tuple[Line, ...]
    only_a: tuple[Finding, ...]
    only_b: tuple[Finding, ...]
    both: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain Python that JSON can hold."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "lines": [
                {
                    "label": line.label,
                    "unit": line.unit,
                    "a": value(line.a),
                    "b": value(line.b),
                    "change": None
                    if line.change is None
                    else {"value": line.change.value, "low": line.change.low, "high": line.change.high},
                    "sure": line.sure,
                }
                for line in self.lines
            ],
            "only_a": [finding.name for finding in self.only_a],
            "only_b": [finding.name for finding in self.only_b],
            "both": [finding.name for finding in self.both],
        }


def compare(a: Report, b: Report) -> Comparison:
    """What differs between two runs.

    Rewards, lengths and entropy are those of each run's last quarter of steps. The runs count as independent: with
    the same prompts and seed the intervals are somewhat too wide.

    Args:
        a, b: What `findings.report` gives.
    """
    names_a, names_b = ({finding.name for finding in report.findings} for report in (a, b))
    return Comparison(
        a,
        b,
        tuple(_lines(a.overview, b.overview)),
        tuple(finding for finding in a.findings if finding.name not in names_b),
        tuple(finding for finding in b.findings if finding.name not in names_a),
        tuple(finding for finding in b.findings if finding.name in names_a),
    )


def value(number: Interval | float | None) -> float | None:
    """The estimate alone."""
    return number.value if isinstance(number, Interval) else number


def _lines(a: Overview, b: Overview) -> list[Line]:
    pairs: list[tuple[str, Unit, Interval | float | None, Interval | float | None]] = [
        ("steps", "count", a.steps, b.steps),
        ("completions", "count", a.completions, b.completions),
        ("tokens", "count", a.tokens, b.tokens),
        ("mean reward", "number", a.rewards[1], b.rewards[1]),
        ("right", "share", a.right[1], b.right[1]),
        ("held-out accuracy", "share", a.accuracy[1], b.accuracy[1]),
        ("groups without spread", "share", a.dead, b.dead),
        ("cut off", "share", a.truncated, b.truncated),
        ("tokens a completion", "tokens", a.length[1], b.length[1]),
        ("entropy a token", "nats", a.entropy[1], b.entropy[1]),
    ]
    return [
        Line(
            label,
            unit,
            x,
            y,
            difference(y, x) if isinstance(x, Interval) and isinstance(y, Interval) else None,
        )
        for label, unit, x, y in pairs
        if x is not None or y is not None
    ]
