"""Completions that grow or shrink without getting better."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import polars as pl

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, difference, mean, quotient, ratio

GROWTH = 1.25
"""Wrong completions that grow by this factor, and by as much more than right ones."""
DRIFT = 1.5
NO_BETTER = 0.25
"""Of the std of the first quarter's rewards: a gain that is surely smaller is none."""


@register("lengths", finds=("wrong_answers_grow", "length_drift"))
def lengths(run: RunData) -> Iterator[Finding]:
    """From the first to the last quarter: wrong completions outgrow right ones, or all drift for nothing."""
    if not run.has_trend:
        return
    first, last = run.first, run.last
    every = _change(first, last, "tokens", "tokens_known")
    right = _change(first, last, "right_tokens", "right")
    wrong = _change(first, last, "wrong_tokens", "wrong")
    if wrong is not None and wrong.low > GROWTH and (right is None or wrong.low > GROWTH * right.value):
        evidence = [
            *_lengths("wrong", first, last, "wrong_tokens", "wrong"),
            Evidence.of("  grew", wrong, "times"),
        ]
        if right is not None:
            evidence += _lengths("right", first, last, "right_tokens", "right")
            evidence.append(Evidence.of("  grew", right, "times"))
        yield Finding(
            "wrong_answers_grow",
            Severity.WARNING,
            f"Wrong completions grew {wrong.value:.1f} times as long"
            + (f", right ones {right.value:.1f} times" if right is not None else ""),
            "A mean over each completion's own tokens punishes a long wrong answer less a token than a short one, so "
            "wrong answers drift longer.",
            (
                "Use an aggregation with one denominator: token_mean (DAPO) or constant (Dr. GRPO).",
                "Look at some long wrong ones: loops, or thinking that found no answer?",
            ),
            run.stretches(last),
            tuple(evidence),
            run.examples(last.filter(pl.col("wrong") > 0), where=pl.col("score") < run.success_reward),
        )
    elif every is not None and (every.low > DRIFT or every.high < 1 / DRIFT):
        reward = _reward_change(first, last)
        if reward is None or reward.high >= NO_BETTER * _reward_std(first):
            return
        longer = every.value > 1
        yield Finding(
            "length_drift",
            Severity.WARNING,
            f"Completions are {every.value:.1f} times as long as at the start, and no better"
            if longer
            else f"Completions shrank to {100 * every.value:.0f} % of their length, and are no better",
            "Length moved clearly while the reward did not: something other than the reward pulls on it.",
            (
                "Look at the aggregation (token_mean or constant do not favour a length).",
                "Look for a reward, or a cut, that depends on length.",
            ),
            run.stretches(last),
            (
                *_lengths("all", first, last, "tokens", "tokens_known"),
                Evidence.of("  changed", every, "times"),
                Evidence.of("change of the mean reward", reward, "number"),
            ),
            run.examples(last),
        )


def _change(first: pl.DataFrame, last: pl.DataFrame, tokens: str, count: str) -> Interval | None:
    before, after = ratio(first[tokens], first[count]), ratio(last[tokens], last[count])
    return None if before is None or after is None else quotient(after, before)


def _reward_change(first: pl.DataFrame, last: pl.DataFrame) -> Interval | None:
    before, after = mean(first["reward_mean"].drop_nulls()), mean(last["reward_mean"].drop_nulls())
    return None if before is None or after is None else difference(after, before)


def _reward_std(groups: pl.DataFrame) -> float:
    """The std of the scored rewards, from that within groups and that of their means."""
    scored = groups.filter(pl.col("scored") > 0)
    within, between = (scored["reward_std"] ** 2).mean(), scored["reward_mean"].var(ddof=0)
    return float(sqrt(float(within or 0.0) + float(between or 0.0)))  # type: ignore[arg-type]


def _lengths(which: str, first: pl.DataFrame, last: pl.DataFrame, tokens: str, count: str) -> list[Evidence]:
    found = []
    for when, groups in (("first", first), ("last", last)):
        length = ratio(groups[tokens], groups[count])
        if length is not None:
            found.append(Evidence.of(f"{which} completions, {when} quarter", length, "tokens"))
    return found
