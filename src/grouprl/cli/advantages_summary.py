"""What `grouprl advantages` says of a file: its groups, its rewards, its advantages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grouprl import advantages
from grouprl.cli.options import plural
from grouprl.report.text import safe_text
from grouprl.sampling import informative

KINDS = ("informative", "all_high", "all_low", "single", "unscored")


def summarise(
    rewards: NDArray[Any], group: NDArray[np.int64], values: NDArray[Any], *, success_reward: float
) -> dict[str, Any]:
    """Counts, sizes and sizes of advantages.

    Args:
        rewards: One a row; not finite where unscored.
        group: One a row.
        values: The advantages.
        success_reward: From here on a group of equal rewards is all high.

    Returns:
        rows, unscored (rows); groups, groups_<kind> as `sampling.informative` counts them; group_size_min, _median
        and _max; reward_mean, None where nothing is scored; reward_group_std, the standard deviation within groups,
        averaged over those with a scored row; advantage_max_abs.
    """
    _, first, sizes = np.unique(group, return_index=True, return_counts=True)
    counts = informative(rewards, group, high=success_reward)
    stats = advantages.group_stats(rewards, group)
    scored = np.isfinite(rewards)
    stds = stats.std[first][stats.count[first] > 0].astype(np.float64)
    return {
        "rows": len(rewards),
        "unscored": int((~scored).sum()),
        "groups": len(sizes),
        **{f"groups_{kind}": int(getattr(counts, kind)) for kind in KINDS},
        "group_size_min": int(sizes.min()),
        "group_size_median": float(np.median(sizes)),
        "group_size_max": int(sizes.max()),
        "success_reward": success_reward,
        "reward_mean": _mean(rewards[scored].astype(np.float64)),
        "reward_group_std": _mean(stds),
        "advantage_max_abs": float(np.abs(values).max()),
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    return float((values / len(values)).sum()) if len(values) else None  # divided first: no overflow


def summary_text(record: dict[str, Any]) -> str:
    """The summary in at most 80 columns."""
    groups = record["groups"]
    how = (
        f"{record['advantage_column']} = {record['estimator']} of {record['reward_column']}, "
        f"grouped by {' and '.join(record['group_column'])}"
    )
    rows = plural(record["rows"], "row")
    lines = [
        f"{safe_text(record['output'], limit=76 - len(rows))}: {rows}",
        safe_text(how, limit=80),
        "",
        f"  {'rows':<15}{record['rows']:>12,}   {_unscored(record['unscored'])}",
        f"  {'groups':<15}{groups:>12,}   {_sizes(record)}",
    ]
    high = f"{record['success_reward']:g}"
    told = {
        "informative": "rewards differ: these teach",
        "all_high": f"rewards equal, {high} or above",
        "all_low": f"rewards equal, below {high}",
        "single": "one scored row: nothing to compare it with",
        "unscored": "no scored row",
    }
    names = {"informative": "with spread", "all_high": "all high", "all_low": "all low"}
    for kind, meaning in told.items():
        count = record[f"groups_{kind}"]
        if count or kind in names:
            lines.append(
                f"    {names.get(kind, kind):<13}{count:>12,}   {100 * count / groups:.0f} %: {meaning}"
            )
    lines += [
        f"  {'mean reward':<15}{_number(record['reward_mean']):>12}",
        f"  {'std in groups':<15}{_number(record['reward_group_std']):>12}   averaged over groups",
        f"  {'largest |A|':<15}{_number(record['advantage_max_abs']):>12}",
    ]
    if record["scope"] == "batch":
        lines += ["", f"{record['estimator']} looks beyond the group: the whole file counted as one batch."]
    return "\n".join(lines)


def _sizes(record: dict[str, Any]) -> str:
    low, high = record["group_size_min"], record["group_size_max"]
    if low == high:
        return f"of {plural(low, 'row')} each"
    return f"of {low:,} to {high:,} rows, median {record['group_size_median']:g}"


def _unscored(count: int) -> str:
    return f"{count:,} unscored: advantage 0" if count else "all scored"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
