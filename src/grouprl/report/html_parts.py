"""The words at the top of the page: what was trained on what, the numbers to see first, held-out accuracy, findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grouprl.report.series import (
    column,
    decimal,
    duration,
    from_to,
    mean,
    number,
    percent,
    present,
    steps_in_words,
)
from grouprl.report.sources import Source

if TYPE_CHECKING:
    from grouprl.report.findings.finding import Evidence, Example, Finding


@dataclass(frozen=True, slots=True)
class ExampleView:
    """An example in words; `prompt` is empty where it is that of the example before."""

    where: str
    prompt: str
    completion: str | None


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding in words."""

    title: str
    severity: str
    meaning: str
    steps: str
    evidence: list[tuple[str, str, str]]
    """(label, value, interval)"""
    advice: list[str]
    examples: list[ExampleView]


ORDER = {"error": 0, "warning": 1, "info": 2}
EXAMPLE_CHARACTERS = 600
"""Of a text in an example: of a prompt its end, of a completion its beginning."""


def finding_views(findings: Sequence[Finding]) -> list[FindingView]:
    """Findings in words, the severe ones first."""
    views = [
        FindingView(
            title=one.title,
            severity=one.severity.label,
            meaning=one.meaning,
            steps=steps_in_words(one.steps),
            evidence=[_evidence_words(number) for number in one.evidence],
            advice=list(one.advice),
            examples=_example_views(one.examples),
        )
        for one in findings
    ]
    return sorted(views, key=lambda view: ORDER.get(view.severity, len(ORDER)))


def _example_views(examples: Sequence[Example]) -> list[ExampleView]:
    views, before = [], None
    for one in examples:
        prompt = (one.prompt or "").strip()
        views.append(
            ExampleView(
                where=f"step {one.step}: {one.outcome}",
                prompt="" if prompt == before else _clipped(prompt, end=True),
                completion=None if one.completion is None else _clipped(one.completion),
            )
        )
        before = prompt
    return views


def _clipped(text: str, *, end: bool = False) -> str:
    if len(text) <= EXAMPLE_CHARACTERS:
        return text
    return f"…{text[-EXAMPLE_CHARACTERS:]}" if end else f"{text[:EXAMPLE_CHARACTERS]}…"


def _evidence_words(one: Evidence) -> tuple[str, str, str]:
    interval = ""
    if one.low is not None and one.high is not None:
        interval = f"{in_unit(one.low, one.unit)} to {in_unit(one.high, one.unit)}"
    return one.label, in_unit(one.value, one.unit), interval


def in_unit(value: float, unit: str) -> str:
    """A number with its unit.

    Example:
        >>> in_unit(0.125, "share"), in_unit(12345.0, "tokens"), in_unit(0.5, "nats"), in_unit(7, "count")
        ('12.5%', '12,345 tokens', '0.5 nats', '7')
    """
    if unit == "share":
        return percent(value, 1)
    if unit in ("tokens", "count"):
        said = f"{value:,.0f}"
        return f"{said} tokens" if unit == "tokens" else said
    return {"nats": f"{value:.3g} nats", "times": f"{value:.3g} ×"}.get(unit, f"{value:.3g}")


def heading(source: Source) -> list[tuple[str, str]]:
    """(label, value) of what was trained on what; what the configuration does not name is left out."""
    config, metrics = source.config, source.metrics
    done = max(present(column(metrics, "step")), default=float(len(metrics)))
    planned = number(_setting(config, "steps"))
    steps = f"{done:.0f}" if planned is None or planned == done else f"{done:.0f} of {planned:.0f}"
    facts = [("model", _setting(config, "model")), ("task", _setting(config, "task")), ("steps", steps)]
    if source.run is not None and source.run.framework is not None:
        facts.insert(0, ("rollouts of", source.run.framework))
    further = ("prompts_per_step", "group_size", "estimator", "lr", "seed")
    facts += [(key.replace("_", " "), _setting(config, key)) for key in further]
    return [(label, str(value)) for label, value in facts if value is not None]


