"""Processes that do what must not be done here, each check under a limit of wall-clock time and of memory.

A check that runs over its time, or that brings its process down, is answered with that; its process is killed,
another takes its place, and the next check goes on. Signals cannot promise this: a library that computes in C does not
look at them, and they reach the main thread alone.

Processes are started by a command, neither forked nor by `multiprocessing` (which would import the user's script
again), at the first check, and know no environment variables but those that Python needs. They end with `close`,
with the interpreter, and by themselves where this process is killed. What they send is JSON, and never unpickled.

For POSIX systems: it waits for pipes with `selectors`.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grouprl.errors import MissingDependency, RewardError

START_LIMIT_S = 120.0
MAX_REPLY_BYTES = 1 << 20
KEPT_VARIABLES = (
    "DYLD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR",
    "TZ", "VIRTUAL_ENV",
)  # fmt: skip
"""No others reach a process that computes what a model wrote: tokens and keys stay here."""


@dataclass(frozen=True)
class Answer:
    """What became of a check.

    Args:
        status: "done", "timed_out", or "crashed" (the process ended: out of memory, say).
        value: The reply, of "done".
    """

    status: Literal["done", "timed_out", "crashed"]
    value: Any = None


class WorkerPool:
    """Processes of one script, which answers a line of JSON with a line of JSON (`math_worker` is one).

    Args:
        script: Its path. It is run by this interpreter without grouprl having to be importable there.
        extra: The extra of grouprl that brings what the script imports.
        processes: Most processes at a time.
        time_limit_s: Seconds that a check may take. Starting a process does not count.
        memory_limit_bytes: Address space of a process.
    """

    def __init__(
        self, script: Path, *, extra: str, processes: int, time_limit_s: float, memory_limit_bytes: int
    ) -> None:
        self.script, self.extra = script, extra
        self.processes, self.time_limit_s = processes, time_limit_s
        self.memory_limit_bytes = memory_limit_bytes
        self._workers: list[_Worker] = []
        self._inherited: list[_Worker] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        _POOLS.add(self)

    def run(self, requests: Sequence[Any]) -> list[Answer]:
        """Answer each request, several at a time.

        Args:
            requests: What JSON can hold.

        Returns:
            One answer each, in order.

        Raises:
            MissingDependency: The script cannot import what it needs.
            RewardError: Its process does not start, or keeps ending before it is ready.
        """
        if not requests:
            return []
        if (
            os.getpid() != self._owner
        ):  # forked: the processes are the parent's, and so is whoever holds the lock
            self._inherited, self._workers = self._workers, []
            self._owner, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            try:
                return self._run(requests)
            except BaseException:
                self._close()  # their replies would be taken for those of later requests
                raise

    def close(self) -> None:
        """End the processes. The next `run` starts others."""
        if os.getpid() == self._owner:
            with self._lock:
                self._close()

    def _close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _run(self, requests: Sequence[Any]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(requests)
        waiting = deque(range(len(requests)))
        unanswered = len(requests)
        failed_starts = 0
        while unanswered:
            self._fill(unanswered)
            for worker in self._workers:
                if worker.idle and waiting:
                    worker.send(waiting.popleft(), requests, self.time_limit_s)
            for worker in self._ready():
                was_ready, request = worker.ready, worker.request
                ended = worker.receive(self)
                if ended is None:
                    continue
                failed_starts = 0 if was_ready else failed_starts + 1
                if failed_starts > 2:
                    raise RewardError(
                        f"{self.script.name}: its process ended three times before it was ready, expected it to start; "
                        f"run {sys.executable} {self.script} to see why"
                    )
                if request is not None:
                    answers[request] = ended
                    unanswered -= 1
                if ended.status != "done":
                    worker.kill()
                    self._workers.remove(worker)
        return [answer for answer in answers if answer is not None]

    def _fill(self, wanted: int) -> None:
        """Start processes; one that takes another's place starts while the others go on."""
        while len(self._workers) < min(self.processes, wanted):
            self._workers.append(_Worker(self))

    def _ready(self) -> list[_Worker]:
        """Those that have sent something, or run out of time."""
        busy = [worker for worker in self._workers if not worker.idle]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            readable = {key.data for key, _ in selector.select(patience)}
        now = time.monotonic()
        return [worker for worker in busy if worker in readable or now >= worker.deadline]


class _Worker:
    """One process, and the request that it is at."""

    def __init__(self, pool: WorkerPool) -> None:
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self.process = subprocess.Popen(  # noqa: S603  (a script of ours)
            [sys.executable, "-P", "-B", str(pool.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal is for this process to deal with
        )
        assert self.process.stdin is not None  # noqa: S101  (both are pipes)
        assert self.process.stdout is not None  # noqa: S101
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.request: int | None = None
        self.ready = False
        self.deadline = time.monotonic() + START_LIMIT_S
        self._received = b""
        path = [entry for entry in sys.path if entry]
        self._write(
            {"path": path, "time_limit_s": pool.time_limit_s, "memory_limit_bytes": pool.memory_limit_bytes}
        )

    @property
    def idle(self) -> bool:
        return self.ready and self.request is None

    def send(self, index: int, requests: Sequence[Any], time_limit_s: float) -> None:
        self.request = index
        self.deadline = time.monotonic() + time_limit_s
        self._write(requests[index])

    def receive(self, pool: WorkerPool) -> Answer | None:
        """What became of its request; None where there is no whole reply yet, or it has become ready."""
        try:
            chunk = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return Answer("timed_out") if time.monotonic() >= self.deadline else None
        self._received += chunk
        if not chunk or len(self._received) > MAX_REPLY_BYTES:
            return Answer("crashed")
        if not self._received.endswith(b"\n"):
            return None
        line, self._received = self._received, b""
        try:
            reply = json.loads(line)
        except ValueError:
            return Answer("crashed")
        if self.ready:
            self.request = None
            return Answer("done", reply)
        if reply[0] != "ready":
            raise MissingDependency(f"{pool.script.stem}: {reply[1]}; pip install 'grouprl[{pool.extra}]'")
        self.ready = True
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self.input, data) :]
        except BrokenPipeError:
            pass  # it has ended, which reading will tell


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()
