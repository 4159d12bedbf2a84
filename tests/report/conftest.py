"""A small run on disk, and a parser that says what a browser would find in a page."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grouprl.records import RunFolder, append_jsonl, atomic_write, rollout_rows, write_rollouts
from grouprl.types import Completion, Group, Prompt

from .browser import chromium, look  # noqa: F401  (fixtures)

METRICS = {
    "reward_mean": 0.25,
    "reward_group_std": 0.4,
    "groups_informative_share": 0.5,
    "groups_all_high_share": 0.125,
    "groups_all_low_share": 0.375,
    "groups_single_share": 0.0,
    "groups_unscored_share": 0.0,
    "truncated_share": 0.25,
    "completion_tokens_mean": 9.0,
    "finished_tokens_mean": 5.0,
    "seconds_rollout": 4.0,
    "seconds_reward": 0.5,
    "seconds_train": 5.0,
    "seconds_step": 10.0,
    "peak_memory_gib": 3.2,
}
CONFIG = 'model = "bundled"\ntask = "arithmetic"\nsteps = 2\nseed = 0\n\n[rollout]\ngroup_size = 2\n'


def make_groups(texts: list[list[str]], prompt: str = "What is 2 + 2?") -> list[Group]:
    return [
        Group(
            f"g{i}",
            Prompt(f"p{i}", prompt),
            prompt,
            (1, 2),
            tuple(Completion((1,), (-1.0,), (True,), text, "stop") for text in members),
        )
        for i, members in enumerate(texts)
    ]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """A run of `steps` steps; each step's rollouts are `groups` (two of two completions by default)."""

    def make(
        steps: int = 2,
        *,
        metrics: dict[str, Any] | None = None,
        evaluations: int = 0,
        groups: list[Group] | None = None,
        rewards: list[float | None] | None = None,
        advantages: list[float] | None = None,
        config: str = CONFIG,
        name: str = "run",
    ) -> RunFolder:
        run = RunFolder.create(tmp_path / name)
        atomic_write(run.config_path, config.encode())
        for step in range(1, steps + 1):
            append_jsonl(run.metrics_path, {"step": step, **METRICS, **(metrics or {})})
            members = make_groups([["4", "5"], ["6", "7"]]) if groups is None else groups
            count = sum(len(group.completions) for group in members)
            rows = rollout_rows(
                step,
                members,
                rewards=[1.0, 0.0, 0.0, 0.0][:count] if rewards is None else rewards,
                advantages=[1.0, -1.0, 0.0, 0.0][:count] if advantages is None else advantages,
            )
            write_rollouts(run.rollouts_path(step), rows)
        for number in range(evaluations):
            record = {"step": number, "accuracy": 0.2 + number / 10, "prompts": 100, "samples": 4}
            record |= {"accuracy_low": 0.15 + number / 10, "accuracy_high": 0.26 + number / 10}
            append_jsonl(run.evaluations_path, record)
        return run

    return make


class Page(HTMLParser):
    """The elements, the visible text and the scripts of an HTML page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._raw: str | None = None
        self.feed(html)
        self.close()
        self.text = "".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag in ("script", "style"):
            self._raw = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._raw:
            self._raw = None

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            attrs, body = self.scripts[-1]
            self.scripts[-1] = (attrs, body + data)
        elif self._raw is None:
            self.words.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


@pytest.fixture
def read_page() -> Callable[[Path], Page]:
    return lambda path: Page(path.read_text(encoding="utf-8"))
