"""Reward that rises while held-out accuracy does not follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, Z, difference, share
from grouprl.report.series import number

LEAST_RISE = 0.1
Z_95 = 1.959963984540054


@register("held_out", finds=("held_out_does_not_follow", "held_out_falls"))
def held_out(run: RunData) -> Iterator[Finding]:
    """The share of right completions in training rose by over a tenth, held-out accuracy by under half that."""
    measured = [line for line in run.evaluations if accuracy(line) is not None]
    if len(measured) < 2 or not run.has_trend:
        return
    before, after = accuracy(measured[0]), accuracy(measured[-1])
    first = share(run.first["right"], run.first["scored"])
    last = share(run.last["right"], run.last["scored"])
    if before is None or after is None or first is None or last is None:
        return
    trained, held = difference(last, first), difference(after, before)
    gap = difference(trained, held)
    if trained.low <= LEAST_RISE or held.value >= trained.value / 2 or gap.low <= 0:
        return
    falls = held.high < 0
    yield Finding(
        "held_out_falls" if falls else "held_out_does_not_follow",
        Severity.ERROR if falls else Severity.WARNING,
        "Training reward rises while held-out accuracy falls"
        if falls
        else "Training reward rises, held-out accuracy does not follow",
        "The model gets better at the training reward, not at the task: it found a way round the reward, or learned "
        "these prompts by heart.",
        (
            "Read completions of the last step with a high reward: is the task done?",
            "Take more prompts, or fewer passes over them; keep the checkpoint with the best held-out accuracy.",
        ),
        run.stretches(run.last),
        (
            Evidence.of("right in training, first quarter", first),
            Evidence.of("right in training, last quarter", last),
            Evidence.of("held-out accuracy, first", before),
            Evidence.of("held-out accuracy, last", after),
            Evidence.of("difference of the two rises", gap),
        ),
        run.examples(run.last.filter(run.last["right"] > 0)),
    )


def accuracy(line: Mapping[str, Any]) -> Interval | None:
    """The accuracy of a line of evaluations.jsonl, its interval widened from 95 % to that of the checks."""
    value, low, high = (number(line.get(key)) for key in ("accuracy", "accuracy_low", "accuracy_high"))
    if value is None:
        return None
    prompts = int(number(line.get("prompts")) or 0)
    if low is None or high is None:
        return share([value * prompts], [prompts]) if prompts else None
    half = (high - low) / 2 / Z_95 * Z
    return Interval(value, value - half, value + half, prompts)
