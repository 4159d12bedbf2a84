"""The figures of the page: each a title, one or two sentences, and the numbers that the page's script draws.

The sentence says in numbers what the figure shows, for those who read on paper, by ear or without scripts.
Colours are names here; the page's style sheet gives each its tone for light, dark and print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grouprl.report.figures_rollouts import (
    advantage_figure,
    length_series,
    pass_rate_figure,
    prompt_figure,
)
from grouprl.report.series import (
    Series,
    column,
    decimal,
    duration,
    from_to,
    mean,
    percent,
    present,
    rounded,
    thin,
)
from grouprl.report.sources import Source
from grouprl.report.tables import group_table, step_table

if TYPE_CHECKING:
    import polars as pl

Records = Sequence[Mapping[str, Any]]

GROUP_KINDS = (
    ("groups_informative_share", "informative", "teal"),
    ("groups_all_high_share", "all high", "amber"),
    ("groups_all_low_share", "all low", "rust"),
    ("groups_single_share", "single", "violet"),
    ("groups_unscored_share", "unscored", "grey"),
)
STAGES = (
    ("seconds_rollout", "rollout", "blue"),
    ("seconds_reward", "reward", "amber"),
    ("seconds_greedy", "greedy", "violet"),
    ("seconds_train", "train", "teal"),
)
STAGES_AHEAD = (
    ("seconds_wait", "wait for completions", "amber"),
    ("seconds_train", "train", "teal"),
)
"""Of a run that draws beside training: what the main thread does."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the page.

    Args:
        name: Its id in the page.
        title: What it shows.
        caption: The same in numbers, one or two sentences.
        data: What `charts.js` draws: a kind ("lines", "stack", "bars", "grid") and its numbers, plain JSON.
        wide: Whether it takes the page's whole width.
    """

    name: str
    title: str
    caption: str
    data: dict[str, Any]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that a source has numbers for, and a sentence for each that it lacks."""

    drawn: list[Figure]
    absent: list[str]


def figures(source: Source) -> Figures:
    """Every figure that this source has numbers for, in the order of the page."""
    metrics = source.metrics
    groups = steps = None
    if source.rollouts is not None:
        groups, steps = group_table(source), step_table(source)
    drawn = [
        _reward(metrics),
        _held_out(source.evaluations),
        _groups(metrics),
        _lengths(metrics, steps),
        *_of_rollouts(source, groups),
        _seconds(metrics),
    ]
    drawn.sort(
        key=lambda figure: figure is not None and figure.wide
    )  # a wide one would leave a gap before it
    return Figures([figure for figure in drawn if figure is not None], _absent(source))


def _absent(source: Source) -> list[str]:
    """What the records lack, and what therefore is not shown."""
    if not source.metrics and source.rollouts is None:
        return []  # a run that has only begun
    if source.rollouts is None:
        return [
            "There are no rollouts on disk: pass rates, advantages, lengths by right and wrong, and the "
            "groups themselves cannot be shown."
        ]
    consequences = {
        "step": "everything stands at step 0",
        "group_id": "group kinds and pass rates cannot be shown, and each completion stands alone below",
        "prompt": "groups are shown without theirs",
        "completion": "rewards are shown without text",
        "reward": "nothing can be said of right and wrong",
        "advantage": "what the loss was computed from cannot be shown",
        "completion_tokens": "how long completions were cannot be shown",
        "finish_reason": "truncation cannot be shown",
    }
    from grouprl.report.sources import NAMES

    return [f"The records do not say {NAMES[name]}: {consequences[name]}." for name in source.missing]


def _of_rollouts(source: Source, groups: pl.DataFrame | None) -> list[Figure | None]:
    if groups is None or not len(groups):
        return []
    made = [advantage_figure(source)]
    if "group_id" not in source.missing and "reward" not in source.missing:
        made = [pass_rate_figure(groups), *made, prompt_figure(source, groups)]
    return [None if one is None else Figure(**one) for one in made]


