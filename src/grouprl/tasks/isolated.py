"""Work on text that nobody may trust, in processes of their own: each answer within a time limit, or none.

A worker is a Python script that reads one JSON request a line and answers each with one JSON line. It is started
without this package (`python -P script`), so it costs no torch, and what it does cannot hold up, crash or change
the process that asks: one that takes too long or dies is replaced, and its siblings' answers are kept. The order of
sets is the same in every worker (PYTHONHASHSEED=0), so what it makes is the same in every run.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

START_TIMEOUT_S = 120.0
"""For a worker's imports, on a machine that is busy with other things."""

REQUESTS_A_WORKER = 32
"""Another worker is started only where there is so much more to do."""


KEPT_VARIABLES = (
    "DYLD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "SYSTEMROOT",
    "TEMP", "TMPDIR", "TZ", "VIRTUAL_ENV",
)  # fmt: skip
"""No others reach a process that works on what a model wrote: tokens and keys stay here."""


@dataclass(frozen=True)
class Failure:
    """What there is in place of an answer.

    Args:
        kind: "timeout", "died" (a crash, or no memory), or "raised": the script answered with an error.
        reason: On one line.
    """

    kind: Literal["timeout", "died", "raised"]
    reason: str


class WorkerStartError(Exception):
    """A worker did not come up, so that no request can be answered. The message is one line."""


class Worker:
    """One process that answers one request after the other.

    The script's first line is `{"ready": …}` or `{"error": reason}`. Then each request gets `{"value": …}` or
    `{"error": reason}`.

    Args:
        script: The file. It may import nothing of grouprl.
        limit_s: Passed to the script as its argument: how long after a request it should end itself, for the case
            that nobody is left to end it.

    Raises:
        WorkerStartError: it said that it cannot work, ended, or was not ready in two minutes.
    """

    def __init__(self, script: Path, *, limit_s: float) -> None:
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
        }
        self._process = subprocess.Popen(  # noqa: S603  (our own script)
            [sys.executable, "-P", "-W", "ignore", str(script), str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the process that asks
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            reply = self._receive(time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        if isinstance(reply, Failure) or "ready" not in reply:
            self.close()
            raise WorkerStartError(reply.reason if isinstance(reply, Failure) else str(reply.get("error")))
        self.greeting = reply["ready"]

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: Any, *, timeout_s: float) -> Any:
        """The script's answer, or a `Failure`. After "timeout" and "died" the process is gone.

        Args:
            request: Anything that JSON can write.
            timeout_s: Seconds of the clock.
        """
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.close()
            return Failure("died", "the process had ended")
        try:
            reply = self._receive(time.monotonic() + timeout_s)
        except BaseException:  # Ctrl-C: an answer that comes later would be taken for the next one's
            self.close()
            raise
        if isinstance(reply, Failure):
            self.close()
            return reply
        return reply["value"] if "value" in reply else Failure("raised", str(reply.get("error")))

    def close(self) -> None:
        """End the process. What it was doing is lost."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what could not be written any more
                if pipe is not None:
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except (OSError, ValueError):  # closed meanwhile
            pass
        self._lines.put(b"")

    def _receive(self, deadline: float) -> dict[str, Any] | Failure:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return Failure("timeout", "no answer within the time limit")
        if not line.endswith(b"\n"):
            return Failure("died", f"the process ended (exit status {self._process.wait()})")
        reply: dict[str, Any] = json.loads(line)
        return reply


class WorkerPool:
    """Workers of one script, started where there is work for them and ended with the program.

    Args:
        script: See `Worker`.
        timeout_s: Seconds for one request, unless told otherwise with it.
        size: Most workers; None: one for each usable core, at most four.
    """

    def __init__(self, script: Path, *, timeout_s: float, size: int | None = None) -> None:
        self.script, self.timeout_s = script, timeout_s
        self.size = size or min(4, _usable_cores())
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(self.size):
            self._idle.put(None)
        atexit.register(self.close)

    def ask(self, request: Any, *, timeout_s: float | None = None) -> Any:
        """The answer to one request, or a `Failure`.

        Raises:
            WorkerStartError: no worker comes up.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = Worker(self.script, limit_s=4 * max(limit, self.timeout_s))
            return worker.ask(request, timeout_s=limit)
        finally:
            self._idle.put(worker if worker is not None and worker.alive else None)

    def ask_all(
        self,
        requests: Sequence[Any],
        *,
        timeout_s: float | None = None,
        requests_a_worker: int = REQUESTS_A_WORKER,
    ) -> list[Any]:
        """One answer or `Failure` for each request, in order; as many workers as have so many requests each.

        Raises:
            WorkerStartError: no worker comes up.
        """
        hands = min(self.size, -(-len(requests) // requests_a_worker))
        if hands <= 1:
            return [self.ask(request, timeout_s=timeout_s) for request in requests]
        with ThreadPoolExecutor(hands) as threads:
            futures = [threads.submit(self.ask, request, timeout_s=timeout_s) for request in requests]
            try:
                return [future.result() for future in futures]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def close(self) -> None:
        """End the workers that are idle. They come again where they are asked."""
        atexit.unregister(self.close)
        workers = []
        while not self._idle.empty():
            workers.append(self._idle.get_nowait())
        for worker in workers:
            if worker is not None:
                worker.close()
            self._idle.put(None)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
