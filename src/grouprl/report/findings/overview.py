"""A run at a glance, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl

from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Finding, Severity
from grouprl.report.findings.held_out import accuracy
from grouprl.report.findings.loss import loss_explained
from grouprl.report.findings.registry import run_checks
from grouprl.report.findings.source import read_run
from grouprl.report.findings.statistics import Interval, Z, ratio, share
from grouprl.report.opening import readable

JSON_VERSION = 1

KINDS = ("informative", "all_high", "all_low", "single", "unscored")


@dataclass(frozen=True, slots=True)
class Overview:
    """A run in numbers; None where the records do not say.

    Args:
        steps, groups, completions, tokens: How many.
        ungrouped: Rows whose group is not known: left out of all else.
        group_size: That of most groups.
        success_reward: From this reward on a completion counts as right.
        success_said: Where that number is from.
        reward: Mean reward of each step, in order.
        right: Share of right completions, first and last quarter of the steps.
        kinds: Share of the groups by kind: informative, all_high, all_low, single, unscored.
        truncated: Share cut off, over the whole run.
        length: Mean completion tokens.
        rewards: Mean reward, first and last quarter, groups as clusters.
        dead: Share of groups without spread.
        accuracy: Held-out accuracy, first and last.
        entropy: Nats a token, first and last quarter.
        loss: Why it is 0, where it is.
    """

    steps: int
    groups: int
    completions: int
    tokens: int | None
    ungrouped: int
    group_size: int
    success_reward: float
    success_said: str
    reward: tuple[float | None, ...]
    right: tuple[Interval | None, Interval | None]
    kinds: dict[str, float]
    truncated: Interval | None
    length: tuple[Interval | None, Interval | None]
    rewards: tuple[Interval | None, Interval | None]
    dead: Interval | None
    accuracy: tuple[Interval | None, Interval | None]
    entropy: tuple[Interval | None, Interval | None]
    loss: str | None

    def to_dict(self) -> dict[str, Any]:
        """As plain Python that JSON can hold; pairs are [first quarter, last quarter]."""
        plain: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "steps",
                "groups",
                "completions",
                "tokens",
                "ungrouped",
                "group_size",
                "success_reward",
                "success_said",
                "kinds",
                "loss",
            )
        }
        plain["reward"] = list(self.reward)
        plain["truncated"], plain["dead"] = _interval(self.truncated), _interval(self.dead)
        for name in ("rewards", "right", "accuracy", "length", "entropy"):
            plain[name] = [_interval(part) for part in getattr(self, name)]
        return plain


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a run.

    Args:
        name: The run's path.
        overview: Its numbers.
        findings: What the checks found, the gravest first. None is good news.
        notes: What to know of how the records were read: an unverified format, groups that had to be rebuilt, …
        framework: Who wrote them; None for grouprl.
    """

    name: str
    overview: Overview
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    framework: str | None = None

    @property
    def worst(self) -> Severity | None:
        """The gravest severity; None without findings."""
        return max((finding.severity for finding in self.findings), default=None)

    def to_dict(self) -> dict[str, Any]:
        """As plain Python that JSON can hold."""
        return {
            "version": JSON_VERSION,
            "run": self.name,
            "framework": self.framework,
            "notes": list(self.notes),
            "worst": None if self.worst is None else self.worst.label,
            "overview": self.overview.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def report(path: str | Path | RunData, *, success_reward: float | None = None) -> Report:
    """Read a run's records and look for findings.

    Args:
        path: A run's folder, or rollouts of any known framework (a folder, a file, a glob: see `read_run`); or a
            `RunData`.
        success_reward: From this reward on a completion is right; see `RunData`.

    Returns:
        The overview and the findings. Rollouts without rows give an overview of zeros.

    Raises:
        RunError, InputError: Nothing is there, or it cannot be read.
    """
    run = path if isinstance(path, RunData) else read_run(path, success_reward=success_reward)
    with readable(run.name):
        return Report(run.name, overview(run), tuple(run_checks(run)), run.notes, run.framework)


def overview(run: RunData) -> Overview:
    """The run's numbers."""
    groups = run.groups
    kinds = dict(groups.group_by("kind").len().iter_rows())
    by_step = groups.group_by("step").agg(_weighted_reward().alias("reward")).sort("step")
    first, last = run.first, run.last
    tokens = int(groups["tokens"].sum()) if groups["tokens_known"].sum() else None
    known = [found for found in map(accuracy, run.evaluations) if found is not None]
    dead = (groups["kind"] != "informative").cast(pl.Int64)
    return Overview(
        steps=len(run.steps),
        groups=len(groups),
        completions=int(groups["n"].sum()),
        tokens=tokens,
        ungrouped=run.ungrouped,
        group_size=run.group_size,
        success_reward=run.success_reward,
        success_said=run.success_said,
        reward=tuple(by_step["reward"]),
        right=(share(first["right"], first["scored"]), share(last["right"], last["scored"])),
        kinds={kind: kinds.get(kind, 0) / max(len(groups), 1) for kind in KINDS},
        truncated=share(groups["truncated"], groups["ended_known"]),
        length=(ratio(first["tokens"], first["tokens_known"]), ratio(last["tokens"], last["tokens_known"])),
        rewards=(_reward(first), _reward(last)),
        dead=share(dead, dead * 0 + 1),
        accuracy=(known[0], known[-1]) if known else (None, None),
        entropy=(ratio(first["nll"], first["nll_tokens"]), ratio(last["nll"], last["nll_tokens"])),
        loss=loss_explained(run),
    )


def _weighted_reward() -> pl.Expr:
    scored = pl.col("scored").sum()
    total = (pl.col("reward_mean") * pl.col("scored")).sum()
    return pl.when(scored > 0).then(total / scored)


def _reward(groups: pl.DataFrame) -> Interval | None:
    """The mean reward; with too few groups to know how they differ, completions count as independent."""
    total, scored = (groups["reward_mean"] * groups["scored"]).fill_null(0.0), int(groups["scored"].sum())
    found = ratio(total, groups["scored"])
    if found is not None or not scored:
        return found
    value = float(total.sum()) / scored
    squares = (groups["scored"] * (groups["reward_std"] ** 2 + (groups["reward_mean"] - value) ** 2)).sum()
    half = Z * sqrt(squares / max(scored - 1, 1) / scored)
    return Interval(value, value - half, value + half, len(groups))


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
