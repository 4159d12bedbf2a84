"""The optimizer's moments of weights that are shared out over ranks, in a checkpoint.

By torch.distributed.checkpoint (DCP), each rank its own slices, in safetensors. DCP's usual form has a pickle among its
files, which would be run on loading; its safetensors form (`HuggingFaceStorageWriter`) has none, and keeps in each
file's header where a slice belongs. Reading asks for whatever slices are wanted: of another number of ranks, or whole.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from grouprl.policy import Policy
from grouprl.policy.sharding import slice_like

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"
"""How many updates a weight has had."""


def save_moments(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Write the moments of a sharded policy. All ranks call it; the folder is there, on a file system that all see.

    Raises:
        OSError: On all ranks, where one cannot write.
    """
    state = {
        f"{name}.{key}": value.reshape(1) if key == STEP else value
        for name, weight in _trained(policy, optimizer)
        for key, value in optimizer.state.get(weight, {}).items()
    }
    try:
        save(state, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:  # no Exception
        raise OSError(
            errno.EIO, f"cannot be written ({_reasons(error)}); is the disk full?", str(folder)
        ) from error


def load_moments(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Read moments that `save_moments` wrote, as the policy's weights are now: whole, or on any number of ranks. None
    were written before the first update.

    Raises:
        RuntimeError: They are not those of these weights.
    """
    if not list(folder.glob("*.safetensors")):
        return
    state: dict[str, Tensor] = {}
    for name, weight in _trained(policy, optimizer):
        state |= {f"{name}.{key}": torch.zeros_like(weight.detach()) for key in MOMENTS}
        state[f"{name}.{STEP}"] = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant, for whole weights
        try:
            load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not policy.sharded)
        except (CheckpointException, SafetensorError) as error:
            raise RuntimeError(_reasons(error)) from error
    places = {weight: i for i, weight in enumerate(_weights(optimizer))}
    found = {
        places[weight]: {
            **{key: state[f"{name}.{key}"] for key in MOMENTS},
            STEP: state[f"{name}.{STEP}"][0],
        }
        for name, weight in _trained(policy, optimizer)
    }
    optimizer.load_state_dict({"state": found, "param_groups": optimizer.state_dict()["param_groups"]})


def sliced_moments(
    state: Mapping[int, Mapping[str, Any]], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Any]]:
    """An optimizer's state that was saved whole, as its weights are sliced now."""
    weights = list(_weights(optimizer))
    return {
        i: {key: slice_like(value, weights[i]) if key in MOMENTS else value for key, value in entry.items()}
        for i, entry in state.items()
    }


def _reasons(error: BaseException) -> str:
    """What went wrong, on one line; DCP lists it by rank."""
    failures = getattr(error, "failures", {})
    return " ".join(str([why for why, _ in failures.values()] if failures else error).split())


def _weights(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """In the order in which its state counts them."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _trained(policy: Policy, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The weights that it trains, by name."""
    mine = set(_weights(optimizer))
    return [(name, weight) for name, weight in policy.model.named_parameters() if weight in mine]
