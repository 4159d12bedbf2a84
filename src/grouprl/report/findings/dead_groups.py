"""Groups that taught nothing: all right, all wrong, a single scored completion, none scored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from grouprl.report.findings.data import RunData, total
from grouprl.report.findings.dead_share import all_equal, pass_record, size_that_mends
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, difference, mean, ratio, share

MOST_DEAD = 0.5
"""Surely more than half of the groups: then more is sampled for nothing than for something."""
MOST_SINGLE = 0.05
MOST_UNEXPLAINED = 0.1
SHORTEST_RECORD = 30
"""Groups with a record of their prompt, from which on observed and expected are compared."""

KINDS = ("all_high", "all_low", "single", "unscored")
SAID = {
    "all_high": "all right",
    "all_low": "all wrong",
    "single": "one scored completion",
    "unscored": "nothing scored",
}


@register("dead_groups", finds=("dead_groups", "dead_groups_lately", "dead_groups_unexplained"))
def dead_groups(run: RunData) -> Iterator[Finding]:
    """More than half of the generated groups had rewards without spread; or more than their pass rates let expect."""
    yield from _too_many(run)
    yield from _unexplained(run)


def _too_many(run: RunData) -> Iterator[Finding]:
    if run.group_size < 2:
        return
    whole = _share_of(run.groups, KINDS)
    if whole is not None and whole.low > MOST_DEAD:
        yield _finding(run, run.groups, whole, name="dead_groups")
        return
    lately = _share_of(run.last, KINDS)
    for kinds in (("all_low", "single", "unscored"), ("all_high",)):  # stuck, or solved
        part = _share_of(run.last, kinds)
        if lately is not None and part is not None and part.low > MOST_DEAD:
            yield _finding(run, run.last, lately, name="dead_groups_lately")
            return


def _share_of(groups: pl.DataFrame, kinds: tuple[str, ...]) -> Interval | None:
    dead = groups["kind"].is_in(kinds).cast(pl.Int64)
    return share(dead, dead * 0 + 1)


def _finding(run: RunData, groups: pl.DataFrame, dead: Interval, *, name: str) -> Finding:
    kinds = dict(groups.group_by("kind").len().iter_rows())
    count = len(groups)
    worst = max(KINDS, key=lambda kind: kinds.get(kind, 0))
    evidence = [Evidence.of("groups without spread", dead)]
    evidence += [Evidence(f"  {SAID[kind]}", kinds[kind] / count) for kind in KINDS if kinds.get(kind)]
    record = pass_record(run)
    record = (
        None if record is None else record.join(groups.select("step", "group_id"), on=["step", "group_id"])
    )
    expected = None if record is None else _expected(record)
    if expected is not None:
        evidence.append(Evidence("expected from the prompts' pass rates", expected))
    wasted = _wasted_tokens(groups)
    if wasted is not None:
        evidence += [
            Evidence("tokens sampled in them", wasted[0], "tokens"),
            Evidence("  of all tokens", wasted[1]),
        ]
    solved = worst == "all_high"
    lately = name == "dead_groups_lately"
    return Finding(
        name,
        Severity.INFO if solved and lately else Severity.WARNING,
        f"{_percent(dead.value)} of the groups{' of late' if lately else ''} taught nothing, most of them "
        f"{SAID[worst]}",
        _meaning(worst),
        _advice(run, record, worst, dead),
        run.stretches(groups.filter(pl.col("kind") != "informative")),
        tuple(evidence),
        run.examples(groups.filter(pl.col("kind") == worst).tail(1)),
    )


def _meaning(worst: str) -> str:
    if worst in ("all_high", "all_low"):
        return (
            "All completions of such a group have the same reward, so every advantage is 0: they were sampled and "
            "scored, and moved nothing."
        )
    return (
        "Where at most one completion of a group has a reward there is nothing to compare it with, so every advantage "
        "is 0."
    )


def _advice(run: RunData, record: pl.DataFrame | None, worst: str, dead: Interval) -> tuple[str, ...]:
    if worst in ("single", "unscored"):
        return ("Look at why the reward gives no score: unscored completions are rows with a null reward.",)
    said = []
    if record is not None and len(record) >= SHORTEST_RECORD:
        mended = size_that_mends(record, run.group_size, dead.value)
        if mended is not None:
            said.append(
                f"A group size of {mended[0]} instead of {run.group_size} would leave at most about "
                f"{_percent(mended[1])} without spread, by the prompts' own pass rates."
            )
    if dead.value < 1:
        drawn = f"{1 / (1 - dead.value):.1f} groups for each one it trains on"
        said.append(
            f"Dynamic sampling replaces them already, and samples {drawn}."
            if run.config.get("sampling", {}).get("max_sampling_rounds", 0) > 1
            else "Dynamic sampling (draw prompts until the batch is full of groups with spread) would sample "
            f"{drawn}."
        )
    said.append(
        "Take easier prompts, or give partial credit: the model never succeeds on these."
        if worst == "all_low"
        else "Take harder prompts, drop those solved nine times in ten, or stop: this set is learned."
    )
    return tuple(said)


def _expected(record: pl.DataFrame) -> float | None:
    """The expected share of dead groups; None where too few prompts have a record."""
    known = record.filter(pl.col("others_n") >= pl.col("n"))
    if len(known) < SHORTEST_RECORD:
        return None
    return float(_all_equal(known).mean())


def _all_equal(known: pl.DataFrame) -> NDArray[np.float64]:
    return all_equal(*(known[name].to_numpy() for name in ("others_c", "others_n", "n")))


def _unexplained(run: RunData) -> Iterator[Finding]:
    """Only where pass rates stand still: a prompt that is learned is dead before and after."""
    record = pass_record(run)
    if record is None or record.is_empty() or not _stands_still(run):
        return
    known = record.filter(pl.col("others_n") >= pl.col("n"))
    if known.is_empty():
        return
    excess = (
        known.with_columns(pl.Series("expected", _all_equal(known)), dead=pl.col("alike").cast(pl.Float64))
        .group_by("prompt_key")
        .agg((pl.col("dead") - pl.col("expected")).sum().alias("excess"), pl.col("dead").sum(), pl.len())
    )
    surplus = ratio(excess["excess"], excess["len"])
    if surplus is None or surplus.low <= MOST_UNEXPLAINED or len(known) < SHORTEST_RECORD:
        return
    observed = total(excess, "dead") / total(excess, "len")
    dead = known.filter(pl.col("alike"))
    yield Finding(
        "dead_groups_unexplained",
        Severity.WARNING,
        "More groups without spread than the prompts' pass rates explain",
        "The completions of a group agree more than independent ones would: the same prompts, in other steps, were "
        "solved sometimes and failed sometimes, and yet whole groups come out alike.",
        (
            "Look for copies within the groups, a seed that all samples share, or a temperature near 0.",
            "Look for a reward that is computed once a group rather than once a completion.",
        ),
        run.stretches(dead),
        (
            Evidence("groups without spread", observed),
            Evidence("expected from the prompts' pass rates", observed - surplus.value),
            Evidence.of("difference", surplus),
        ),
        run.examples(dead),
    )


def _stands_still(run: RunData) -> bool:
    """Whether the mean reward of the first and the last quarter cannot be told apart."""
    if not run.has_trend:
        return True
    first, last = (mean(part["reward_mean"].drop_nulls()) for part in (run.first, run.last))
    if first is None or last is None:
        return False
    change = difference(last, first)
    return change.low <= 0 <= change.high


def _wasted_tokens(groups: pl.DataFrame) -> tuple[int, float] | None:
    """Tokens of groups without spread, and their share; None where lengths are not recorded."""
    total = int(groups["tokens"].sum())
    if not total or int(groups["tokens_known"].sum()) < int(groups["n"].sum()):
        return None
    wasted = int(groups.filter(pl.col("kind") != "informative")["tokens"].sum())
    return wasted, wasted / total


@register("single_groups", finds=("single_groups", "lone_completions"))
def single_groups(run: RunData) -> Iterator[Finding]:
    """Groups with one scored completion among larger ones; or all groups of one under an estimator that compares."""
    groups = run.groups
    if groups.is_empty():
        return
    if run.group_size == 1 and len(groups) == int(groups["n"].sum()):
        yield from _all_alone(run)
        return
    alone = (groups["kind"] == "single").cast(pl.Int64)
    found = share(alone, alone * 0 + 1)
    if found is not None and found.low > MOST_SINGLE:
        lone = groups.filter(pl.col("kind") == "single")
        torn = int((lone["n"] == 1).sum())
        yield Finding(
            "single_groups",
            Severity.WARNING,
            f"{_percent(found.value)} of the groups have one scored completion",
            "A completion that stands alone has nothing to compare with, so its advantage is 0. "
            + (
                f"{torn:,} of these {len(lone):,} groups hold a single row: their siblings are missing."
                if torn
                else "Their siblings have no reward."
            ),
            (
                "Look at why siblings have no score, or where their rows went (a filter, a torn file).",
                "Score all completions of a prompt, or drop the whole group.",
            ),
            run.stretches(lone),
            (Evidence.of("groups with one scored completion", found),),
            run.examples(lone),
        )


def _all_alone(run: RunData) -> Iterator[Finding]:
    recorded = run.rows.select(pl.col("advantage_estimator").drop_nulls().unique()).collect()
    compared = set(recorded["advantage_estimator"].to_list()) - _without_groups()
    nothing = not run.groups.filter((pl.col("advantage_min") != 0) | (pl.col("advantage_max") != 0)).height
    if not compared and not nothing:
        return
    yield Finding(
        "lone_completions",
        Severity.ERROR if compared or run.groups["advantages"].sum() else Severity.WARNING,
        "Every group holds one completion",
        "The advantage compares a completion with others of its prompt. Where each stands alone all are 0 and nothing "
        "can be learned; or the records lost which completions belong together.",
        (
            "Set a group size of 2 or more (8 is usual), or an estimator with a baseline from outside the group.",
            "If the run did have groups: name the column that holds them.",
        ),
        run.stretches(run.groups),
        (
            Evidence("groups", len(run.groups), "count"),
            Evidence("completions", int(run.groups["n"].sum()), "count"),
        ),
    )


def _without_groups() -> set[str]:
    """The estimators that give a group of one its advantage from elsewhere."""
    from grouprl import advantages

    return {name for name in advantages.names() if "single_is_zero" not in advantages.get(name).laws}


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
