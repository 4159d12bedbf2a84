"""report.html: one file that shows what a run did, readable anywhere, with nothing fetched from anywhere.

Prompts and completions are untrusted text. They are escaped by the template, their control and invisible
characters are spelt out, and the page's content security policy runs no script but its own two, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from grouprl.errors import MissingDependency, RunError
from grouprl.records import RunFolder, atomic_write
from grouprl.records.jsonl import clean_text
from grouprl.report.groups import Group, first_and_last, has_signal
from grouprl.report.series import column, decimal, duration, from_to, mean, number, percent, present
from grouprl.report.text import segments

GROUPS_A_STEP = 4
COMPLETIONS_A_GROUP = 16
PREVIEW_CHARACTERS = 600
MOST_CHARACTERS = 20_000


def write_report(run_path: str | Path | RunFolder, output: str | Path | None = None) -> Path:
    """Write a run's report as one self-contained HTML file.

    Args:
        run_path: The run folder.
        output: The file to write, or an existing folder to put `report.html` into; by default the run folder.

    Returns:
        The file's path.

    Raises:
        RunError: No run there, no finished step in it, a log or rollout file that cannot be read, or an
            output that cannot be written.
        MissingDependency: plotly or jinja2 is not installed.

    A run without evaluations, or without rollouts on disk, gets a page that says so.
    """
    run = run_path if isinstance(run_path, RunFolder) else RunFolder.open(run_path)
    page = render(run)
    path = run.report_path if output is None else Path(output).expanduser()
    if path.is_dir():
        path = path / "report.html"
    try:
        atomic_write(path, clean_text(page).encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); choose another output") from error
    return path


def render(run: RunFolder) -> str:
    """The page's HTML; raises as `write_report` does."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingDependency(
            "report: plotly and jinja2 are needed for the page; pip install 'grouprl[report]'"
        ) from error
    from grouprl.report.figures import figures

    metrics, evaluations, config = run.metrics(), run.evaluations(), run.config()
    if not metrics:
        raise RunError(
            f"{run.metrics_path}: no finished step, expected at least one; train first, then report"
        )
    samples = first_and_last(run, GROUPS_A_STEP)
    templates = files("grouprl.report") / "templates"
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["segments"] = lambda text: segments(str(text))
    environment.filters["json_block"] = lambda text: Markup(_script_safe_json(text))  # noqa: S704
    library = get_plotlyjs().replace("\r", "").replace("</script", "<\\/script")
    loader = (templates / "figures.js").read_text(encoding="utf-8")
    template = environment.from_string((templates / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        name=run.path.resolve().name,
        heading=_heading(config, metrics),
        tiles=_tiles(metrics, evaluations),
        evaluations=_evaluation_table(evaluations),
        figures=figures(metrics, evaluations),
        samples=[(step, [_group_view(rows) for rows in groups]) for step, groups in samples],
        config=run.config_path.read_text(encoding="utf-8"),
        style=Markup((templates / "report.css").read_text(encoding="utf-8")),  # noqa: S704
        library=Markup(library),  # noqa: S704
        loader=Markup(loader),  # noqa: S704
        policy=f"default-src 'none'; script-src {_hash(library)} {_hash(loader)}; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'",
    )


def _heading(config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(label, value) of what was trained on what; what the configuration does not name is left out."""
    done = max(present(column(metrics, "step")), default=float(len(metrics)))
    planned = number(_setting(config, "steps"))
    steps = f"{done:.0f}" if planned is None or planned == done else f"{done:.0f} of {planned:.0f}"
    facts = [("model", _setting(config, "model")), ("task", _setting(config, "task")), ("steps", steps)]
    further = ("prompts_per_step", "group_size", "estimator", "lr", "seed")
    facts += [(key.replace("_", " "), _setting(config, key)) for key in further]
    return [(label, str(value)) for label, value in facts if value is not None]


def _setting(config: Mapping[str, Any], key: str) -> Any:
    """The scalar of that name, at the top of the configuration or in one of its tables."""
    tables = [config, *(table for table in config.values() if isinstance(table, Mapping))]
    for table in tables:
        value = table.get(key)
        if isinstance(value, Mapping):
            value = next((value[name] for name in ("name", "path", "id", key) if name in value), None)
        if value is not None and not isinstance(value, list | Mapping):
            return value
    return None


def _tiles(
    metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str, str]]:
    """(label, figure, remark) of the few numbers to see first."""
    accuracy = column(evaluations, "accuracy")
    finished = column(metrics, "finished_tokens_mean")
    truncated = column(metrics, "truncated_share")
    remark = "of completions, first to last step"
    if metrics and not present(finished) and any(present(truncated)):
        remark = "of completions: none finished"
    informative = mean(column(metrics, "groups_informative_share"))
    tiles = [
        (
            "Held-out accuracy",
            from_to(accuracy, percent),
            f"sampled, 95% {_interval(evaluations[-1])} at the end",
        )
        if present(accuracy)
        else ("Held-out accuracy", "–", "not evaluated"),
        ("Mean reward", from_to(column(metrics, "reward_mean"), decimal), "first to last step"),
        (
            "Groups with spread",
            percent(informative),
            "mean over the run",
        ),
        ("Truncated", from_to(truncated, percent), remark),
    ]
    seconds = present(column(metrics, "seconds_step"))
    if seconds:
        memory = max(present(column(metrics, "peak_memory_gib")), default=None)
        peak = "" if memory is None else f", peak memory {memory:.1f} GiB"
        tiles.append(("Time in steps", duration(sum(seconds)), f"{duration(mean(seconds))} a step{peak}"))
    return tiles


def _evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first and last evaluation side by side; None where there was none."""
    if not evaluations:
        return None
    chosen = [evaluations[0]] if len(evaluations) == 1 else [evaluations[0], evaluations[-1]]
    rows = {
        "Accuracy, sampled": [percent(number(one.get("accuracy")), 1) for one in chosen],
        "95% interval": [_interval(one) for one in chosen],
        "Accuracy, greedy": [percent(number(one.get("accuracy_greedy")), 1) for one in chosen],
        "Mean reward": [decimal(number(one.get("reward_mean"))) for one in chosen],
        "Truncated": [percent(number(one.get("truncated_share")), 1) for one in chosen],
        **_if_some(chosen, "Only a number", "only_number_share"),
        **_if_some(chosen, "Unscored", "unscored_share"),
        "Prompts × samples": [_counts(one) for one in chosen],
    }
    names = [f"step {decimal(number(one.get('step')), 0)}" for one in chosen]
    if len(chosen) == 2:
        first, last = ("before", "after") if number(chosen[0].get("step")) == 0 else ("first", "last")
        names = [f"{first} ({names[0]})", f"{last} ({names[1]})"]
    return {"columns": names, "rows": {name: row for name, row in rows.items() if any(c != "–" for c in row)}}


def _if_some(chosen: Sequence[Mapping[str, Any]], name: str, key: str) -> dict[str, list[str]]:
    """A row of shares, or none where all of them are 0: it does not concern this task."""
    shares = [number(one.get(key)) for one in chosen]
    return {name: [percent(share, 1) for share in shares]} if any(shares) else {}


def _interval(evaluation: Mapping[str, Any]) -> str:
    low, high = number(evaluation.get("accuracy_low")), number(evaluation.get("accuracy_high"))
    return "–" if low is None or high is None else f"{percent(low, 1)} to {percent(high, 1)}"


def _counts(evaluation: Mapping[str, Any]) -> str:
    prompts, samples = number(evaluation.get("prompts")), number(evaluation.get("samples"))
    return "–" if prompts is None else f"{prompts:.0f}" + ("" if samples is None else f" × {samples:.0f}")


@dataclass(frozen=True, slots=True)
class _Completion:
    reward: str
    parts: str
    advantage: float | None
    bar: float
    """Width of the advantage's bar, in percent of the half it may fill."""
    ended: str
    tokens: str
    preview: str
    rest: str
    left_out: int


@dataclass(frozen=True, slots=True)
class _Group:
    prompt: str
    before: str
    """What of a long prompt stands before the part that is shown: the question is at its end."""
    prompt_id: str
    remark: str
    """Why nothing was learned from it; "" where something was."""
    completions: list[_Completion]
    more: int


def _group_view(rows: Group) -> _Group:
    largest = max((abs(row.get("advantage") or 0.0) for row in rows), default=0.0)
    prompt = (rows[0].get("prompt") or "").strip()
    cut = max(len(prompt) - PREVIEW_CHARACTERS, 0) if len(prompt) > PREVIEW_CHARACTERS * 1.2 else 0
    return _Group(
        prompt=prompt[cut:],
        before=prompt[max(cut - MOST_CHARACTERS, 0) : cut],
        prompt_id=rows[0].get("prompt_id") or "",
        remark=_remark(rows),
        completions=[_completion_view(row, largest) for row in rows[:COMPLETIONS_A_GROUP]],
        more=max(len(rows) - COMPLETIONS_A_GROUP, 0),
    )


def _remark(rows: Group) -> str:
    if has_signal(rows) or all(row.get("advantage") is None for row in rows):
        return ""
    rewards = present([number(row.get("reward")) for row in rows])
    equal = not rewards or math.isclose(min(rewards), max(rewards), rel_tol=1e-6)
    return "no spread: every advantage is 0" if equal else "every advantage is 0"


def _completion_view(row: Mapping[str, Any], largest: float) -> _Completion:
    text, advantage = row.get("completion") or "", row.get("advantage")
    components = {key[len("reward_") :]: value for key, value in row.items() if key.startswith("reward_")}
    parts = ", ".join(f"{name} {decimal(number(value))}" for name, value in components.items())
    cut = PREVIEW_CHARACTERS if len(text) > PREVIEW_CHARACTERS * 1.2 else len(text)
    tokens = row.get("completion_tokens")
    return _Completion(
        reward="unscored" if row.get("reward") is None else decimal(row["reward"]),
        parts=parts if len(components) > 1 else "",
        advantage=advantage,
        bar=100 * abs(advantage or 0.0) / largest if largest else 0.0,
        ended={"stop": "finished", "length": "truncated"}.get(row.get("finish_reason") or "", ""),
        tokens="" if tokens is None else f"{tokens} token{'' if tokens == 1 else 's'}",
        preview=text[:cut],
        rest=text[cut:MOST_CHARACTERS],
        left_out=max(len(text) - MOST_CHARACTERS, 0),
    )


def _script_safe_json(text: str) -> str:
    """JSON that cannot end the script element which holds it."""
    json.loads(text)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
