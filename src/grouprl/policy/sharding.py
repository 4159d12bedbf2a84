"""Weights shared out over the ranks of a process group (FSDP2, `torch.distributed.fsdp.fully_shard`).

Each rank keeps a slice of every weight, of its gradient and of its moments, in float32. A decoder layer's weights are
put together for its forward, freed, and put together again for its backward; those outside the layers (embedding, final
norm, LM head) for the forward and backward as a whole. Gradients are summed over the ranks, not averaged: the loss
is divided by the whole mini-batch's count already.

Forwards are collective: all ranks run as many, in the same order.

What takes most of a second to import is imported where it is used: a command that refuses its options does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from grouprl.errors import ModelError

T = TypeVar("T")

FORWARD = "with_whole_weights"
"""The method of a sharded model in which its weights are whole."""


def shard_model(model: Any, name: str) -> None:
    """Share a model's weights out over the default process group. In place; all ranks call it with the same weights.

    Args:
        model: A transformers model on this rank's device.
        name: For messages.

    Raises:
        ModelError: The model does not say what its layers are.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    layers = list(_layers(model))
    if not layers:
        raise ModelError(
            f"{name}: {type(model).__name__} does not name its layers (_no_split_modules), by which fsdp shares out "
            "weights; train it with strategy = 'ddp'"
        )
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other
    setattr(model, FORWARD, _call)
    register_fsdp_forward_method(model, FORWARD)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard_model` has been at it."""
    return hasattr(model, FORWARD)


def with_whole_weights(model: Any, act: Callable[[], T]) -> T:
    """`act()`, a forward, with the weights of a sharded model in place; of another one the plain call.

    Args:
        model: Of it the backward begins at the tensors that `act` returns, alone or in tuples and dictionaries.
        act: Uses the model's parts as it likes.
    """
    return getattr(model, FORWARD)(act) if is_sharded(model) else act()


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from all ranks' slices, on each of them; one that is no slice as it is."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def slice_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's slice of a tensor that all ranks have, as `like` is sliced; where that is no slice, as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def whole_state(model: nn.Module, *, keep: bool, trained_only: bool = False) -> dict[str, Tensor]:
    """The state dict of a sharded model, or what is trained of it, in whole tensors on the CPU; empty where this rank
    is not to `keep` it."""
    found: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}  # tied weights stay one
    for name, tensor in model.state_dict(keep_vars=True).items():
        if trained_only and not tensor.requires_grad:
            continue
        if id(tensor) not in seen:
            together = whole(tensor.detach())
            seen[id(tensor)] = together.cpu() if keep else together[:0]
        if keep:
            found[name] = seen[id(tensor)]
    return found


def _call(act: Callable[[], T]) -> T:
    """A hook on a view would be lost with the first change of it in place, so none leaves."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x._is_view() else x, act())


def _layers(model: Any) -> Iterator[nn.Module]:
    """What transformers keeps on one device: a model's decoder layers."""
    names: Sequence[str] = getattr(model, "_no_split_modules", None) or ()
    for module in model.modules():
        if type(module).__name__ in names:
            yield module
