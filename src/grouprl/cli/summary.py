"""What `grouprl train` prints at its end: what was learned, and groups to see it by."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from grouprl.cli.options import plural
from grouprl.records import RunFolder
from grouprl.report.groups import first_and_last
from grouprl.report.text import format_groups, safe_text, sparkline

if TYPE_CHECKING:
    from grouprl.report.findings import Finding

MOST_FINDINGS = 3
ROWS = (
    ("accuracy, sampled", "accuracy"),
    ("accuracy, greedy", "accuracy_greedy"),
    ("cut off", "truncated_share"),
    ("only a number", "only_number_share"),
    ("unscored", "unscored_share"),
)
ONLY_IF_SOME = ("only_number_share", "unscored_share")
"""Rows that are left out where both numbers are 0: they do not concern this task."""


def print_summary(path: Path, console: Console) -> None:
    """The held-out table, the reward curve, two sample groups, and where everything is."""
    run = RunFolder.open(path)
    metrics, evaluations = run.metrics(), run.evaluations()
    for line in [*_table(evaluations), "", *_curve(metrics), ""]:
        console.print(line, soft_wrap=True)
    for _, groups in first_and_last(run, 1):
        console.print(format_groups(groups[0], width=min(console.width, 100)), soft_wrap=True)
        console.print("")
    console.print(f"model   {safe_text(str(run.model_dir))}", soft_wrap=True)


def print_findings(found: Sequence[Finding], path: Path, console: Console) -> None:
    """The gravest findings, a line each, or that there are none."""
    styles = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
    if not found:
        console.print("found   nothing amiss", soft_wrap=True)
        return
    for place, one in enumerate(found[:MOST_FINDINGS]):
        line = Text(f"{'' if place else 'found':<8}")
        line.append(one.severity.label, styles[one.severity.label])
        console.print(line.append(f"  {safe_text(one.title)}"), soft_wrap=True)
    more = len(found) - MOST_FINDINGS
    what = f"{more} more, and what" if more > 0 else "What"
    console.print(
        f"{'':<8}{what} to do: grouprl report {safe_text(shlex.quote(str(path)))}",
        soft_wrap=True,
        markup=False,
    )


def _table(evaluations: list[dict[str, Any]]) -> list[str]:
    if not evaluations:
        return []
    before, after = evaluations[0], evaluations[-1]
    title = f"held-out ({plural(before['prompts'], 'problem')} × {before['samples']})"
    lines = ["", f"{title:<30}{'before':<22}after"]
    for name, key in ROWS:
        if key in ONLY_IF_SOME and not before.get(key) and not after.get(key):
            continue
        lines.append(f"  {name:<28}{_cell(before, key):<22}{_cell(after, key)}")
    return lines


def _cell(evaluation: dict[str, Any], key: str) -> str:
    value = evaluation.get(key)
    if value is None:
        return "–"
    text = f"{100 * value:.1f} %"
    low, high = evaluation.get(f"{key}_low"), evaluation.get(f"{key}_high")
    return text if low is None or high is None else f"{text} [{100 * low:.0f}, {100 * high:.0f}]"


def _curve(metrics: list[dict[str, Any]]) -> list[str]:
    rewards = [m.get("reward_mean") for m in metrics]
    known = [r for r in rewards if r is not None]
    if not known:
        return []
    unscored = sum(round(m.get("unscored_share", 0) * m.get("completions", 0)) for m in metrics)
    seconds = sum(m.get("seconds_step", 0) for m in metrics)
    peak = max(m.get("peak_memory_gib", 0) for m in metrics)
    return [
        f"reward  {sparkline(rewards, width=60)}  {known[0]:.2f} → {known[-1]:.2f}",
        f"{plural(len(metrics), 'step')} in {seconds:.0f} s, peak memory {peak:.2f} GiB",
        *([f"{plural(unscored, 'completion')} unscored"] if unscored else []),
        *_not_used(metrics),
    ]


def _not_used(metrics: list[dict[str, Any]]) -> list[str]:
    """What was sampled and not trained on, and which prompts were passed over; nothing where all was used."""

    def total(name: str) -> int:
        return sum(m.get(name) or 0 for m in metrics)

    lines = []
    why = {
        "all right": total("groups_dropped_all_high"),
        "all wrong": total("groups_dropped_all_low"),
        "one or none scored": total("groups_dropped_single") + total("groups_dropped_unscored"),
    }
    if dropped := sum(why.values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in why.items() if count)
        lines.append(f"{dropped} of {plural(total('groups'), 'group')} dropped ({kinds})")
    if left_out := total("completions_down_sampled"):
        lines.append(f"{plural(left_out, 'completion')} of the other groups left out of training")
    solved, unsolved = total("prompts_skipped_solved"), total("prompts_skipped_unsolved")
    if solved or unsolved:
        lines.append(f"prompts passed over: {solved} times as solved, {unsolved} times as never solved")
    return lines
