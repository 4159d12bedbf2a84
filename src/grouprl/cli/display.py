"""What `grouprl train` shows while it runs: a line a step, and a live bar where there is a terminal."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from grouprl.cli.options import plural
from grouprl.report.text import safe_text
from grouprl.training import Config, Listener

HEADER = "     step  reward  spread  teach  high   low other    cut  tokens   tok/s     left"
LEGEND = (
    "reward: mean · spread: standard deviation within groups · cut: completions cut off\n"
    "groups: teach: rewards differ · high, low: all right, all not · other: one or none scored"
)
STAGES = {
    "rollout": "sampling",
    "reward": "scoring",
    "train": "training",
    "evaluation": "held-out accuracy",
    "checkpoint": "saving",
}
AHEAD = {"rollout": "sampling, next step", "reward": "scoring, next step"}
"""Of a run with max_staleness."""


class SteadyStream:
    """A text stream whose other end may go away: what is written from then on goes nowhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._steadily(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        self._steadily(self._stream.flush)

    def _steadily(self, act: Callable[[], int | None]) -> int | None:
        try:
            return act()
        except OSError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            return None


class SteadyConsole(Console):
    """A console whose reader may go away: the run goes on, where rich would exit or raise.

    `grouprl train | head`, a terminal that was closed while the run was in the background, a log on a full disk.
    """

    @property
    def file(self) -> IO[str]:
        return cast("IO[str]", SteadyStream(super().file))

    @file.setter
    def file(self, new: IO[str]) -> None:
        self._file = new


class Display(Listener):
    """A listener that prints. Off a terminal it writes plain lines and no bar.

    Args:
        console: Where to.
        shown: False for one rank of several that is not the first: it prints nothing.
    """

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        self.shown = shown
        self.console = console or SteadyConsole(markup=False, highlight=False, emoji=False, quiet=not shown)
        self.path: Path | None = None
        self.saved_step = 0
        self._config: Config | None = None
        self._seconds: list[float] = []
        self._warned: set[str] = set()
        self._progress: Progress | None = None
        self._run_task: TaskID | None = None
        self._stage_task: TaskID | None = None
        self._ahead_task: TaskID | None = None
        self._quiet_since = time.monotonic()

    def __enter__(self) -> Display:
        if self.shown and self.console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def line(self, text: str = "") -> None:
        """A line that stays."""
        self.console.print(text, soft_wrap=True)

    def loading(self, model: str) -> None:
        if self._progress is not None:
            self._stage_task = self._progress.add_task(f"loading {safe_text(model)}", total=None, note="")

    def started(self, config: Config, path: Path, *, machine: str, step: int, notes: Sequence[str]) -> None:
        self._config, self.path, self.saved_step = config, path, step
        rollout = config.rollout
        self.line(f"{safe_text(config.model)} on {safe_text(config.task)}, {machine}")
        self.line(
            f"{rollout.prompts_per_step} prompts × {rollout.group_size} completions of at most "
            f"{rollout.max_new_tokens} tokens a step, {config.steps} steps, into {safe_text(str(path))}"
        )
        for note in notes:
            self.line(f"note: {safe_text(note)}")
        if self._progress is not None:
            self._run_task = self._progress.add_task("step", total=config.steps, completed=step, note="")
            if rollout.max_staleness:
                self._ahead_task = self._progress.add_task(AHEAD["rollout"], total=None, note="")

    def stage(self, name: str, done: int, total: int) -> None:
        """A bar; one of its own for what runs beside training, and is told from another thread."""
        description, task = STAGES.get(name, name), self._stage_task
        if name in AHEAD and self._ahead_task is not None:
            description, task = AHEAD[name], self._ahead_task
        if self._progress is not None and task is not None:
            self._progress.update(task, description=description, completed=done, total=total)
        elif self._progress is None and name == "evaluation" and time.monotonic() - self._quiet_since > 30:
            self._quiet_since = time.monotonic()
            self.line(f"evaluating: {done} of {total} completions sampled")

    def stepped(self, metrics: Mapping[str, Any], rows: Mapping[str, Sequence[Any]]) -> None:
        config = self._config
        if config is None:
            return
        if not self._seconds:
            self.line(LEGEND)
            self.line(HEADER)
        self._seconds.append(metrics["seconds_step"])
        left = _left(self._seconds, config.steps - metrics["step"])
        groups = metrics["groups"]
        teach, high, low = (
            round(metrics[f"groups_{kind}_share"] * groups) for kind in ("informative", "all_high", "all_low")
        )
        self.line(
            f"{metrics['step']:>5}/{config.steps:<3}  {_number(metrics['reward_mean']):>6}  "
            f"{_number(metrics['reward_group_std']):>6}  "
            f"{teach:>5} {high:>5} {low:>5} {groups - teach - high - low:>5}  "
            f"{_percent(metrics['truncated_share']):>5}  {metrics['completion_tokens_mean']:>6.1f}  "
            f"{metrics['rollout_tokens_per_s']:>6.0f}  {left:>7}"
        )
        if self._progress is not None and self._run_task is not None:
            note = (
                f"{left} left · reward {_number(metrics['reward_mean'])} · {teach} of {groups} groups teach · "
                f"{metrics['rollout_tokens_per_s']:.0f} tok/s"
            )
            self._progress.update(self._run_task, completed=metrics["step"], note=note)

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        self.line(
            f"held-out after step {evaluation['step']}: accuracy {_percent(evaluation['accuracy'])} sampled, "
            f"{_percent(evaluation['accuracy_greedy'])} greedy "
            f"({plural(evaluation['prompts'], 'problem')} × {evaluation['samples']})"
        )

    def warned(self, message: str) -> None:
        """Each kind once: the table shows that it goes on."""
        kind = re.sub(r"\d+", "", message)[:60]
        if kind not in self._warned:
            self._warned.add(kind)
            self.line(f"warning: {safe_text(message)}")

    def checkpointed(self, step: int, path: Path) -> None:
        self.saved_step = step


def _left(seconds: Sequence[float], steps: int) -> str:
    recent = sorted(seconds[-10:])
    total = round(recent[len(recent) // 2] * steps)
    minutes, rest = divmod(total, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
