"""Completions that could not be scored, or whose answer could not be read: not the same as wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from grouprl.report.findings.data import COLUMNS, GROUP, RunData
from grouprl.report.findings.finding import Evidence, Finding, Severity
from grouprl.report.findings.registry import register
from grouprl.report.findings.statistics import Interval, share

MOST_UNSCORED = 0.01
MOST_UNREADABLE = 0.5
SEVERE = 0.2
FORMAT = re.compile(r"(?:^|[_.])(?:format|pars(?:e|able)|boxed|extract|readable|xml|json)", re.IGNORECASE)
"""A component, or an extra column, of this name says whether an answer could be read."""
OUTCOME = "outcome_"
"""Columns in which a reward says why it is what it is (docs/records.md)."""
UNREAD = r"^(?:no_|unpars|unread)"
"""Outcomes of an answer that could not be read: the task math has no_marker and unparsed."""


@register("unscored", finds=("unscored",))
def unscored(run: RunData) -> Iterator[Finding]:
    """More than one completion in a hundred has no reward."""
    groups = run.groups
    missing = groups["n"].cast(pl.Int64) - groups["scored"].cast(pl.Int64)
    found = share(missing, groups["n"])
    if found is None or found.low <= MOST_UNSCORED:
        return
    concerned = groups.filter(pl.col("scored") < pl.col("n"))
    errors = sum(int(line.get("reward_errors") or 0) for line in run.metrics)
    nonfinite = sum(int(line.get("reward_nonfinite") or 0) for line in run.metrics)
    evidence = [Evidence.of("completions without a reward", found)]
    if errors:
        evidence.append(Evidence("scores missing as a reward raised", errors, "count"))
    if nonfinite:
        evidence.append(Evidence("scores that were NaN or infinite", nonfinite, "count"))
    yield Finding(
        "unscored",
        Severity.ERROR if found.low > SEVERE else Severity.WARNING,
        f"{100 * found.value:.1f} % of the completions have no reward",
        "They count neither as right nor as wrong: their advantage is 0, and their groups are smaller than they seem.",
        (
            "If the reward raised or gave NaN: mend it; an answer that cannot be read is a low reward, not none.",
            "If a judge timed out: retry, or score it as the worst.",
        ),
        run.stretches(concerned),
        tuple(evidence),
        run.examples(concerned, where=pl.col("reward").is_null()),
    )


@register("unreadable", finds=("unreadable", "empty"))
def unreadable(run: RunData) -> Iterator[Finding]:
    """Most of the completions that are not right of late could not be read, or are empty."""
    groups = run.last
    failed = groups["n"].cast(pl.Int64) - groups["right"].cast(pl.Int64)
    empty = share(groups["empty"].fill_null(0), groups["n"])
    if empty is not None and empty.low > MOST_UNSCORED:
        concerned = groups.filter(pl.col("empty") > 0)
        yield Finding(
            "empty",
            Severity.WARNING,
            f"{100 * empty.value:.0f} % of the completions are empty",
            "The model ends at once. It is scored, and compared, like any other answer.",
            (
                "See that the prompt ends where the answer is to begin (the chat template's generation prompt).",
                "See that stop strings are not met at the first token.",
            ),
            run.stretches(concerned),
            (Evidence.of("empty completions", empty),),
            run.examples(concerned, where=pl.col("completion").str.strip_chars() == ""),
        )
    for name in _format_columns(run):
        found, unread = _unread(run, name, failed)
        if found is None or found.low <= MOST_UNREADABLE:
            continue
        of_all = share(unread["unread"], groups["n"])
        concerned = groups.join(unread.filter(pl.col("unread") > 0).select(GROUP), on=GROUP, how="semi")
        evidence = [Evidence.of("not readable, of those not right", found)]
        if of_all is not None:
            evidence.append(Evidence.of("not readable, of all", of_all))
        yield Finding(
            "unreadable",
            Severity.WARNING,
            f"{100 * found.value:.0f} % of the failures are format, not mistakes ({name})",
            "Their answer could not be read, so it is not known whether it was right. Wrong and unreadable have one "
            "reward and two remedies.",
            (
                "Show the format in the prompt, or give a small reward for keeping it until all do.",
                "Read a few: perhaps the answer is there, and the parser is too strict.",
            ),
            run.stretches(concerned),
            tuple(evidence),
            run.examples(concerned, where=_not_read(name) & (pl.col("score") < run.success_reward)),
        )
        return


def _format_columns(run: RunData) -> list[str]:
    """Columns whose name says that they hold whether an answer was read, those with outcomes first."""
    schema = run.rows.collect_schema()
    outcomes = [name for name, dtype in schema.items() if name.startswith(OUTCOME) and dtype == pl.String]
    return outcomes + [
        name
        for name, dtype in schema.items()
        if FORMAT.search(name) and (dtype.is_numeric() or dtype == pl.Boolean) and name not in COLUMNS
    ]


def _not_read(column: str) -> pl.Expr:
    if column.startswith(OUTCOME):
        return pl.col(column).str.contains(UNREAD)
    return pl.col(column).cast(pl.Float64) <= 0


def _unread(run: RunData, column: str, failed: pl.Series) -> tuple[Interval | None, pl.DataFrame]:
    """The share of the last quarter's failures that were not read; nothing where some right ones were not read."""
    not_right = pl.col("reward").is_null() | (pl.col("score") < run.success_reward)
    counts = (
        run.rows.filter(pl.col("step").is_in(run.last_steps))
        .group_by(GROUP)
        .agg(
            unread=(_not_read(column) & not_right).sum(), unread_right=(_not_read(column) & ~not_right).sum()
        )
        .collect(engine="streaming")
    )
    table = run.last.select(GROUP).join(counts, on=GROUP, how="left", maintain_order="left")
    if table["unread_right"].sum():
        return None, table  # it says something else than whether the answer was read
    return share(table["unread"], failed), table
