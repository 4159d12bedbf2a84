"""The section [vllm] of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Le, Lt


@dataclass(frozen=True)
class VllmConfig:
    """How vLLM runs, where it is the engine (docs/vllm.md)."""

    vllm_url: str = ""
    """A server that runs already, http://127.0.0.1:8000; where empty, the engine vllm_server starts one."""
    vllm_allow_remote: bool = False
    """Allow a vllm_url that is not on this machine: prompts and weights go there, unencrypted with http://."""
    vllm_python: str = ""
    """The interpreter that a server is started with, of an environment that has vllm and grouprl; empty: this one."""
    vllm_devices: str = ""
    """CUDA_VISIBLE_DEVICES of a server that is started, such as "1,2"; empty: as here."""
    vllm_memory: Annotated[float, Gt(0), Le(1)] = 0.3
    """Share of its devices' memory that vLLM may take, weights and cache; of a machine without them, of its memory."""
    vllm_args: tuple[str, ...] = ()
    """Further words of vLLM's command line, such as "--tensor-parallel-size=2"."""
    vllm_transfer: Literal["files", "nccl"] = "files"
    """How a server gets the weights: through files in shared memory, or over NCCL between GPUs."""
    vllm_timeout_s: Annotated[float, Gt(0), Lt(math.inf)] = 600.0
    """Seconds for a server to start, and for one request to it."""
