"""`grouprl explain`: the advantages of one group, step by step, and side by side by estimator."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray

from grouprl import advantages
from grouprl.advantages import Estimator
from grouprl.advantages.specs import enough_alone, estimator_from_spec, full_options
from grouprl.cli.estimators import advantages_of
from grouprl.cli.options import parse, plural
from grouprl.errors import ConfigError, InputError
from grouprl.records.table import number_from_text

DESCRIPTION = """What GRPO makes of the rewards of one group, step by step.

  grouprl explain 1 2 3
  grouprl explain 1 0 0 none               a completion that could not be scored
  grouprl explain 1 0 0 0 --estimator rloo
  grouprl explain 1 0 0 0 --compare        all estimators side by side"""

BAR = 12
SHOWN = 6
"""Completions side by side, in 80 columns."""
WHY_THE_STD = (
    "Why divide by the std: a prompt that is nearly always or nearly never solved has a small std, so its rare "
    "surprise counts more, and the size of the reward's unit does not matter. (Dr. GRPO leaves it out.)"
)


@dataclass(frozen=True)
class ExplainArguments:
    rewards: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Rewards of the completions of one prompt; none where one could not be scored."""
    estimator: str = "grpo"
    """Which estimator: a name, or your own as file.py:function or module:function."""
    compare: bool = False
    """All estimators that need nothing but rewards, side by side."""
    json: bool = False
    """One JSON object and nothing else."""


def explain_command(arguments: Sequence[str]) -> int:
    """Print it."""
    given = parse(ExplainArguments, arguments, prog="grouprl explain", description=DESCRIPTION)
    rewards = [_reward(text) for text in given.rewards]
    if not rewards:
        raise ConfigError("explain: no rewards, expected those of one group; try grouprl explain 1 2 3")
    if given.compare:
        comparison = _compare(rewards)
        print(json.dumps(comparison, allow_nan=False) if given.json else _comparison(comparison))
        return 0
    estimator = estimator_from_spec(given.estimator)
    if not enough_alone(estimator):
        needed = ", ".join(sorted(estimator.needs)) or f"more than one call (its scope is {estimator.scope})"
        raise ConfigError(
            f"explain: {estimator.name} needs {needed}, not rewards alone; expected one of "
            f"{', '.join(e.name for e in _simple())}"
        )
    record = _record(estimator, rewards)
    print(json.dumps(record, allow_nan=False) if given.json else _story(record))
    return 0


def _reward(text: str) -> float | None:
    """The number; None for all that counts as unscored."""
    try:
        reward = number_from_text("reward", text)
    except ValueError as error:
        raise ConfigError(f"explain: {error}; write none where it could not be scored") from None
    return reward if math.isfinite(reward) else None


def _simple() -> list[Estimator]:
    """Estimators that rewards of one group are enough for."""
    return [e for e in map(advantages.get, advantages.names()) if enough_alone(e)]


def _advantages(estimator: Estimator, rewards: Sequence[float | None]) -> list[float]:
    group = np.zeros(len(rewards), np.int64)
    return [float(a) for a in advantages_of(estimator, _array(rewards), group, {})]


def _array(rewards: Sequence[float | None]) -> NDArray[np.float64]:
    """In float64, so that what is shown is not rounded twice."""
    return np.array([math.nan if r is None else r for r in rewards])