def _setting(config: Mapping[str, Any], key: str) -> Any:
    """The scalar of that name, at the top of the configuration or in one of its tables."""
    tables = [config, *(table for table in config.values() if isinstance(table, Mapping))]
    for table in tables:
        value = table.get(key)
        if isinstance(value, Mapping):
            value = next((value[name] for name in ("name", "path", "id", key) if name in value), None)
        if value is not None and not isinstance(value, list | Mapping):
            return value
    return None


def tiles(source: Source) -> list[tuple[str, str, str]]:
    """(label, figure, remark) of the few numbers to see first."""
    metrics, evaluations = source.metrics, source.evaluations
    accuracy = column(evaluations, "accuracy")
    truncated = column(metrics, "truncated_share")
    remark = "of completions, first to last step"
    says_finished = bool(metrics) and "finished_tokens_mean" in metrics[-1]
    if says_finished and not present(column(metrics, "finished_tokens_mean")) and any(present(truncated)):
        remark = "of completions: none finished"
    informative = mean(column(metrics, "groups_informative_share"))
    shown = [
        (
            "Held-out accuracy",
            from_to(accuracy, percent),
            f"sampled, 95% {_interval(evaluations[-1])} at the end",
        )
        if present(accuracy)
        else ("Held-out accuracy", "–", "not evaluated"),
        ("Mean reward", from_to(column(metrics, "reward_mean"), decimal), "first to last step"),
        ("Groups with spread", percent(informative), "mean over the run"),
        ("Truncated", from_to(truncated, percent), remark),
    ]
    if source.metrics_stand_in:  # another framework's rollouts: what they do not hold is no news of the run
        shown = [one for one in shown if one[1] != "–"]
    seconds = present(column(metrics, "seconds_step"))
    if seconds:
        memory = max(present(column(metrics, "peak_memory_gib")), default=None)
        peak = "" if memory is None else f", peak memory {memory:.1f} GiB"
        shown.append(("Time in steps", duration(sum(seconds)), f"{duration(mean(seconds))} a step{peak}"))
    return shown


def evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first and last evaluation side by side; None where there was none."""
    if not evaluations:
        return None
    chosen = [evaluations[0]] if len(evaluations) == 1 else [evaluations[0], evaluations[-1]]
    rows = {
        "Accuracy, sampled": [percent(number(one.get("accuracy")), 1) for one in chosen],
        "95% interval": [_interval(one) for one in chosen],
        "Accuracy, greedy": [percent(number(one.get("accuracy_greedy")), 1) for one in chosen],
        "Mean reward": [decimal(number(one.get("reward_mean"))) for one in chosen],
        "Truncated": [percent(number(one.get("truncated_share")), 1) for one in chosen],
        **_if_some(chosen, "Only a number", "only_number_share"),
        **_if_some(chosen, "Unscored", "unscored_share"),
        "Prompts × samples": [_counts(one) for one in chosen],
    }
    names = [f"step {decimal(number(one.get('step')), 0)}" for one in chosen]
    if len(chosen) == 2:
        first, last = ("before", "after") if number(chosen[0].get("step")) == 0 else ("first", "last")
        names = [f"{first} ({names[0]})", f"{last} ({names[1]})"]
    return {"columns": names, "rows": {name: row for name, row in rows.items() if any(c != "–" for c in row)}}


def _if_some(chosen: Sequence[Mapping[str, Any]], name: str, key: str) -> dict[str, list[str]]:
    """A row of shares, or none where all of them are 0: it does not concern this task."""
    shares = [number(one.get(key)) for one in chosen]
    return {name: [percent(share, 1) for share in shares]} if any(shares) else {}


def _interval(evaluation: Mapping[str, Any]) -> str:
    low, high = number(evaluation.get("accuracy_low")), number(evaluation.get("accuracy_high"))
    return "–" if low is None or high is None else f"{percent(low, 1)} to {percent(high, 1)}"


def _counts(evaluation: Mapping[str, Any]) -> str:
    prompts, samples = number(evaluation.get("prompts")), number(evaluation.get("samples"))
    return "–" if prompts is None else f"{prompts:.0f}" + ("" if samples is None else f" × {samples:.0f}")
