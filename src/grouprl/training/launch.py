"""How the processes that torchrun starts meet, and which device each has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from grouprl.errors import ConfigError, RunError
from grouprl.training.config import Config
from grouprl.training.ranks import Ranks, one_line

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process; where one of them is missing, a process is alone."""


@contextmanager
def joined(config: Config) -> Iterator[Ranks]:
    """Meet the other ranks that torchrun started, until the end of the block; without others nothing is set up.

    With a default process group already there (your own script made it) that one is used, and left.

    Raises:
        ConfigError: The device is not one that several ranks can have.
        RunError: The others were not met in time.
    """
    from_outside = dist.is_available() and dist.is_initialized()
    launch = _launch()
    if (dist.get_world_size() if from_outside else launch["WORLD_SIZE"] if launch else 1) == 1:
        yield Ranks()
        return
    if launch is None:
        local_rank, local_size = dist.get_rank(), dist.get_world_size()
    else:
        local_rank, local_size = launch["LOCAL_RANK"], launch["LOCAL_WORLD_SIZE"]
    device = own_device(config.device, local_rank)
    timeout = timedelta(seconds=config.distributed.distributed_timeout_s)
    if not from_outside:
        _meet(device, timeout)
    own: list[ProcessGroup | None] = []
    ranks = None
    try:
        own += (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
        ranks = Ranks(
            dist.get_rank(),
            dist.get_world_size(),
            local_rank=local_rank,
            local_size=local_size,
            control=own[0],
            beside=own[1],
        )
        yield ranks
    finally:
        if ranks is not None:
            ranks.part()
        for group in own if from_outside else [None]:  # None: all there are
            with suppress(RuntimeError):  # of ranks that have gone
                dist.destroy_process_group(group)


def own_device(name: str, local_rank: int) -> torch.device:
    """A rank's device: the CPU, or a CUDA device of its own.

    Raises:
        ConfigError: One device was named for all ranks, or there are fewer devices than ranks.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if name not in ("auto", "cuda"):
        raise ConfigError(
            f"device {name!r} on several ranks, expected 'auto', 'cpu' or 'cuda': each rank takes a device of its own"
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"device {name!r}: rank {local_rank} of this machine has no CUDA device ({count} are here); give torchrun "
            f"--nproc-per-node {max(count, 1)}"
        )
    return torch.device("cuda", local_rank)


def launched_rank() -> int:
    """The rank that torchrun gave this process; 0 without torchrun."""
    launch = _launch()
    return 0 if launch is None else launch["RANK"]


def _launch() -> dict[str, int] | None:
    if not all(os.environ.get(name) for name in VARIABLES):
        return None
    try:
        found = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")}
        found["LOCAL_RANK"] = int(os.environ.get("LOCAL_RANK", found["RANK"]))
        found["LOCAL_WORLD_SIZE"] = int(os.environ.get("LOCAL_WORLD_SIZE", found["WORLD_SIZE"]))
    except ValueError as error:
        raise ConfigError(
            f"environment: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be whole numbers ({error}); "
            "start with torchrun, which sets them"
        ) from error
    return found


def _meet(device: torch.device, timeout: timedelta) -> None:
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            timeout=timeout,
            device_id=device if on_cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"rank {rank} of {size}: did not meet the others at {where} within {timeout.total_seconds():g} s "
            f"({one_line(error)}); start all of them with the same torchrun command"
        ) from error
