"""What a run tells whoever is watching. The command line's display is one listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grouprl.training.config import Config


class Listener:
    """Override what you want to hear. One that raises stops the run, as an error between two steps does."""

    def loading(self, model: str) -> None:
        """The task is ready and the model is about to be loaded."""

    def started(self, config: Config, path: Path, *, machine: str, step: int, notes: Sequence[str]) -> None:
        """The model is loaded and the run begins, or goes on after `step`."""

    def stage(self, name: str, done: int, total: int) -> None:
        """Progress inside a step: "rollout", "reward", "train", "evaluation", "checkpoint". With max_staleness the
        first two are of the next step, and come from another thread, while this one tells of its own."""

    def stepped(self, metrics: Mapping[str, Any], rows: Mapping[str, Sequence[Any]]) -> None:
        """A step is done and recorded; `rows` are its rollouts, a column each."""

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """Held-out accuracy was measured."""

    def warned(self, message: str) -> None:
        """Something in the run wants attention."""

    def checkpointed(self, step: int, path: Path) -> None:
        """A checkpoint is on disk."""
