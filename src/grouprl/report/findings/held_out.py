"""Reward that rises, or holds, while held-out accuracy does not follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, difference, share, widened
from grouprl.report.series import number

LEAST_CHANGE = 0.1


@register("held_out", finds=("held_out_does_not_follow", "held_out_falls"))
def held_out(run: RunData) -> Iterator[Finding]:
    """The share of right completions in training rose by over a tenth, held-out accuracy by under half that; or
    held-out accuracy fell from its best by over a tenth, and training did not.
    """
    measured = [(line, known) for line in run.evaluations if (known := accuracy(line)) is not None]
    if len(measured) < 2 or not run.has_trend:
        return
    (_, before), (_, after) = measured[0], measured[-1]
    found = list(_told(run, "first", before, after, _right(run, run.first_steps)))
    best_line, best = max(measured[:-1], key=lambda one: one[1].value)
    if best is not before and not found:
        found += _told(run, "best", best, after, _right(run, _steps_until(run, best_line)))
    yield from found


def _told(
    run: RunData, when: str, before: Interval, after: Interval, then: Interval | None
) -> Iterator[Finding]:
    """The finding between an evaluation and the last, `then` being the share right in training at the former."""
    now = _right(run, run.last_steps)
    if then is None or now is None:
        return
    trained, held = difference(now, then), difference(after, before)
    gap = difference(trained, held)
    falls = held.high < 0
    if when == "first":
        found = trained.low > LEAST_CHANGE and held.value < trained.value / 2
    else:  # between the two training may have had nothing left to learn
        found = falls and held.value < -LEAST_CHANGE
    if not found or gap.low <= 0:
        return
    rises = trained.low > 0
    yield Finding(
        "held_out_falls" if falls else "held_out_does_not_follow",
        Severity.ERROR if falls else Severity.WARNING,
        f"Training reward {'rises' if rises else 'holds'} while held-out accuracy falls"
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
            Evidence.of(f"right in training, {'first quarter' if when == 'first' else 'at the best'}", then),
            Evidence.of("right in training, last quarter", now),
            Evidence.of(f"held-out accuracy, {when}", before),
            Evidence.of("held-out accuracy, last", after),
            Evidence.of("difference of the two changes", gap),
        ),
        run.examples(run.last.filter(run.last["right"] > 0)),
    )


def _right(run: RunData, steps: list[int]) -> Interval | None:
    groups = run.of(steps)
    return share(groups["right"], groups["scored"])


def _steps_until(run: RunData, line: Mapping[str, Any]) -> list[int]:
    """The quarter of the steps that ends with an evaluation."""
    step = number(line.get("step"))
    until = [one for one in run.steps if step is None or one <= step]
    return (until or run.steps)[-len(run.last_steps) :]


def accuracy(line: Mapping[str, Any]) -> Interval | None:
    """The accuracy of a line of evaluations.jsonl, its interval widened from 95 % to that of the checks."""
    value, low, high = (number(line.get(key)) for key in ("accuracy", "accuracy_low", "accuracy_high"))
    if value is None:
        return None
    prompts = int(number(line.get("prompts")) or 0)
    if low is None or high is None:
        return share([value * prompts], [prompts]) if prompts else None
    return Interval(value, *widened(value, low, high), prompts)
