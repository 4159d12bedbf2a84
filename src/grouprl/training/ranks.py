"""Several processes as one run: who is who, how they agree, and how one's error ends all. `launch` makes them meet.

Every rank runs the whole loop. What is dealt out (sampling, scoring, forward and backward) is put together again before
anything is decided, so that all ranks decide alike, on the whole batch. What leaves a trace (files, display, trackers)
is done by rank 0.

A stretch of work of one's own stands inside `each`, `own` or `from_first`, after which the ranks tell one another how
it went: an error or a signal on one of them is raised on all, at the same place, and none is left waiting. A rank that
dies without a word is noticed by its broken connections (`LostRank`). On one process all of this is a plain call.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grouprl import errors
from grouprl.errors import ConfigError, GrouprlError, LostRank, RewardError, RunError
from grouprl.training.interrupts import Interrupted

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

BUCKET_ELEMENTS = 2**24
"""Numbers that are added up over the ranks in one piece (64 MiB in float32)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on one rank, in words that travel.

    Args:
        kind: The error's class.
        message: On one line.
        interrupted: Whether it was asked to stop.
    """

    kind: str
    message: str
    interrupted: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(type(error).__name__, " ".join(str(error).split()), isinstance(error, KeyboardInterrupt))

    def as_error(self, rank: int) -> GrouprlError:
        """The same error as another rank raises it: of the same class, where it is one of ours."""
        known = getattr(errors, self.kind, None)
        error: GrouprlError
        if known is errors.RewardUnavailable:
            error = RewardError(f"rank {rank}: {self.message}")
        elif isinstance(known, type) and issubclass(known, GrouprlError):
            error = known(f"rank {rank}: {self.message}")
        else:
            error = RunError(f"rank {rank}: {self.kind}: {self.message}")
        error.of_rank = rank
        return error


@dataclass(slots=True)
class History:
    """What has gone wrong so far.

    Args:
        lost: The connection broke.
        agreed: The error that all ranks raised at the same place.
    """

    lost: LostRank | None = None
    agreed: BaseException | None = None


class Ranks:
    """This process among the others.

    Args:
        rank: From 0; rank 0 writes.
        size: How many there are.
        local_rank: From 0, on this machine.
        local_size: How many share this machine.
        control: A gloo process group for what is no tensor; None on one process.
        beside: A second gloo process group, see the property.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        local_size: int = 1,
        control: ProcessGroup | None = None,
        beside: ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.window: Callable[[], AbstractContextManager[None]] = nullcontext
        """Within it a signal may raise at once: no other rank waits for this one in the middle of it."""
        self._control = control
        self._history = History()
        self._beside: Ranks | None = None
        if beside is not None:
            self._beside = Ranks(rank, size, local_rank=local_rank, local_size=local_size, control=beside)
            self._beside.window = lambda: self.window()
            self._beside._history = self._history

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def all_raised(self, error: BaseException) -> bool:
        """Whether every rank raised along with this error, so that they can still do something together."""
        return not self.several or (self._history.lost is None and error is self._history.agreed)

    @property
    def beside(self) -> Ranks:
        """The same ranks over a connection of their own: for collecting, which may happen in another thread than
        training. Messages over one connection must come in the same order on all ranks."""
        return self._beside or self

    def part(self) -> None:
        """Let go of the connections; an exchange after this is refused.

        A process group's threads end with its last reference. A thread that still holds the last exchange's tensors
        when the interpreter ends cannot get the GIL to free them, and aborts the process.
        """
        if self._history.lost is None:
            self._history.lost = LostRank(
                f"rank {self.rank}: the ranks have parted, expected no exchange after that"
            )
        self._control = None
        if self._beside is not None:
            self._beside.part()

    def share(self, count: int) -> range:
        """This rank's part of `count` things in order: contiguous, uneven by one at most, maybe none.

        >>> [Ranks(rank, 3).share(4) for rank in range(3)]
        [range(0, 1), range(1, 2), range(2, 4)]
        """
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def each(self, act: Callable[[], T]) -> list[T]:
        """`act()` on every rank; what each gave, in the order of the ranks.

        Raises:
            Interrupted: A rank was asked to stop.
            Exception: What `act` raised here; else, as the same class and with its number, what it raised on another.
            LostRank: A rank died, or did not answer in time.
        """
        if not self.several:
            return [act()]
        value, error, told = self._attempt(act)
        answers: list[Any] = [None] * self.size
        self._reach(lambda: dist.all_gather_object(answers, told, group=self._control))
        found = [pickle.loads(answer) for answer in answers]  # noqa: S301  (of this run's own ranks)
        self._raise_alike({rank: failure for rank, (failure, _) in enumerate(found) if failure}, error)
        given: list[T] = [theirs for _, theirs in found]
        given[self.rank] = value  # type: ignore[assignment]
        return given

    def own(self, act: Callable[[], T]) -> T:
        """`act()` on every rank; each keeps what it made, and an error is raised on all. See `each`."""
        made: list[T] = []
        self.each(lambda: made.append(act()))
        return made[0]

    def from_first(self, act: Callable[[], T]) -> T:
        """`act()` on rank 0 alone; all get what it gave, or its error. See `each`."""
        if not self.several:
            return act()
        value, error, told = self._attempt(act) if self.first else (None, None, b"")
        answer = [told]
        self._reach(lambda: dist.broadcast_object_list(answer, src=0, group=self._control))
        failure, theirs = pickle.loads(answer[0])  # noqa: S301  (of this run's own ranks)
        self._raise_alike({0: failure} if failure else {}, error)
        return value if self.first else theirs  # type: ignore[return-value]

    def local_first(self, act: Callable[[], T]) -> T:
        """`own`, on the first rank of each machine before the others: they find the cache that it filled."""
        made = self.own(lambda: act() if self.local_rank == 0 else None)
        made = self.own(lambda: made if self.local_rank == 0 else act())
        return made  # type: ignore[return-value]

    def require_same(self, what: str, value: str) -> None:
        """Nothing, where every rank has the same.

        Raises:
            ConfigError: On all; it names the first rank that differs.
        """
        found = self.each(lambda: value)
        other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
        if other is not None:
            error = ConfigError(
                f"rank {other}: {what} differ from those of rank 0, expected the same on all; give every rank the same "
                "options and files"
            )
            error.of_rank = None if self.first else 0
            self._history.agreed = error
            raise error

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Add tensors up over the ranks, in place; all ranks get the same bits.

        Args:
            tensors: The same shapes and types on every rank, on this rank's device.
        """
        if self.several:
            for bucket in _buckets(tensors):
                flat = torch.cat([x.flatten() for x in bucket])
                self._reach(partial(dist.all_reduce, flat))
                torch._foreach_copy_(
                    list(bucket),
                    [p.view_as(x) for p, x in zip(flat.split([x.numel() for x in bucket]), bucket)],
                )

    @torch.no_grad()
    def take_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        if self.several:
            for tensor in tensors:
                self._reach(partial(dist.broadcast, tensor, src=0))

    def _attempt(self, act: Callable[[], T]) -> tuple[T | None, BaseException | None, bytes]:
        """What `act` gave or raised here, and what the others are told of it."""
        try:
            with self.window():
                value = act()
                return value, None, pickle.dumps((None, value))
        except BaseException as error:
            return None, error, pickle.dumps((Failure.of(error), None))

    def _raise_alike(self, failures: dict[int, Failure], error: BaseException | None) -> None:
        """What all raise, where one of them failed."""
        if not failures:
            return
        rank, failure = next(iter(failures.items()))
        if rank != self.rank and isinstance(error, GrouprlError):
            error.of_rank = rank  # the same, most likely: one rank says it
        chosen: BaseException
        if any(f.interrupted for f in failures.values()):
            chosen = error if isinstance(error, KeyboardInterrupt) else Interrupted()
        else:
            chosen = failure.as_error(rank) if error is None else error
        self._history.agreed = chosen
        raise chosen

    def _reach(self, exchange: Callable[[], object]) -> None:
        """An exchange with the others; one that breaks off is the last."""
        if self._history.lost is not None:
            raise self._history.lost
        try:
            exchange()
        except RuntimeError as error:
            raise self._lose(error) from error

    def explained(self, error: BaseException) -> BaseException:
        """The error; `LostRank` in the place of one that a collective forward or backward raised because the connection
        broke."""
        broke = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL"))
        if (
            not self.several
            or not isinstance(error, RuntimeError)
            or isinstance(error, GrouprlError)
            or not broke
        ):
            return error
        return self._lose(error)

    def _lose(self, error: RuntimeError) -> LostRank:
        self._history.lost = LostRank(
            f"rank {self.rank}: the connection to another rank broke ({one_line(error)}): one of the {self.size} "
            "died or gave no answer; look for its message above"
        )
        return self._history.lost


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """In order, those of one type together, up to `BUCKET_ELEMENTS`."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(x.numel() for x in bucket) + tensor.numel() > BUCKET_ELEMENTS
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def one_line(error: BaseException) -> str:
    """Its message, cut off where it is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "…"
