"""The table of docs/performance.md on drawing while training, from docs/measured/overlap.json: `make figures`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "performance.md"
MEASURED = DOCS / "measured" / "overlap.json"
MARKER = re.compile(r"(<!-- measured: overlap -->\n).*?(<!-- end -->)", re.DOTALL)
SIDES = {"turns": "taking turns", "ahead": "ahead"}
REWARDS = {"own": "the quickstart's reward", "waits": "a reward that waits {reward_seconds:g} s"}


def written(text: str, found: Mapping[str, Any] | None) -> str:
    """The page with what was measured between its markers; None says that nothing was."""
    return MARKER.sub(lambda match: f"{match[1]}{table(found)}\n{match[2]}", text)


def table(found: Mapping[str, Any] | None) -> str:
    """A row for each reward and side: times as medians over seeds, all else as means."""
    if not found or not found["runs"]:
        return "*Not measured yet.*"
    lines = [
        "| | seconds a step | tokens/s | sampling, training, waiting, s | held out, before → after "
        "| reward, last steps | KL to the sampler | weights held | peak, GiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    seeds = 0
    for reward, sides in found["runs"].items():
        for side, runs in sides.items():
            seeds = max(seeds, len(runs))
            lines.append(_row(REWARDS[reward].format_map(found), SIDES[side], list(runs.values())))
        if set(sides) == set(SIDES):
            turns, ahead = (_median(sides[side].values(), "seconds") for side in SIDES)
            lines.append(f"| | **{turns / ahead:.2f}×** | | | | | | | |")
    threads = next(iter(next(iter(found["runs"]["own"].values())).values()))["torch_threads"]
    lines += [
        "",
        f"`{found['command']}`: {found['steps']} steps, {seeds} seeds, {threads} threads of torch; {found['machine']}.",
    ]
    return "\n".join(lines)


def _row(reward: str, side: str, runs: list[Mapping[str, Any]]) -> str:
    def mean(name: str) -> float:
        return fmean(run[name] for run in runs)

    least, most = min(run["seconds_least"] for run in runs), max(run["seconds_most"] for run in runs)
    cells = [
        f"{reward}, {side}",
        f"{_median(runs, 'seconds'):.2f} ({least:.2f}–{most:.2f})",
        f"{mean('tokens_per_s'):.0f}",
        f"{_median(runs, 'rollout_s'):.2f}, {_median(runs, 'train_s'):.2f}, {_median(runs, 'wait_s'):.2f}",
        f"{mean('right_before'):.3f} → {mean('right_after'):.3f} ({_each(runs, 'right_after')})",
        f"{mean('reward_last'):.3f} ({_each(runs, 'reward_last')})",
        f"{mean('kl_sampler_trainer'):.1e}",
        f"{100 * mean('corrected_share'):.2f} %",
        f"{mean('peak_gib'):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(runs: Any, name: str) -> float:
    return median(run[name] for run in runs)


def _each(runs: list[Mapping[str, Any]], name: str) -> str:
    shown: Callable[[float], str] = "{:.3f}".format
    return ", ".join(shown(run[name]) for run in runs)


def main() -> None:
    found = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else None
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
