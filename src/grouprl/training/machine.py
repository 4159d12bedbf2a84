"""What the machine is and what a run took from it."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import resource
import sys
from contextlib import suppress

import numpy as np
import torch

GIB = 2**30


def peak_memory_gib(device: torch.device) -> float:
    """Most memory held so far, in GiB: of the CUDA device, else resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / GIB if sys.platform == "darwin" else peak * 1024 / GIB


def release_memory() -> None:
    """Give the system back what the C library's allocator keeps of freed memory, where it can be asked to (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def describe_machine(device: torch.device, *, threads: int | None = None) -> str:
    """One line: the accelerator or the processor, cores and threads (of another process, where given), torch."""
    if device.type == "cuda":
        what = torch.cuda.get_device_name(device)
    else:
        what = f"{_processor()}, {os.cpu_count()} cores, {threads or torch.get_num_threads()} threads"
    return f"{what}; torch {torch.__version__}"


def seed_everything(seed: int, step: int, *more: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch for one step, so that a reward function that draws numbers resumes as well.

    grouprl itself draws from none of them: a completion's randomness is its own, and dropout is off. Each rank of
    several draws other numbers.

    Args:
        seed: The run's.
        step: The step.
        more: What in it draws, where that is not the rewards.
        rank: Of this process.
    """
    entropy = [seed, step, *more, rank] if rank else [seed, step, *more]
    state = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(int(state[1]))
    torch.manual_seed(int(state[2]))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