def _reward(metrics: Records) -> Figure | None:
    means = column(metrics, "reward_mean")
    if not present(means):
        return None
    spread = column(metrics, "reward_group_std")
    steps, (thin_means, thin_spread) = thin(column(metrics, "step"), [means, spread])
    band: Series = [
        None if m is None or s is None else s for m, s in zip(thin_means, thin_spread, strict=True)
    ]
    line = _line("mean reward", "blue", thin_means)
    if present(band):
        line |= {
            "low": rounded(_minus(thin_means, band)),
            "high": rounded(_plus(thin_means, band)),
            "range_name": "± std within groups",
        }
    caption = f"Mean reward {from_to(means, decimal)}."
    if present(spread):
        caption += (
            " Around it the std of the rewards within a group, "
            f"averaged over the step's groups: {from_to(spread, decimal)}."
        )
    return Figure("reward", "Mean reward", caption, _lines(steps, [line]))


def _held_out(evaluations: Records) -> Figure | None:
    accuracy = column(evaluations, "accuracy")
    greedy = column(evaluations, "accuracy_greedy")
    if len(present(accuracy)) < 2:  # the table above says it all
        return None
    steps = column(evaluations, "step")
    line = _line("sampled, 95% interval", "blue", accuracy)
    line |= {
        "low": rounded(column(evaluations, "accuracy_low")),
        "high": rounded(column(evaluations, "accuracy_high")),
        "bars": True,
    }
    lines = [line]
    if present(greedy):
        lines.append(_line("greedy", "amber", greedy) | {"dash": True})
    caption = f"Accuracy on held-out prompts {from_to(accuracy, lambda v: percent(v, 1))} when sampled."
    return Figure("held-out", "Held-out accuracy", caption, _lines(steps, lines, percent=True))


def _groups(metrics: Records) -> Figure | None:
    shares = [column(metrics, key) for key, _, _ in GROUP_KINDS]
    if not any(present(values) for values in shares):
        return None
    steps, thinned = thin(column(metrics, "step"), shares)
    kinds = [(label, color, values) for (_, label, color), values in zip(GROUP_KINDS, thinned, strict=True)]
    rest = _remainder(thinned)
    if rest is not None:  # equal rewards that are neither the highest nor the lowest
        kinds.append(("equal, in between", "sand", rest))
    said = ", ".join(f"{percent(mean(values))} {label}" for label, _, values in kinds if mean(values))
    with_gradient = mean(column(metrics, "groups_with_advantage_share"))
    caption = f"Mean over the run: {said or 'none'}. "
    caption += (
        "Only groups whose rewards differ have a gradient."  # a run of before other estimators could be named
        if with_gradient is None
        else f"{percent(with_gradient)} had an advantage other than 0: only these have a gradient from the rewards."
    )
    data = _stack(steps, [kind for kind in kinds if any(kind[2])], percent=True, top=1.0)
    return Figure("groups", "What the groups were", caption, data)


def _lengths(metrics: Records, steps_table: pl.DataFrame | None) -> Figure | None:
    """Mean tokens of right and wrong completions where the rollouts say them, else of all and of finished ones."""
    every, finished = column(metrics, "completion_tokens_mean"), column(metrics, "finished_tokens_mean")
    truncated, steps = column(metrics, "truncated_share"), column(metrics, "step")
    by_outcome = None if steps_table is None else length_series(steps_table)
    if not present(every) and not present(truncated) and by_outcome is None:
        return None
    if by_outcome is not None:
        steps = by_outcome["step"]
        every = by_outcome["every"] if not present(every) or len(every) != len(steps) else every
        truncated = by_outcome["truncated"] if len(truncated) != len(steps) else truncated
        series = [
            ("right, mean tokens", "teal", by_outcome["right"]),
            ("wrong, mean tokens", "rust", by_outcome["wrong"]),
        ]
    else:
        series = [("all, mean tokens", "blue", every), ("finished, mean tokens", "teal", finished)]
    at, thinned = thin(steps, [truncated, *(values for _, _, values in series)])
    lines = [
        _line(label, color, values)
        for (label, color, _), values in zip(series, thinned[1:], strict=True)
        if present(values)
    ]
    if present(thinned[0]):
        lines.insert(0, _line("truncated (right axis)", "grey", thinned[0]) | {"right": True, "fill": True})
    caption = f"Completions {from_to(every, _tokens)} tokens long"
    if by_outcome is not None:
        for outcome in ("right", "wrong"):
            said = from_to(by_outcome[outcome], _tokens)
            caption += f", {outcome} ones {said}" if present(by_outcome[outcome]) else f", none {outcome}"
    elif present(every):
        caption += (
            f", {'none finished' if not present(finished) else f'finished ones {from_to(finished, _tokens)}'}"
        )
    if metrics and "finished_tokens_mean" in metrics[-1] and by_outcome is not None and not present(finished):
        caption += ", none finished"
    caption += f"; truncated {from_to(truncated, percent)}."
    return Figure("lengths", "Length and truncation", caption, _lines(at, lines, zero=True))


