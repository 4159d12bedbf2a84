"""The figures of the report: each from the run's logs alone, as a title, one sentence, and plotly's JSON.

The sentence says in numbers what the figure shows, for those who read on paper or by ear. Colours of text
and grid are not set here: the page's style sheet sets them, for light, dark and print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.errors import MissingDependency
from grouprl.report.series import (
    Series,
    column,
    decimal,
    duration,
    from_to,
    mean,
    percent,
    present,
    thin,
)

try:
    import plotly.graph_objects as go
except ImportError as missing:
    raise MissingDependency(
        "report: plotly is not installed, expected it for the figures; pip install 'grouprl[report]'"
    ) from missing

Records = Sequence[Mapping[str, Any]]

# Mid tones, 3:1 or more on white and on near-black; told apart without colour by order and label.
BLUE, TEAL, AMBER, RUST, VIOLET, GREY = "#3b82c4", "#2a9d8f", "#c98a1b", "#c2573f", "#8d78c4", "#87919c"

GROUP_KINDS = (
    ("groups_informative_share", "informative", TEAL),
    ("groups_all_high_share", "all high", AMBER),
    ("groups_all_low_share", "all low", RUST),
    ("groups_single_share", "single", VIOLET),
    ("groups_unscored_share", "unscored", GREY),
)
STAGES = (
    ("seconds_rollout", "rollout", BLUE),
    ("seconds_reward", "reward", AMBER),
    ("seconds_greedy", "greedy", VIOLET),
    ("seconds_train", "train", TEAL),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the page.

    Args:
        name: Its id in the page.
        title: What it shows.
        caption: The same in numbers, one or two sentences.
        data: plotly's traces, as JSON text.
        layout: plotly's layout, as JSON text.
    """

    name: str
    title: str
    caption: str
    data: str
    layout: str


def figures(metrics: Records, evaluations: Records) -> list[Figure]:
    """The figures that this run has numbers for, in the order of the page."""
    drawn = [
        _reward(metrics),
        _held_out(evaluations),
        _groups(metrics),
        _lengths(metrics),
        _seconds(metrics),
    ]
    return [figure for figure in drawn if figure is not None]


def _reward(metrics: Records) -> Figure | None:
    means = column(metrics, "reward_mean")
    if not present(means):
        return None
    spread = column(metrics, "reward_group_std")
    steps, (thin_means, thin_spread) = thin(column(metrics, "step"), [means, spread])
    line = _line(steps, thin_means, "mean reward", BLUE)
    traces = [*_band(steps, thin_means, thin_spread), line]
    if len(traces) == 1 and present(spread):  # one step: a band has no area, so the point gets a bar
        line.error_y = {"type": "data", "array": thin_spread, "thickness": 1.2, "width": 4}
    caption = (
        f"Mean reward {from_to(means, decimal)}. Around it the std of the rewards within a group, "
        f"averaged over the step's groups: {from_to(spread, decimal)}."
    )
    return _figure("reward", "Mean reward", caption, traces)


def _held_out(evaluations: Records) -> Figure | None:
    accuracy = column(evaluations, "accuracy")
    greedy = column(evaluations, "accuracy_greedy")
    if len(present(accuracy)) < 2:  # the table above says it all
        return None
    steps = column(evaluations, "step")
    low, high = column(evaluations, "accuracy_low"), column(evaluations, "accuracy_high")
    line = _line(steps, accuracy, "sampled, 95% interval", BLUE)
    line.error_y = {
        "type": "data",
        "symmetric": False,
        "array": [_gap(h, a) for h, a in zip(high, accuracy, strict=True)],
        "arrayminus": [_gap(a, v) for a, v in zip(accuracy, low, strict=True)],
        "thickness": 1.2,
        "width": 4,
    }
    traces = [line]
    if present(greedy):
        traces.append(_line(steps, greedy, "greedy", AMBER, dash="dot"))
    caption = f"Accuracy on held-out prompts {from_to(accuracy, lambda v: percent(v, 1))} when sampled."
    return _figure("held-out", "Held-out accuracy", caption, traces, y_percent=True)


def _groups(metrics: Records) -> Figure | None:
    shares = [column(metrics, key) for key, _, _ in GROUP_KINDS]
    if not any(present(values) for values in shares):
        return None
    steps, thinned = thin(column(metrics, "step"), shares)
    kinds = [(label, color, values) for (_, label, color), values in zip(GROUP_KINDS, thinned, strict=True)]
    rest = _remainder(thinned)
    if rest is not None:  # equal rewards that are neither the highest nor the lowest
        kinds.append(("equal, in between", "#b3a27c", rest))
    traces = _stacked(steps, [kind for kind in kinds if any(kind[2])])
    said = ", ".join(f"{percent(mean(values))} {label}" for label, _, values in kinds if mean(values))
    with_gradient = mean(column(metrics, "groups_with_advantage_share"))
    caption = f"Mean over the run: {said or 'none'}. "
    caption += (
        "Only groups whose rewards differ have a gradient."  # a run of before other estimators could be named
        if with_gradient is None
        else f"{percent(with_gradient)} had an advantage other than 0: only these have a gradient from the rewards."
    )
    return _figure("groups", "What the groups were", caption, traces, y_percent=True, y_range=[0, 1])


