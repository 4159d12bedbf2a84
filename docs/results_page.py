"""The tables of docs/results.md, and the README's of it, written between markers from docs/measured/results.json:
`make figures`.

A marker is `<!-- measured: NAME -->`, and what follows it, up to `<!-- end -->`, is written by the function NAME.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results_data import DOCS, load, of_table
from results_figures import measured

PAGE = DOCS / "results.md"
README = DOCS.parent / "README.md"
MARKER = re.compile(r"(<!-- measured: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOTHING = "*Not measured yet.*"


def written(text: str, found: Mapping[str, Any]) -> str:
    """The page with what was measured between its markers.

    Raises:
        KeyError: A marker of a name that is none of `PARTS`.
    """
    return MARKER.sub(lambda match: f"{match[1]}{PARTS[match['name']](found)}\n{match[3]}", text)


def state(found: Mapping[str, Any]) -> str:
    """What has been run, where, and with which command."""
    runs = found["runs"].values()
    if not runs:
        return f"**Nothing has been measured yet.** `{found['command']}` makes the runs, and fills this page."
    seeds = [seed for run in runs for seed in run["seeds"].values()]
    planned = sum(run["seeds_planned"] for run in runs)
    machines = "; ".join(sorted({seed["machine"] for seed in seeds}))
    models = ", ".join(sorted({seed["model"] for seed in seeds}))
    return (
        f"{len(seeds)} runs of {len(runs)} configurations ({planned} are planned of these), {_cost(seeds)}. "
        f"Command: `{found['command']}`. Model: `{models}`. Machine: {machines}."
    )


def _cost(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Hours that one core would have worked: minutes times threads; and how the runs shared the machine."""
    ways = sorted({(seed["threads"], seed["jobs"]) for seed in seeds if seed["threads"]})
    said = " or ".join(
        f"{_count(threads, 'thread')} and {_count(jobs, 'run')} at once" for threads, jobs in ways
    )
    counted = [seed["core_minutes"] for seed in seeds if seed["core_minutes"] is not None]
    hours = f"{sum(counted) / 60:.1f} hours of one-core time" if counted else "time unknown"
    partly = sum(seed["wall_minutes"] is None for seed in seeds)
    notes = [
        *([f"with {said}"] if said else []),
        *([f"steps and evaluations alone for {_of(partly, len(seeds))}"] if partly else []),
    ]
    return f"{hours} ({'; '.join(notes)})" if notes else hours


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _of(some: int, all_of_them: int) -> str:
    return "all of them" if some == all_of_them else f"{some} of them"


def ppo(found: Mapping[str, Any]) -> str:
    def over_grpo(name: str) -> Callable[[Any], str]:
        """A ratio of medians; none before GRPO has been run."""
        unit = found["runs"].get("add-grpo")
        if unit is None:
            return lambda s: "–"
        return lambda s: f"{s[name]['median'] / unit['over_seeds'][name]['median']:.2f}"

    columns: dict[str, Callable[[Any], str]] = {
        "held out, before": lambda s: _share(s["right_before"]),
        "held out, after": lambda s: _share(s["right_after"]),
        "95 % of the mean": lambda s: _interval(s["right_after"]),
        "s a step": lambda s: _number(s["step_seconds"], 1),
        "over grpo's": over_grpo("step_seconds"),
        "peak memory, GiB": lambda s: _number(s["peak_gib"], 2),
        "over grpo's peak": over_grpo("peak_gib"),
    }
    return _table(found, "ppo", "", columns)


def estimators(found: Mapping[str, Any]) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "right, before": lambda s: _share(s["right_before"]),
        "right, after": lambda s: _share(s["right_after"]),
        "gained, 95 % of the mean": lambda s: _interval(s["gain"], least=-1.0),
        "strict": lambda s: _from_to(s["strict_before"], s["strict_after"]),
        "form": lambda s: _from_to(s["form_before"], s["form_after"]),
    }
    return _table(found, "estimators", "", columns)


def ablation(found: Mapping[str, Any]) -> str:
    runs = of_table(found, "ablation")
    if not runs:
        return NOTHING
    cost = found["ablation"]
    completions, seconds = cost["completions"], cost["seconds"]
    rows = [
        [
            run["title"],
            str(len(run["seeds"])),
            _share(completions["right"][name]),
            _share(seconds["right"][name]),
            _share(run["over_seeds"]["right_before"]),
            _share(run["over_seeds"]["right_after"]),
            _share(run["over_seeds"]["dead_share"]),
            _number(run["over_seeds"]["step_seconds"], 1),
        ]
        for name, run in runs.items()
    ]
    head = [
        "",
        "seeds",
        f"at {completions['budget']:,} completions",
        f"at {seconds['budget']:.0f} s",
        "before",
        "at its own end",
        "groups without spread",
        "s a step",
    ]
    return _rows(head, rows) + _figure(found, "ablation", "Held-out accuracy of DAPO's parts")


