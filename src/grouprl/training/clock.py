"""Seconds by stage of a step."""

from __future__ import annotations

import time


class Clock:
    """Started where it is made; a stage that comes twice adds up."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """The time since the last lap was this stage's."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + max(now - self.last, 1e-9)
        self.last = now

    def total(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.start