def _lengths(metrics: Records) -> Figure | None:
    every, finished = column(metrics, "completion_tokens_mean"), column(metrics, "finished_tokens_mean")
    truncated = column(metrics, "truncated_share")
    if not present(every) and not present(truncated):
        return None
    steps, (every_thin, finished_thin, truncated_thin) = thin(
        column(metrics, "step"), [every, finished, truncated]
    )
    traces = []
    if present(truncated_thin):
        shade = _line(steps, truncated_thin, "truncated (right)", RUST)
        shade.update(yaxis="y2", fill="tozeroy", fillcolor="rgba(194,87,63,0.14)", line={"width": 1})
        traces.append(shade)
    traces.append(_line(steps, every_thin, "all, mean tokens", BLUE))
    if present(finished_thin):
        traces.append(_line(steps, finished_thin, "finished, mean tokens", TEAL, dash="dot"))
    ended = "none finished" if not present(finished) else f"finished ones {from_to(finished, _tokens)}"
    caption = f"Completions {from_to(every, _tokens)} tokens long, {ended}; "
    caption += f"truncated {from_to(truncated, percent)}."
    return _figure("lengths", "Length and truncation", caption, traces, second_percent=True, y_zero=True)


def _seconds(metrics: Records) -> Figure | None:
    whole = column(metrics, "seconds_step")
    stages = [column(metrics, key) for key, _, _ in STAGES]
    if not any(present(values) for values in [*stages, whole]):
        return None
    other: Series = [
        None if total is None else max(total - sum(present(parts)), 0.0)
        for total, *parts in zip(whole, *stages, strict=True)
    ]
    steps, thinned = thin(column(metrics, "step"), [*stages, other])
    labels = [*((label, color) for _, label, color in STAGES), ("other", GREY)]
    kinds = [(label, color, values) for (label, color), values in zip(labels, thinned, strict=True)]
    traces = _stacked(steps, [kind for kind in kinds if any(kind[2])], bars=len(steps) <= 200)
    parts = ", ".join(
        f"{label} {duration(mean(values))}" for label, _, values in kinds if present(values) and any(values)
    )
    caption = f"A step took {duration(mean(whole))} on average: {parts}."
    return _figure("seconds", "Seconds a step", caption, traces, y_zero=True)


def _line(x: Series, y: Series, name: str, color: str, dash: str = "solid") -> Any:
    points = "lines+markers" if len(x) <= 40 else "lines"
    line = {"color": color, "width": 2, "dash": dash}
    return go.Scatter(x=x, y=y, name=name, mode=points, line=line, marker={"size": 5, "color": color})


def _band(x: Series, middle: Series, spread: Series) -> list[Any]:
    """middle ± spread as an area; nothing where fewer than two points have both."""
    rows = [
        (at, m - s, m + s)
        for at, m, s in zip(x, middle, spread, strict=True)
        if m is not None and s is not None
    ]
    if len(rows) < 2:
        return []
    at, low, high = zip(*rows, strict=True)
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    fill = {"fill": "tonexty", "fillcolor": "rgba(59,130,196,0.18)", "name": "± std within groups"}
    return [go.Scatter(x=at, y=low, showlegend=False, **edge), go.Scatter(x=at, y=high, **edge, **fill)]


def _stacked(steps: Series, kinds: list[tuple[str, str, Series]], bars: bool = False) -> list[Any]:
    """Stacked areas; bars for a single step, which has no area."""
    if bars or len(steps) < 2:
        return [go.Bar(x=steps, y=y, name=label, marker={"color": color}) for label, color, y in kinds]
    area = {"mode": "lines", "stackgroup": "one"}
    return [
        go.Scatter(x=steps, y=y, name=label, fillcolor=color, line={"width": 0.5, "color": color}, **area)
        for label, color, y in kinds
    ]


def _remainder(shares: Sequence[Series]) -> Series | None:
    """What the shares leave to 1 in each step; None where that is nothing but rounding."""
    rest: Series = [1 - sum(there) if (there := present(row)) else None for row in zip(*shares, strict=True)]
    return [None if r is None else max(r, 0.0) for r in rest] if any((r or 0) > 1e-6 for r in rest) else None


def _gap(upper: float | None, lower: float | None) -> float | None:
    return None if upper is None or lower is None else max(upper - lower, 0.0)


def _tokens(value: float) -> str:
    return decimal(value, 1)


def _tick(traces: list[Any]) -> int | None:
    """Distance of the step ticks: 1 over a few steps, where plotly would put ticks between them."""
    at = [x for trace in traces for x in trace.x if x is not None]
    return 1 if at and max(at) - min(at) <= 10 else None


def _figure(
    name: str,
    title: str,
    caption: str,
    traces: list[Any],
    *,
    y_percent: bool = False,
    y_range: list[float] | None = None,
    y_zero: bool = False,
    second_percent: bool = False,
) -> Figure:
    axis = {"fixedrange": True, "zeroline": False, "automargin": True}
    y_axis: dict[str, Any] = axis | {"tickformat": ".0%" if y_percent else None}
    x_axis = axis | {"title": {"text": "step"}, "tickformat": "d", "showgrid": False, "dtick": _tick(traces)}
    if y_range is not None:
        y_axis["range"] = y_range
    elif y_zero:
        y_axis["rangemode"] = "tozero"
    layout: dict[str, Any] = {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "height": 270,
        "showlegend": True,
        "hovermode": "x unified",
        "dragmode": False,
        "barmode": "stack",
        "bargap": 0.15,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "xaxis": x_axis,
        "yaxis": y_axis,
    }
    if second_percent:
        side = {"overlaying": "y", "side": "right", "range": [0, 1], "showgrid": False, "tickformat": ".0%"}
        side |= {"tickmode": "array", "tickvals": [0, 0.5, 1]}
        layout["yaxis2"] = axis | side
    drawn = json.loads(go.Figure(data=traces, layout=layout).to_json())
    return Figure(name, title, caption, json.dumps(drawn["data"]), json.dumps(drawn["layout"]))
