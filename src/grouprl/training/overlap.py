"""Drawing a step's batch while the step before it trains: one thread beside the main one, and what it brings.

    step k:   batch k is there  →  advantages  →  hand the sampler the weights, start to draw batch k + 1
              →  update, records          (meanwhile batch k + 1 is sampled and scored)

So the weights that draw batch k + 1 are those from before the update of step k: one step old when it is trained on.
Which weights drew what depends on no clock, and neither do the results.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Generic, TypeVar

import torch

from grouprl.training.events import Listener
from grouprl.training.interrupts import Interrupts
from grouprl.training.sampled import Sampled

T = TypeVar("T")

POLL_S = 0.2
"""How often a wait looks up, where a signal does not end it by itself."""

PATIENCE_S = 2.0
"""Seconds of waiting for the end of a thread before that is said."""


class GivenUp(BaseException):
    """Raised inside work that was given up. No `except Exception` of a reward's takes it for its own."""


class Work(threading.Thread, Generic[T]):
    """A function that runs in a thread of its own, from now on.

    A daemon: where it was given up and does not end (a reward that waits for ever), the process still can.

    Args:
        function: Called without arguments.
        threads: Of torch, for what it computes on a CPU; None leaves their number.
        stream: Of CUDA, on which it computes; what was queued on the current one comes first.
    """

    def __init__(
        self,
        function: Callable[[], T],
        *,
        threads: int | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        super().__init__(name="grouprl-rollout", daemon=True)
        self._function, self._threads, self._stream = function, threads, stream
        self._over, self._given_up = threading.Event(), threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        self.start()

    def run(self) -> None:
        try:
            if self._threads is not None:
                torch.set_num_threads(self._threads)  # of this thread alone
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                self._result = self._function()
        except BaseException as error:
            self._error = error  # a reward's SystemExit, too: raised where the result is asked for
        finally:
            self._over.set()

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Until it is over; whether it is. A signal's handler may raise out of it."""
        end = time.monotonic() + timeout_s
        while not self._over.wait(min(POLL_S, max(end - time.monotonic(), 0.0))):
            if time.monotonic() >= end:
                return False
        self.join()
        return True

    def result(self) -> T:
        """What it returned; waits for it.

        Raises:
            BaseException: What it raised.
        """
        self.wait()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def give_up(self) -> None:
        """Let it end at the next place where it can (`end_if_given_up`)."""
        self._given_up.set()

    @staticmethod
    def end_if_given_up() -> None:
        """Raise where the calling thread is work that was given up.

        Raises:
            GivenUp: It is.
        """
        thread = threading.current_thread()
        if isinstance(thread, Work) and thread._given_up.is_set():
            raise GivenUp


class Endable(Listener):
    """Passes progress on, and ends work that was given up where it reports some.

    Args:
        listener: Told of the progress, in the thread that makes it.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def stage(self, name: str, done: int, total: int) -> None:
        Work.end_if_given_up()
        self.listener.stage(name, done, total)


class Ahead:
    """The batch that is being drawn, and the one that was drawn last.

    A batch that has arrived stays until the next one has: what a checkpoint of the step before it is to hold.

    Args:
        arrived: Called when a batch has arrived: what its drawing learned may be kept.
        interrupts: Those of the run: an arrival is all or nothing.
        device: Where is drawn.
    """

    held: Sampled | None = None
    """The batch that arrived last; set it to one from a checkpoint."""

    def __init__(self, *, arrived: Callable[[], None], interrupts: Interrupts, device: torch.device) -> None:
        self._arrived, self._interrupts = arrived, interrupts
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._work: Work[Sampled] | None = None
        self._left: Work[Sampled] | None = None

    def start(self, draw: Callable[[], Sampled], *, threads: int | None) -> None:
        """Begin to draw a batch; the one before has arrived."""
        with self._interrupts.deferred():
            self._work = Work(draw, threads=threads, stream=self._stream)

    def is_drawing(self, step: int) -> bool:
        """Whether a step's batch is on its way, as far as is known; false where it has arrived."""
        return self._work is not None and (self.held is None or self.held.step != step)

    def batch(self, step: int) -> Sampled | None:
        """The batch of a step, waited for where it is being drawn; None where no drawing of it was begun, or what was
        begun has failed or was given up.

        Raises:
            BaseException: What its drawing raised, once.
        """
        if self._work is not None and self.is_drawing(step):
            self._work.wait()
            with self._interrupts.deferred():
                work, self._work = self._work, None
                self.held = work.result()
                self._arrived()
        return self.held if self.held is not None and self.held.step == step else None

    def give_up(self) -> None:
        """Let what is being drawn end soon, and forget it. Its thread may go on for a while; see `close`."""
        if self._work is not None:
            self._work.give_up()
            self._left, self._work = self._work, None

    def close(self, said: Callable[[str], None]) -> None:
        """Give up what is being drawn, and wait until its thread has ended: after the next token, or after a reward
        function. `said` is told where that takes long. For what was given up before, long is not waited."""
        asked_to_leave = self._left is not None
        self.give_up()
        if self._left is not None and not self._left.wait(PATIENCE_S) and not asked_to_leave:
            said(
                "a reward function is still running beside this; waiting for its end, interrupt again not to wait"
            )
            self._left.wait()
        torch.set_num_threads(torch.get_num_threads())  # what threads of others begin with, too


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Within it torch computes with this many threads, in the calling thread alone; None changes nothing."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_of_threads(device: torch.device, sampler_threads: int) -> tuple[int, int] | tuple[None, None]:
    """Threads of the sampler and of training while both compute on a CPU: together those of torch, one each at least.

    Args:
        device: On another one than a CPU nothing is divided.
        sampler_threads: The sampler's; 0 for half of them.

    >>> torch.set_num_threads(1)
    >>> share_of_threads(torch.device("cpu"), 0), share_of_threads(torch.device("cuda"), 0)
    ((1, 1), (None, None))
    """
    if device.type != "cpu":
        return None, None
    threads = torch.get_num_threads()
    sampler = min(sampler_threads or threads // 2, threads - 1)
    return max(sampler, 1), max(threads - max(sampler, 1), 1)
