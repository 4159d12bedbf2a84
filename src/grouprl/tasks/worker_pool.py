"""Processes that do what must not be done here, each request under a limit of wall-clock time and of memory.

A request that runs over its time, or that brings its process down, is answered with that; its process is killed,
another takes its place, and the next request goes on. Signals cannot promise this: a library that computes in C does
not look at them, and they reach the main thread alone.

Processes are started by a command, neither forked nor by `multiprocessing` (which would import the user's script
again), at the first request, and know no environment variables but those that Python needs. The order of sets is the
same in all of them, so what they make is the same in every run. They end with `close`, with the pool, with the
interpreter, and by themselves where this process is killed. What they send is JSON, and never unpickled.
`worker_process` is their side.

For POSIX systems: it waits for pipes with `selectors`.
"""

from __future__ import annotations

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

START_LIMIT_S = 120.0
"""For a process's imports, on a machine that is busy with other things."""
STARTS = 3
"""Processes in a row that may end before they are ready."""
MAX_PROCESSES = 4
MAX_REPLY_BYTES = 1 << 20
PROCESS = Path(__file__).with_name("worker_process.py")
KEPT_VARIABLES = (
    "DYLD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR",
    "TZ", "VIRTUAL_ENV",
)  # fmt: skip
"""No others reach a process that works on what a model wrote: tokens and keys stay here."""
SET_VARIABLES = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
}


@dataclass(frozen=True)
class Failure:
    """What there is in place of an answer.

    Args:
        kind: "timed_out", "crashed" (the process ended: out of memory, say), or "raised".
        reason: On one line.
    """

    kind: Literal["timed_out", "crashed", "raised"]
    reason: str


class WorkerStartError(Exception):
    """No process comes up, so that no request can be answered. The message is one line."""


