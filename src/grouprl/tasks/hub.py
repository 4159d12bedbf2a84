"""Prompts from the Hugging Face hub, or a folder that `datasets` reads: owner/name, owner/name:config, …@split."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.errors import MissingDependency, TaskError

_SPEC = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?(?:@(?P<split>[\w.-]+))?")
_TAIL = re.compile(r"(?P<path>.+?)(?::(?P<config>[\w.-]+))?(?:@(?P<split>[\w.-]+))?")


@dataclass(frozen=True)
class HubDataset:
    """One split of a data set.

    Args:
        path: "owner/name", or a folder.
        config: The data set's configuration ("main" of openai/gsm8k), None for its only one.
        split: "train" unless told.
    """

    path: str
    config: str | None = None
    split: str = "train"

    def __str__(self) -> str:
        return f"{self.path}{f':{self.config}' if self.config else ''}@{self.split}"

    @property
    def stem(self) -> str:
        """What prompt ids and the task's name begin with."""
        return os.path.basename(os.path.normpath(self.path))

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows, from 1.

        Raises:
            MissingDependency: `datasets` is not installed.
            TaskError: It finds no such data set, configuration or split, or cannot reach the hub.
        """
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise MissingDependency(
                f"{self}: reading a data set of the hub needs datasets, which is not installed; pip install "
                "datasets, or give a file"
            ) from error
        try:
            rows = load_dataset(self.path, self.config, split=self.split)
        except Exception as error:  # of whatever kind: the hub's, the network's, the reader's
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TaskError(
                f"{self}: cannot be loaded ({type(error).__name__}: {reason[:300]}), expected owner/name, with :config "
                "and @split where it has several; or give a file"
            ) from error
        yield from enumerate((dict(row) for row in rows), 1)


def hub_dataset(name: str) -> HubDataset | None:
    """The data set that a text names; None where it has another form.

    >>> hub_dataset("openai/gsm8k:main@test")
    HubDataset(path='openai/gsm8k', config='main', split='test')
    >>> hub_dataset("prompts.jsonl") is None
    True
    """
    tail = _TAIL.fullmatch(name)
    match = tail if tail and Path(tail["path"]).is_dir() else _SPEC.fullmatch(name)
    return HubDataset(match["path"], match["config"], match["split"] or "train") if match else None