def _numbers(estimator: Estimator) -> dict[str, float]:
    """The numbers in its equation: its options but for those of how the std and rounding are counted."""
    options = full_options(estimator, {})
    return {name: x for name, x in options.items() if name not in ("ddof", "spread_ulps") and _is_number(x)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare(rewards: Sequence[float | None]) -> dict[str, Any]:
    """Each estimator's advantages, or why it refuses these rewards, and its eps, None where it has none."""
    table, refused = {}, {}
    for estimator in _simple():
        try:
            table[estimator.name] = _advantages(estimator, rewards)
        except InputError as error:
            refused[estimator.name] = str(error).partition(": ")[2].partition(";")[0]
    eps = {estimator.name: _numbers(estimator).get("eps") for estimator in _simple()}
    return {"rewards": list(rewards), "advantages": table, "refused": refused, "eps": eps}


def _record(estimator: Estimator, rewards: Sequence[float | None]) -> dict[str, Any]:
    try:
        values = _advantages(estimator, rewards)
    except InputError as error:
        raise ConfigError(f"explain: {error}") from error
    stats = advantages.group_stats(_array(rewards))
    numbers = _numbers(estimator)
    return {
        "estimator": estimator.name,
        "equation": estimator.equation,
        "source": estimator.source,
        "rewards": list(rewards),
        "mean": float(stats.mean[0]),
        "std": float(stats.std[0]),
        "scored": int(stats.count[0]),
        "has_spread": bool(stats.has_spread[0]),
        "eps": numbers.pop("eps", None),
        "options": numbers,
        "zero_sum": "zero_sum" in estimator.laws,
        "own_group": "equal_is_zero" in estimator.laws,
        "advantages": values,
    }


def _story(record: dict[str, Any]) -> str:
    rewards, values = record["rewards"], record["advantages"]
    eps = "" if record["eps"] is None else f", eps {record['eps']:g}"
    options = ", ".join(f"{name} = {x:g}" for name, x in record["options"].items())
    labels = [f"completion {k}" for k in range(1, len(rewards) + 1)]
    width = max(map(len, labels))
    lines = [
        f"One prompt, {plural(len(rewards), 'completion')}, a reward each. {record['estimator']}:",
        "",
        *(f"    {line}" for line in _equation(record["equation"])),
        *([""] if record["equation"] else []),
        f"  the group's mean is {record['mean']:.6g}, its population std {record['std']:.6g}{eps}"
        if record["scored"]
        else "  no completion was scored, so there is no mean and no std",
        *([f"  here {options}"] if options else []),
        "",
        f"  {'':>{width}}{'reward':>9}  {'R − mean':>9}  {'advantage':>9}   push",
    ]
    largest = max(map(abs, values)) or 1.0
    for label, reward, value in zip(labels, rewards, values):
        shown = "unscored" if reward is None else _within(9, f"{reward:.6g}", f"{reward:.1e}")
        deviation = "" if reward is None else _signed(reward - record["mean"])
        push = _push(value, largest)
        lines.append(f"  {label:>{width}}{shown:>9}  {deviation:>9}  {_signed(value):>9}   {push}".rstrip())
    return "\n".join([*lines, "", *_lessons(record)])


def _equation(text: str) -> list[str]:
    """Its lines, those that are too long for 80 columns cut where they have a gap."""
    return [
        part.strip()
        for line in text.splitlines()
        for part in ([line] if len(line) <= 76 else re.split(" {4,}", line.strip()))
    ]


def _within(width: int, text: str, short: str) -> str:
    return text if len(text) <= width else short


def _signed(x: float) -> str:
    """In nine characters."""
    return f"{x:+.4f}" if x == 0 or 1e-3 <= abs(x) < 1e3 else f"{x:+.2e}"


def _push(value: float, largest: float) -> str:
    if value == 0:
        return "none: it costs no training"
    return f"{'█' * max(1, round(abs(value) / largest * BAR))} {'more' if value > 0 else 'less'} likely"


def _lessons(record: dict[str, Any]) -> list[str]:
    scored = record["scored"]
    if scored == 0:
        said = ["Nothing was scored, so there is nothing to learn: every advantage is exactly 0."]
    elif not record["own_group"]:
        said = [
            "It looks beyond the group, at the whole batch, which here is this group. With others beside it the group "
            "is also compared with them, and equal rewards need not give 0.",
        ]
    elif scored == 1:
        said = [
            "A group of one has nothing to be compared with: its advantage is exactly 0. The sample std of one value "
            "would be 0 / 0; some trainers take the raw reward there instead, which pushes without a baseline."
        ]
    elif not record["has_spread"]:
        said = [
            "All rewards are equal: exactly 0, nothing to learn, and the trainer leaves the group out of forward and "
            "backward. (mean, std, subtract, divide in float32 does not give 0: the mean of seven times 100.1 is not "
            "100.1, and the residue is divided by a std that is as small.)"
        ]
    else:
        said = [
            "The group is its own baseline: completions above it become more likely, those below less, by the gradient "
            f"of A · log π.{' The advantages sum to 0.' if record['zero_sum'] else ''}",
            "Why not the batch's mean: an easy prompt's completions would all be pushed up and a hard one's all down, "
            "whichever of them was good.",
            "What the critic did: PPO learns a second network to predict the mean of this group. Sampling the group "
            "measures it.",
            "A group of one, and equal rewards, have nothing to compare: exactly 0 for each, and no training.",
        ]
        if "std(R)" in record["equation"]:
            said.insert(1, WHY_THE_STD)
    if scored < len(record["rewards"]):
        said.append(
            "An unscored completion gets 0, and its siblings are computed as though it had never been sampled."
        )
    if record["source"] != "ours":
        said.append(f"Source: {record['source']}")
    return [line for text in said for line in textwrap.wrap(text, 78)]


def _comparison(comparison: dict[str, Any]) -> str:
    rewards, table, refused = comparison["rewards"], comparison["advantages"], comparison["refused"]
    more = "  …" if len(rewards) > SHOWN else ""
    shown = ["none" if r is None else _within(7, f"{r:.5g}", f"{r:.0e}") for r in rewards[:SHOWN]]
    lines = [f"{'reward':<29}" + "".join(f" {cell:>7}" for cell in shown) + more]
    lines += [
        f"{name:<29}" + "".join(f" {_cell(a):>7}" for a in values[:SHOWN]) for name, values in table.items()
    ]
    batch = [name for name in (*table, *refused) if advantages.get(name).scope == "batch"]
    missing = [name for name in advantages.names() if name not in (*table, *refused)]
    notes = [
        *(f"{name} refuses these rewards: {why}." for name, why in refused.items()),
        f"{_eps_used(comparison['eps'])}.",
        f"Look at the whole batch, which is one group here: {', '.join(batch)}.",
        f"Need more than the rewards of one group: {', '.join(missing)}.",
    ]
    return "\n".join([*lines, "", *(line for note in notes for line in textwrap.wrap(note, 78))])


def _cell(x: float) -> str:
    """In seven characters."""
    return f"{x:.3f}" if x == 0 or 1e-2 <= abs(x) < 100 else f"{x:.0e}"


def _eps_used(eps: dict[str, float | None]) -> str:
    """ "eps is 1e-06 in grpo, …, and 0 in …; the others have none"."""
    users: dict[float, list[str]] = {}
    for name, value in eps.items():
        if value is not None:
            users.setdefault(value, []).append(name)
    said = ", and ".join(f"{value:g} in {', '.join(names)}" for value, names in users.items())
    return f"eps is {said}; the others have none"