class WorkerPool:
    """Processes of one script, started where there is work for them.

    Args:
        script: A Python file with a function `load()`, which returns the function of a request (`math_worker` is one).
            It is run by this interpreter without grouprl having to be importable there.
        time_limit_s: Seconds that a request may take, unless told with it. Starting a process does not count.
        memory_limit_bytes: Address space of a process.
        processes: Most at a time; None: one for each usable core, at most four.
        max_reply_bytes: Longest reply; a process that sends more is ended.
    """

    def __init__(
        self,
        script: Path,
        *,
        time_limit_s: float,
        memory_limit_bytes: int,
        processes: int | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self.script = script
        self.time_limit_s, self.memory_limit_bytes = time_limit_s, memory_limit_bytes
        self.processes = processes or min(MAX_PROCESSES, _usable_cores())
        self.max_reply_bytes = max_reply_bytes
        self._inherited: list[_Worker] = []
        self._begin()

    def ask(self, request: Any, *, time_limit_s: float | None = None) -> Any:
        """The answer to one request, or a `Failure`. See `ask_all`."""
        return self.ask_all([request], time_limit_s=time_limit_s)[0]

    def ask_all(
        self, requests: Sequence[Any], *, time_limit_s: float | None = None, requests_a_process: int = 1
    ) -> list[Any]:
        """Answer each request, several at a time.

        Args:
            requests: What JSON can hold.
            time_limit_s: Of each; None: the pool's.
            requests_a_process: Another process is started only where there is so much more to do.

        Returns:
            One answer or `Failure` each, in order.

        Raises:
            WorkerStartError: The script says that it cannot work, or its process keeps ending before it is ready.
        """
        if not requests:
            return []
        if os.getpid() != self._owner:  # forked: processes and lock are the parent's
            self._inherited = self._workers
            self._begin()
        limit_s = self.time_limit_s if time_limit_s is None else time_limit_s
        messages = [json.dumps({"time_limit_s": limit_s, "request": r}).encode() for r in requests]
        with self._lock:
            try:
                return self._run(messages, limit_s, requests_a_process)
            except BaseException:
                self._close()  # their replies would be taken for those of later requests
                raise

    def close(self) -> None:
        """End the processes. The next request starts others."""
        if os.getpid() == self._owner:
            with self._lock:
                self._close()

    def _begin(self) -> None:
        """Without processes, in this process."""
        self._workers: list[_Worker] = []
        self._owner, self._lock = os.getpid(), threading.Lock()
        weakref.finalize(self, _end, self._workers, self._owner)

    def _close(self) -> None:
        _end(self._workers, self._owner)

    def _run(self, messages: Sequence[bytes], limit_s: float, requests_a_process: int) -> list[Any]:
        answers: list[Any] = [None] * len(messages)
        waiting = deque(range(len(messages)))
        unanswered = len(messages)
        failed_starts = 0
        while unanswered:
            self._fill(-(-unanswered // requests_a_process))
            for worker in self._workers:
                if worker.idle and waiting:
                    index = waiting.popleft()
                    worker.send(index, messages[index], limit_s)
            for worker in self._ready():
                was_ready, index_of = worker.ready, worker.request
                answer = worker.receive()
                if answer is NOTHING_YET:
                    continue
                if worker.ended:
                    worker.kill()
                    self._workers.remove(worker)
                if index_of is not None:
                    answers[index_of] = answer
                    unanswered -= 1
                failed_starts = 0 if was_ready else failed_starts + 1
                if failed_starts == STARTS:
                    raise WorkerStartError(answer.reason)
        return answers

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


NOTHING_YET = object()


class _Worker:
    """One process, and the request that it is at."""

    def __init__(self, pool: WorkerPool) -> None:
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self.process = subprocess.Popen(  # noqa: S603  (a script of ours)
            [sys.executable, "-P", "-B", "-W", "ignore", str(PROCESS), str(pool.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | SET_VARIABLES,
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal is for this process to deal with
        )
        assert self.process.stdin is not None  # noqa: S101  (both are pipes)
        assert self.process.stdout is not None  # noqa: S101
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.request: int | None = None
        self.ready = self.ended = False
        self.deadline = time.monotonic() + START_LIMIT_S
        self._received = bytearray()
        self._max_reply_bytes = pool.max_reply_bytes
        path = [entry for entry in sys.path if entry]
        self._write(json.dumps({"path": path, "memory_limit_bytes": pool.memory_limit_bytes}).encode())

    @property
    def idle(self) -> bool:
        return self.ready and self.request is None

    def send(self, index: int, message: bytes, time_limit_s: float) -> None:
        self.request = index
        self.deadline = time.monotonic() + time_limit_s
        self._write(message)

    def receive(self) -> Any:
        """Its answer, or a `Failure`; NOTHING_YET where there is no whole reply, or it has become ready.

        Raises:
            WorkerStartError: The script cannot work.
        """
        try:
            chunk = os.read(self.output, 1 << 16)
        except BlockingIOError:
            if time.monotonic() < self.deadline:
                return NOTHING_YET
            return self._failure("timed_out", "no answer within the time limit")
        self._received += chunk
        if not chunk:
            return self._failure("crashed", f"the process ended (exit status {self.process.wait()})")
        if len(self._received) > self._max_reply_bytes:
            return self._failure("crashed", f"its reply is longer than {self._max_reply_bytes:,} bytes")
        if not self._received.endswith(b"\n"):
            return NOTHING_YET
        try:
            reply = json.loads(self._received)
        except ValueError:
            return self._failure("crashed", "its reply is not JSON")
        self._received.clear()
        if not self.ready:
            if "ready" not in reply:
                raise WorkerStartError(reply["error"])
            self.ready = True
            return NOTHING_YET
        self.request = None
        return reply["value"] if "value" in reply else Failure("raised", reply["error"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _failure(self, kind: Literal["timed_out", "crashed"], reason: str) -> Failure:
        self.ended = True
        return Failure(kind, reason)

    def _write(self, message: bytes) -> None:
        data = message + b"\n"
        try:
            while data:
                data = data[os.write(self.input, data) :]
        except BrokenPipeError:
            pass  # it has ended, which reading will tell


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(workers: list[_Worker], owner: int) -> None:
    """End processes, if they are this one's: a forked child has only their names."""
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
        workers.clear()