def _seconds(metrics: Records) -> Figure | None:
    whole = column(metrics, "seconds_step")
    ahead = any("seconds_wait" in line for line in metrics)
    drawn = STAGES_AHEAD if ahead else STAGES
    stages = [column(metrics, key) for key, _, _ in drawn]
    if not any(present(values) for values in [*stages, whole]):
        return None
    other: Series = [
        None if total is None else max(total - sum(present(parts)), 0.0)
        for total, *parts in zip(whole, *stages, strict=True)
    ]
    steps, thinned = thin(column(metrics, "step"), [*stages, other])
    labels = [*((label, color) for _, label, color in drawn), ("other", "grey")]
    kinds = [(label, color, values) for (label, color), values in zip(labels, thinned, strict=True)]
    parts = ", ".join(
        f"{label} {duration(mean(values))}" for label, _, values in kinds if present(values) and any(values)
    )
    caption = f"A step took {duration(mean(whole))} on average: {parts}."
    if ahead:
        beside = (f"{label} {duration(mean(column(metrics, key)))}" for key, label, _ in STAGES[:2])
        caption += f" Beside it, of the next step: {', '.join(beside)}."
    data = _stack(steps, [kind for kind in kinds if any(kind[2])], unit="s")
    return Figure("seconds", "Seconds a step", caption, data)


def _line(name: str, color: str, values: Series) -> dict[str, Any]:
    return {"name": name, "color": color, "y": rounded(values)}


def _lines(
    steps: Series, lines: list[dict[str, Any]], *, percent: bool = False, zero: bool = False
) -> dict[str, Any]:
    return {"kind": "lines", "x": _places(steps), "series": lines, "percent": percent, "zero": zero}


def _stack(
    steps: Series,
    kinds: list[tuple[str, str, Series]],
    *,
    percent: bool = False,
    top: float | None = None,
    unit: str = "",
) -> dict[str, Any]:
    series = [_line(label, color, values) for label, color, values in kinds]
    return {
        "kind": "stack",
        "x": _places(steps),
        "series": series,
        "percent": percent,
        "top": top,
        "unit": unit,
    }


def _places(steps: Series) -> Series:
    """The steps themselves; 1, 2, … where the records name none."""
    return rounded(steps if present(steps) else [i + 1.0 for i in range(len(steps))], 9)


def _remainder(shares: Sequence[Series]) -> Series | None:
    """What the shares leave to 1 in each step; None where that is nothing but rounding."""
    rest: Series = [1 - sum(there) if (there := present(row)) else None for row in zip(*shares, strict=True)]
    return [None if r is None else max(r, 0.0) for r in rest] if any((r or 0) > 1e-6 for r in rest) else None


def _minus(left: Series, right: Series) -> Series:
    return [None if a is None or b is None else a - b for a, b in zip(left, right, strict=True)]


def _plus(left: Series, right: Series) -> Series:
    return [None if a is None or b is None else a + b for a, b in zip(left, right, strict=True)]


def _tokens(value: float) -> str:
    return decimal(value, 1)
