"""A run folder of grouprl's, written while another trainer trains: `grouprl report` and `grouprl advantages` read it.

config.toml, metrics.jsonl (one line a step) and rollouts/step_00001.parquet, as docs/records.md describes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from grouprl.errors import RunError
from grouprl.records import RunFolder, RunLock, append_jsonl, atomic_write, rollout_rows, write_rollouts
from grouprl.types import Group

LOGGED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "entropy": "entropy",
    "kl": "kl_ref",
    "clip_ratio/low_mean": "clip_low_share",
    "clip_ratio/high_mean": "clip_high_share",
}
"""Names of the trainer's log → of metrics.jsonl."""


class Recorder(TrainerCallback):
    """Writes the folder, from the main process alone.

    Args:
        folder: It must not hold a run, unless training resumes; then what is beyond the checkpoint is cut off.
        config: Scalars, for config.toml.
        writes: Whether this is the process that writes.
    """

    def __init__(self, folder: str | Path, config: Mapping[str, Any], *, writes: bool) -> None:
        self.run, self._config, self._writes = RunFolder(folder), dict(config), writes
        self._lock: RunLock | None = None
        self._step, self._rows, self._line = 0, dict[str, list[Any]](), dict[str, Any]()
        self._started = time.monotonic()

    def sampled(self, step: int, groups: Sequence[Group], metrics: Mapping[str, Any], **columns: Any) -> None:
        """A batch was sampled in a step, which may have several; the rows are on disk when this returns.

        Args:
            step: From 1.
            groups: With their completions.
            metrics: From `batch_metrics`.
            **columns: As for `rollout_rows`.
        """
        new = rollout_rows(step, groups, **columns)
        if step == self._step:
            new = {name: [*self._rows.get(name, []), *values] for name, values in new.items()}
        self._step, self._rows = step, new
        self._line = {**self._line, **metrics} if self._line.get("step") == step else dict(metrics)
        self._line["step"] = step
        write_rollouts(self.run.rollouts_path(step), new)

    def groups_in(self, step: int) -> int:
        """How many groups of a step are recorded already."""
        return len(set(self._rows.get("group_id", ()))) if step == self._step else 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate.utils import broadcast_object_list

        said = [self._open(int(state.global_step), int(state.max_steps)) if self._writes else None]
        broadcast_object_list(said)
        if said[0]:
            raise RunError(said[0])

    def _open(self, step: int, steps: int) -> str | None:
        """Make the folder ready; what is wrong with it, for all ranks to know."""
        try:
            if not (step and self.run.config_path.is_file()):
                RunFolder.create(self.run.path)
            self._lock = self.run.lock()
            if step:
                self.run.cut_after(step)
        except RunError as error:
            return str(error)
        lines = [f"{name} = {json.dumps(value)}" for name, value in (self._config | {"steps": steps}).items()]
        atomic_write(self.run.config_path, ("\n".join(lines) + "\n").encode())
        return None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._flush()
        self._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._line.get("step") != state.global_step:
            self._line = {"step": int(state.global_step)}
        self._line["seconds_step"] = time.monotonic() - self._started

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._line.get("step") == state.global_step:
            self._line |= {ours: logs[name] for name, ours in LOGGED.items() if name in (logs or {})}

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._flush()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _flush(self) -> None:
        """Write the line of the step that is over."""
        if self._writes and "seconds_step" in self._line:
            append_jsonl(self.run.metrics_path, {"step": self._line["step"], **self._line})
            self._line = {}
