"""`grouprl explain`: the advantages of one group, step by step, and side by side by estimator."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from grouprl import advantages
from grouprl.cli.options import parse, plural
from grouprl.errors import ConfigError, InputError

DESCRIPTION = """What GRPO makes of the rewards of one group, step by step.

  grouprl explain 1 2 3
  grouprl explain 1 0 0 none               a completion that could not be scored
  grouprl explain 1 0 0 0 --estimator rloo
  grouprl explain 1 0 0 0 --compare        all estimators side by side"""

UNSCORED = ("none", "nan", "null", "x")
BAR = 12


@dataclass(frozen=True)
class ExplainArguments:
    rewards: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Rewards of the completions of one prompt; none where one could not be scored."""
    estimator: str = "grpo"
    """Which estimator."""
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
        table = {name: _advantages(name, rewards) for name in _simple()}
        print(
            json.dumps({"rewards": rewards, "advantages": table})
            if given.json
            else _comparison(rewards, table)
        )
        return 0
    estimator = advantages.get(given.estimator)
    if estimator.name not in _simple():
        needed = ", ".join(sorted(estimator.needs)) or f"more than one call (its scope is {estimator.scope})"
        raise ConfigError(
            f"explain: {estimator.name} needs {needed}, not rewards alone; expected one of {', '.join(_simple())}"
        )
    record = _record(estimator.name, rewards)
    print(json.dumps(record) if given.json else _story(record))
    return 0


def _reward(text: str) -> float | None:
    if text.lower() in UNSCORED:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"explain: reward {text!r}, expected a number, or none where there is none"
        ) from None


def _simple() -> list[str]:
    """Estimators that rewards of one group are enough for."""
    every = (advantages.get(name) for name in advantages.names())
    return [e.name for e in every if not e.needs and e.scope in ("group", "batch")]


def _advantages(name: str, rewards: Sequence[float | None]) -> list[float] | str:
    """What an estimator gives, or why it refuses these rewards."""
    try:
        return [float(a) for a in advantages.get(name)(list(rewards))]
    except InputError as error:
        return str(error).partition(": ")[2].partition(";")[0]


def _record(name: str, rewards: Sequence[float | None]) -> dict[str, Any]:
    values = _advantages(name, rewards)
    if isinstance(values, str):
        raise ConfigError(f"explain: {name} refuses these rewards: {values}")
    stats = advantages.group_stats(list(rewards))
    estimator = advantages.get(name)
    return {
        "estimator": name,
        "equation": estimator.equation,
        "source": estimator.source,
        "rewards": list(rewards),
        "mean": float(stats.mean[0]),
        "std": float(stats.std[0]),
        "scored": int(stats.count[0]),
        "has_spread": bool(stats.has_spread[0]),
        "eps": 1e-6,
        "zero_sum": "zero_sum" in estimator.laws,
        "advantages": values,
    }


def _story(record: dict[str, Any]) -> str:
    rewards, values = record["rewards"], record["advantages"]
    lines = [
        f"One prompt, {plural(len(rewards), 'completion')}, a reward each. {record['estimator']}:",
        "",
        *(f"    {line.strip()}" for line in record["equation"].splitlines()),
        "",
        f"  the group's mean is {record['mean']:.6g}, its population std {record['std']:.6g}, eps {record['eps']:g}",
        "",
        f"  {'':>10}  {'reward':>9}  {'R − mean':>9}  {'advantage':>9}   push",
    ]
    largest = max(map(abs, values)) or 1.0
    for k, (reward, value) in enumerate(zip(rewards, values), start=1):
        shown = "unscored" if reward is None or not math.isfinite(reward) else f"{reward:.4g}"
        deviation = "" if shown == "unscored" else f"{round(reward - record['mean'], 4) + 0.0:+.4f}"
        lines.append(
            f"  {f'completion {k}':>12}{shown:>9}  {deviation:>9}  {value:>+9.4f}   {_push(value, largest)}".rstrip()
        )
    return "\n".join([*lines, "", *_lessons(record)])


def _push(value: float, largest: float) -> str:
    if value == 0:
        return "none: it costs no training"
    return f"{'█' * max(1, round(BAR * abs(value) / largest))} {'more' if value > 0 else 'less'} likely"


def _lessons(record: dict[str, Any]) -> list[str]:
    scored = record["scored"]
    if scored == 0:
        said = ["Nothing was scored, so there is nothing to learn: every advantage is exactly 0."]
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
            "Why divide by the std: a prompt that is nearly always or nearly never solved has a small std, so its "
            "rare surprise counts more, and the size of the reward's unit does not matter. (Dr. GRPO leaves it out.)",
            "Why not the batch's mean: an easy prompt's completions would all be pushed up and a hard one's all down, "
            "whichever of them was good.",
            "What the critic did: PPO learns a second network to predict the mean of this group. Sampling the group "
            "measures it.",
        ]
        if "std" not in record["equation"]:
            said = [text for text in said if not text.startswith("Why divide by the std")]
    if scored < len(record["rewards"]):
        said.append(
            "An unscored completion gets 0, and its siblings are computed as though it had never been sampled."
        )
    said.append(f"Source: {record['source']}")
    return [line for text in said for line in textwrap.wrap(text, 78)]


def _comparison(rewards: Sequence[float | None], table: dict[str, list[float] | str]) -> str:
    shown = ["none" if r is None else f"{r:.4g}" for r in rewards]
    columns = shown[:6]
    lines = [f"{'reward':<30}" + "".join(f"{c:>8}" for c in columns) + ("  …" if len(shown) > 6 else "")]
    for name, values in table.items():
        cells = values if isinstance(values, str) else "".join(f"{v:>8.3f}" for v in values[:6])
        lines.append(f"{name:<30}{cells}")
    missing = [n for n in advantages.names() if n not in table]
    lines += ["", *textwrap.wrap(f"Need more than the rewards of one group: {', '.join(missing)}.", 78)]
    return "\n".join(lines)
