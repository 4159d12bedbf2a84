"""Steps in which nothing could be learned, and why the loss is 0."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity, stretches
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import share
from grouprl.report.series import column, number, present

MOST_IDLE = 0.1
SMALL = 1e-6


@register("loss", finds=("no_gradient", "idle_steps", "learning_rate_zero", "not_finite"))
def loss(run: RunData) -> Iterator[Finding]:
    """Steps without a gradient, a learning rate of 0, and numbers that are not finite."""
    yield from _not_finite(run)
    if run.groups.is_empty() and not run.metrics:
        return
    yield from _learning_rate(run)
    yield from _without_gradient(run)


def _without_gradient(run: RunData) -> Iterator[Finding]:
    idle = idle_steps(run)
    if not idle:
        return
    steps = _all_steps(run)
    found = share([step in idle for step in steps], [1] * len(steps))
    informative = set(run.groups.filter(pl.col("kind") == "informative")["step"].unique().to_list())
    broken = idle & informative
    measured = {step for step in idle if step not in _with_gradient(run) and step in _with_metrics(run)}
    if broken & measured:
        yield Finding(
            "no_gradient",
            Severity.ERROR,
            "Groups with spread, and yet no gradient",
            "Rewards differ within groups, but the gradient is 0: what was computed from them does not reach the "
            "weights.",
            (
                "See that the parameters are trainable, and that the loss mask is not empty.",
                "See that the advantages are not dropped, or overwritten by 0.",
            ),
            stretches(broken & measured, steps),
            (Evidence("such steps", len(broken & measured), "count"), Evidence("steps", len(steps), "count")),
            run.examples(run.groups.filter(pl.col("step").is_in(sorted(broken)))),
        )
    rest = idle - broken
    if found is None or found.low <= MOST_IDLE or not rest:
        return
    yield Finding(
        "idle_steps",
        Severity.ERROR if len(rest) == len(steps) else Severity.WARNING,
        "No step learned anything"
        if len(rest) == len(steps)
        else f"{len(rest)} of {len(steps)} steps learned nothing",
        "The loss is 0 there, and truly: no group had rewards that differ, so every advantage and the gradient are 0. "
        "(A loss of 0 with a gradient is as it should be.)",
        (
            "Take more prompts a step, or a larger group: one group with spread is enough for a gradient.",
            "Dynamic sampling draws prompts until there are such groups.",
        ),
        stretches(rest, steps),
        (Evidence.of("steps without a gradient", found),),
        run.examples(run.groups.filter(pl.col("step").is_in(sorted(rest)))),
    )


def idle_steps(run: RunData) -> set[int]:
    """Steps whose gradient is 0; by the metrics, else those in which no advantage is other than 0."""
    measured = _with_metrics(run)
    idle = measured - _with_gradient(run)
    moved = (pl.col("advantage_min") != 0) | (pl.col("advantage_max") != 0)
    known = run.groups.filter(pl.col("advantages") > 0)
    moving = set(known.filter(moved)["step"].unique().to_list())
    unmeasured = set(known["step"].unique().to_list()) - measured
    return idle | (unmeasured - moving)


def _with_metrics(run: RunData) -> set[int]:
    """Steps whose gradient norm was recorded as a number."""
    return {
        int(line["step"])
        for line in run.metrics
        if "step" in line and number(line.get("grad_norm")) is not None
    }


def _with_gradient(run: RunData) -> set[int]:
    return {int(line["step"]) for line in run.metrics if "step" in line and number(line.get("grad_norm"))}


def _all_steps(run: RunData) -> list[int]:
    named = {int(line["step"]) for line in run.metrics if "step" in line}
    return sorted(named | set(run.steps))


def _learning_rate(run: RunData) -> Iterator[Finding]:
    rates = present(column(run.metrics, "lr"))
    if len(rates) < 2 or any(rates):
        return
    yield Finding(
        "learning_rate_zero",
        Severity.ERROR,
        "The learning rate is 0 in every step",
        "Nothing was trained, whatever the loss and the gradient were.",
        ("Look at optimizer.lr, and at a warm-up that is longer than the run.",),
        stretches(_all_steps(run), _all_steps(run)),
        (Evidence("steps", len(rates), "count"),),
    )


def _not_finite(run: RunData) -> Iterator[Finding]:
    """NaN is null in the log; a gradient norm is null for no other reason."""
    broken = [
        int(line["step"])
        for line in run.metrics
        if "step" in line and "grad_norm" in line and number(line["grad_norm"]) is None and _trained(line)
    ]
    if not broken:
        return
    yield Finding(
        "not_finite",
        Severity.ERROR,
        "The gradient was not finite",
        "NaN or infinity in a step spoils the weights for all later ones, unless the update was skipped.",
        (
            "Look at the first such step: a ratio that overflowed, a reward or an advantage that is NaN.",
            "Go back to a checkpoint before it.",
        ),
        stretches(broken, _all_steps(run)),
        (Evidence("such steps", len(broken), "count"),),
    )


def _trained(line: object) -> bool:
    """Whether a gradient was computed: some framework's log may leave the norm null where there was none."""
    return bool(number(line.get("trained_completions", 1)) if isinstance(line, dict) else True)


def loss_explained(run: RunData) -> str | None:
    """In a sentence, why the loss is about 0 though the run learns; None where it is not 0, or not recorded."""
    losses = present(column(run.metrics, "loss"))
    norms = [norm for norm in present(column(run.metrics, "grad_norm")) if norm]
    if not losses or not norms or max(map(abs, losses)) > SMALL:
        return None
    low, high = min(norms), max(norms)
    return (
        f"0 throughout, as it should be: on fresh samples the ratio is 1 and a group's advantages sum to 0. "
        f"What learns is the gradient, of norm {low:.2g} to {high:.2g}."
    )
