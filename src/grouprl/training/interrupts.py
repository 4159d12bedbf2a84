"""Ctrl-C, SIGTERM, a closed terminal: stop at once where nothing is lost by it, else after the step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What asks a run to stop; a closed terminal sends SIGHUP, which Windows does not have."""


class Interrupted(KeyboardInterrupt):
    """The user, or the machine, asked the run to stop."""


class Interrupts:
    """While active, `SIGNALS` raise `Interrupted`, except inside `deferred()`, which they wait out.

    One that is ignored (SIGHUP, under nohup) stays ignored.
    A second signal during `deferred()` does not wait: what is on disk stays valid, since everything there
    is written whole or not at all. Outside the main thread signals are left alone.

    Args:
        in_windows: Of one rank among several, where others may wait for this one: signals wait, however many come,
            but in a `window()`.
    """

    def __init__(self, *, in_windows: bool = False) -> None:
        self._in_windows = in_windows
        self._deferring = int(in_windows)
        self._pending = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let what is inside finish before an interrupt is raised."""
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        if self._pending and not self._deferring:
            self._pending = False
            raise Interrupted

    @contextmanager
    def window(self) -> Iterator[None]:
        """Let an interrupt through at once, also one that has waited: nobody waits for what is inside. It does nothing
        during `deferred()`, outside the main thread, and where signals need no window."""
        if not self._in_windows or threading.current_thread() is not threading.main_thread():
            yield
            return
        try:
            self._deferring -= 1
            if self._pending and not self._deferring:
                self._pending = False
                raise Interrupted
            yield
        finally:
            self._deferring += 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._deferring and (self._in_windows or not self._pending):
            self._pending = True
            return
        self._pending = False
        raise Interrupted
