"""Metrics to TensorBoard, Weights & Biases or Trackio, under the names that TRL users know.

What means the same as a metric of TRL's GRPOTrainer has its name there (docs/report.md has the table); everything
else stands under `grouprl/`. All of it is in metrics.jsonl in any case: a tracker that fails during a run is left
out from then on, with a warning, and the run goes on.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from grouprl.errors import ConfigError, MissingDependency
from grouprl.training.config import Config
from grouprl.training.events import Listener

TRL_NAMES = {
    "reward_mean": "reward",
    "reward_group_std": "reward_std",
    "completion_tokens_mean": "completions/mean_length",
    "completion_tokens_max": "completions/max_length",
    "finished_tokens_mean": "completions/mean_terminated_length",
    "truncated_share": "completions/clipped_ratio",
    "kl_ref": "kl",
    "entropy": "entropy",
    "clip_low_share": "clip_ratio/low_mean",
    "clip_high_share": "clip_ratio/high_mean",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "seconds_step": "step_time",
}
"""Our name of a metric → TRL's, where both measure the same."""

_COMPONENT = re.compile(r"reward_(.+)_mean")


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the values of one step."""

    def close(self) -> None:
        """Write what is left."""


def names_for_trackers(metrics: Mapping[str, Any], *, part: str = "train") -> dict[str, float]:
    """A record of metrics.jsonl (or evaluations.jsonl, with part="eval") under the names that trackers get.

    Only finite numbers are there: null is no 0.

    Example:
        >>> names_for_trackers({"step": 3, "reward_mean": 0.5, "reward_format_mean": 1, "loss": None})
        {'train/reward': 0.5, 'train/rewards/format/mean': 1.0}
        >>> names_for_trackers({"groups_informative_share": 0.75, "groups": 8})
        {'train/frac_reward_zero_std': 0.25, 'grouprl/groups_informative_share': 0.75, 'grouprl/groups': 8.0}
        >>> names_for_trackers({"step": 3, "accuracy": 0.5, "reward_mean": 0.25}, part="eval")
        {'eval/accuracy': 0.5, 'eval/reward': 0.25}
    """
    named: dict[str, float] = {}
    values = {name: _number(value) for name, value in metrics.items() if name != "step"}
    for name, value in values.items():
        if value is None:
            continue
        component = _COMPONENT.fullmatch(name)
        if name in TRL_NAMES:
            named[f"{part}/{TRL_NAMES[name]}"] = value
        elif component:
            named[f"{part}/rewards/{component[1]}/mean"] = value
        elif name == "groups_informative_share":
            named[f"{part}/frac_reward_zero_std"] = 1.0 - value
            named[f"grouprl/{name}"] = value
        else:
            named[f"{'grouprl' if part == 'train' else part}/{name}"] = value
    low, high = values.get("clip_low_share"), values.get("clip_high_share")
    if low is not None and high is not None:
        named[f"{part}/clip_ratio/region_mean"] = low + high
    return named


def check_trackers(config: Config) -> None:
    """Nothing, where each tracker that the configuration asks for is installed.

    Raises:
        MissingDependency: One is not; the message says which pip install brings it.
    """
    for name in config.tracking:
        if find_spec(name) is None:
            raise MissingDependency(f"tracking: {name} is not installed; pip install {name}")


@contextmanager
def tracked(config: Config, folder: Path, listener: Listener) -> Iterator[Listener]:
    """A listener that hears all that `listener` hears, and passes metrics on to the configuration's trackers.

    The trackers start with the run, and are closed at the end of the block, however it ends.

    Raises:
        ConfigError: From the listener, at the run's start: a tracker cannot start.
    """
    if not config.tracking:
        yield listener
        return
    tracking = Tracking(config.tracking, folder, listener)
    try:
        yield tracking
    finally:
        tracking.close()


class Tracking(Listener):
    """Passes every event on to `listener`, and metrics to trackers.

    Args:
        trackers: Their names.
        folder: The run's folder; what trackers write themselves goes to its folder `tracking`.
        listener: Hears everything, first.
    """

    def __init__(self, trackers: Sequence[str], folder: Path, listener: Listener) -> None:
        self.names = tuple(dict.fromkeys(trackers))
        self.folder = folder
        self.listener = listener
        self.trackers: dict[str, Tracker] = {}

    def loading(self, model: str) -> None:
        self.listener.loading(model)

    def started(self, config: Config, path: Path, *, machine: str, step: int, notes: Sequence[str]) -> None:
        for name in self.names:
            try:
                self.trackers[name] = OPENERS[name](config, self.folder, step)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(
                    f"tracking: {name} cannot start ({reason}); mend that, or leave it out of tracking"
                ) from error
        self.listener.started(config, path, machine=machine, step=step, notes=notes)

    def stage(self, name: str, done: int, total: int) -> None:
        self.listener.stage(name, done, total)

    def stepped(self, metrics: Mapping[str, Any], rows: Mapping[str, Sequence[Any]]) -> None:
        self.listener.stepped(metrics, rows)
        self._log(metrics, "train")

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        self.listener.evaluated(evaluation)
        self._log(evaluation, "eval")

    def warned(self, message: str) -> None:
        self.listener.warned(message)

    def checkpointed(self, step: int, path: Path) -> None:
        self.listener.checkpointed(step, path)

    def close(self) -> None:
        """Close the trackers that are open."""
        for name in list(self.trackers):
            self._attempt(name, lambda tracker: tracker.close())
        self.trackers.clear()

    def _log(self, record: Mapping[str, Any], part: str) -> None:
        values = names_for_trackers(record, part=part)
        for name in list(self.trackers):
            self._attempt(name, lambda tracker: tracker.log(values, int(record["step"])))

    def _attempt(self, name: str, act: Callable[[Tracker], None]) -> None:
        try:
            act(self.trackers[name])
        except Exception as error:
            del self.trackers[name]
            reason = " ".join(str(error).split()) or type(error).__name__
            self.listener.warned(
                f"tracking: {name} failed ({reason}) and is left out from here on; metrics.jsonl has everything"
            )


class TensorBoard:
    """Event files in the run's folder, `tracking/tensorboard`: tensorboard --logdir runs shows all runs."""

    def __init__(self, config: Config, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote beyond the checkpoint that this one goes on from is not shown.
        self.writer: Any = SummaryWriter(
            log_dir=str(folder / "tracking" / "tensorboard"), purge_step=step + 1 if step else None
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of the project that WANDB_PROJECT names (grouprl by default); WANDB_MODE=offline keeps it here."""

    def __init__(self, config: Config, folder: Path, step: int) -> None:
        import wandb

        place = folder / "tracking"
        place.mkdir(parents=True, exist_ok=True)
        known = place / "wandb-id"  # so that a run that goes on stays one run there
        if not known.exists():
            known.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "grouprl"),
            name=folder.resolve().name,
            id=known.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(place),
            config=dataclasses.asdict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        # Its own counter only goes up; after going back to a checkpoint ours does not.
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({"step": step, **values})

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of the project that TRACKIO_PROJECT names (grouprl by default), on this machine: `trackio show`."""

    def __init__(self, config: Config, folder: Path, step: int) -> None:
        import trackio

        self.trackio: Any = trackio
        with redirect_stdout(StringIO()):  # the terminal belongs to the run's display
            trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", "grouprl"),
                name=folder.resolve().name,
                config=dataclasses.asdict(config),
                resume="allow",
                embed=False,
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(StringIO()):
            self.trackio.finish()


OPENERS: dict[str, Callable[[Config, Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}
"""Name in the configuration → what starts it."""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