def harder(found: Mapping[str, Any]) -> str:
    if not found["harder"]:
        return NOTHING
    rows, failing = [], []
    for name, seeds in found["harder"].items():
        for seed, run in seeds.items():
            before, after = run["before"], run["after"]
            rows.append(
                [
                    f"{found['runs'][name]['title']}, seed {seed}",
                    _with_interval(before),
                    _with_interval(after),
                    f"{run['minutes']:.0f}",
                    "all" if all(run["holds"].values()) else "not all",
                ]
            )
            failing += [f"seed {seed}: not {what}" for what, holds in run["holds"].items() if not holds]
    head = ["", "before", "after", "minutes", "conditions that hold"]
    said = f"\n\nWhat does not hold: {'; '.join(failing)}." if failing else ""
    return (
        _rows(head, rows) + said + _figure(found, "harder", "Held-out accuracy on sums of two-digit numbers")
    )


def recipes(found: Mapping[str, Any]) -> str:
    runs = of_table(found, "recipes")
    if not runs:
        return NOTHING
    rows = []
    for name, run in runs.items():
        first = next(iter(run["seeds"].values()))  # one run a recipe
        before, after = first["evaluations"][0], first["evaluations"][-1]
        title = "ppo" if name == "add-ppo" else run["title"]
        rows.append(
            [
                f"`{title}`",
                str(first["steps"]),
                _with_interval(before),
                _with_interval(after),
                f"{first['reward_first']:.2f} → {first['reward_last']:.2f}".replace("-", "−"),
                "yes" if _apart(before, after) else "not shown",
            ]
        )
    return _rows(["", "steps", "before", "after", "training reward", "learnt"], rows)


HEADLINES = {
    "add-grpo": "GRPO, the quickstart",
    "add-ppo": "PPO with a value head, as many completions and updates",
    "add-ppo-own": "PPO whose critic is a model of its own, likewise",
    "add-random": "GRPO with a reward that flips a coin",
    "hard-grpo": "GRPO on sums of two-digit numbers, 60 steps",
}


def headline(found: Mapping[str, Any]) -> str:
    """What the README says."""
    runs = {name: found["runs"][name] for name in HEADLINES if name in found["runs"]}
    if not runs:
        return NOTHING
    rows = []
    for name, run in runs.items():
        over = run["over_seeds"]
        learnt = f"{_percent(over['right_before']['mean'])} % → {_share(over['right_after'])}"
        rows.append([HEADLINES[name], learnt, _number(over["step_seconds"], 1), _number(over["peak_gib"], 1)])
    return _rows(["", "right, held out, before → after", "s a step", "peak, GiB"], rows)


PARTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "state": state,
    "ppo": ppo,
    "ablation": ablation,
    "estimators": estimators,
    "harder": harder,
    "recipes": recipes,
    "headline": headline,
}

CAPTIONS = {
    "ppo": "Right answers while training, GRPO and PPO with a critic",
    "estimators": "Right answers while training, by estimator",
}


def _table(
    found: Mapping[str, Any], table: str, first: str, columns: Mapping[str, Callable[[Any], str]]
) -> str:
    runs = of_table(found, table)
    if not runs:
        return NOTHING
    rows = [
        [run["title"], str(len(run["seeds"])), *(cell(run["over_seeds"]) for cell in columns.values())]
        for run in runs.values()
    ]
    return _rows([first, "seeds", *columns], rows) + _figure(found, table, CAPTIONS[table])


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _figure(found: Mapping[str, Any], table: str, caption: str) -> str:
    return f"\n\n![{caption}](images/results-{table}.svg)" if f"results-{table}" in measured(found) else ""


def _share(value: Mapping[str, Any]) -> str:
    """Mean, and the range over seeds, as percentages."""
    spread = f" ({_percent(value['least'])} to {_percent(value['greatest'])})" if value["n"] > 1 else ""
    return f"{_percent(value['mean'])} %{spread}"


def _number(value: Mapping[str, Any], digits: int) -> str:
    """Median, which a seed that ran beside other work does not move, and the range over seeds."""
    spread = f" ({value['least']:.{digits}f} to {value['greatest']:.{digits}f})" if value["n"] > 1 else ""
    return f"{value['median']:.{digits}f}{spread}"


def _interval(value: Mapping[str, Any], *, least: float = 0.0) -> str:
    """Of the mean over seeds. What would go beyond what a share can be ends there."""
    if value["low"] is None:
        return "–"
    return f"{_percent(max(least, value['low']))} to {_percent(min(1.0, value['high']))} %"


def _from_to(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return f"{_percent(before['mean'])} → {_percent(after['mean'])} %"


def _with_interval(evaluation: Mapping[str, Any]) -> str:
    said = f"{_percent(evaluation['right'])} %"
    if evaluation["low"] is None:
        return said
    return f"{said} ({_percent(evaluation['low'])} to {_percent(evaluation['high'])})"


def _apart(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return None not in (before["high"], after["low"]) and after["low"] > before["high"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def main() -> None:
    for page in (PAGE, README):
        page.write_text(written(page.read_text(encoding="utf-8"), load()), encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main()
