"""Group ids of any kind (integers, uuid strings, tuples, …) as an int64 tensor with one number per group."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from grouprl.advantages.dlpack import as_tensor
from grouprl.errors import InputError


def check_dense(where: str, name: str, x: Tensor) -> None:
    """Refuse what is no plain tensor of numbers: sparse, nested, quantised."""
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = (
            "nested"
            if x.is_nested
            else "quantised"
            if x.is_quantized
            else str(x.layout).removeprefix("torch.")
        )
        raise InputError(
            f"{where}: {name} is a {kind} tensor, expected a dense one; pass to_dense() or dequantize(), and groups "
            "of different sizes flat, with group_ids"
        )


def read_group_ids(
    where: str, group_ids: Tensor | NDArray[Any] | Sequence[Any], count: int, device: torch.device
) -> Int64[Tensor, " n"]:
    """Group ids as int64 on `device`: equal where the ids are equal, in an arbitrary order.

    Args:
        where: Public name that an error message begins with.
        group_ids: An integer tensor or array, or any hashables; one for each reward.
        count: Number of rewards.
        device: Where the rewards are.

    Raises:
        InputError: On a wrong shape, length or type.
    """
    if isinstance(group_ids, list | tuple) and group_ids and isinstance(group_ids[0], Tensor):
        group_ids = stack(where, "group_ids", group_ids, "0-d integer tensors; pass one integer tensor")
    group_ids = as_tensor(where, "group_ids", group_ids)
    if isinstance(group_ids, Tensor):
        check_dense(where, "group_ids", group_ids)
        ids = group_ids.detach()
    elif hasattr(group_ids, "__array__"):
        ids = _from_array(where, np.asarray(group_ids))
    elif isinstance(group_ids, Sequence) and not isinstance(group_ids, str | bytes):
        ids = _from_hashables(where, group_ids)
    else:
        raise InputError(
            f"{where}: group_ids is a {type(group_ids).__name__}, expected one id for each of {count} "
            "rewards; pass a tensor, an array or a list"
        )
    if ids.is_floating_point() or ids.is_complex():
        raise InputError(
            f"{where}: group_ids are {str(ids.dtype).removeprefix('torch.')}, expected integers or "
            "hashables; pass rewards first and group_ids second"
        )
    if tuple(ids.shape) != (count,):
        raise InputError(
            f"{where}: group_ids has shape {tuple(ids.shape)}, expected ({count},), one id for each reward; "
            "repeat a prompt's id for each of its completions"
        )
    if ids.dtype == torch.uint64:
        ids = ids.view(torch.int64)  # other numbers, as many of them
    return ids.to(device, torch.int64)


def _from_array(where: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.uint64 if array.dtype == np.uint64 else np.int64, order="C"))
    if array.ndim == 1 and array.dtype.kind not in "fc":
        return _from_hashables(where, array.tolist())
    # Refused by the caller, for its type or its shape.
    return torch.empty(array.shape, dtype=torch.float64 if array.dtype.kind in "fc" else torch.int64)


def _from_hashables(where: str, ids: Sequence[Hashable]) -> Tensor:
    numbers: dict[Hashable, int] = {}
    try:
        dense = [numbers.setdefault(group_id, len(numbers)) for group_id in ids]
    except TypeError as error:
        raise InputError(
            f"{where}: group_ids holds something that is not hashable ({error}), expected one id for each "
            "reward; pass integers, strings or tuples"
        ) from error
    _refuse_unfit(where, numbers)
    return torch.tensor(dense, dtype=torch.int64)


def _refuse_unfit(where: str, distinct: Iterable[Hashable]) -> None:
    """Refuse what would group by accident: rewards as ids, a missing id, tensors (hashed by identity)."""
    for group_id in distinct:
        if group_id is None or isinstance(group_id, float | complex | Tensor):
            raise InputError(
                f"{where}: group_ids holds {group_id!r}, expected integers or other hashables, none missing; "
                "pass rewards first and group_ids second"
            )


def stack(where: str, name: str, tensors: Sequence[Any], expected: str) -> Tensor:
    """A list that begins with a tensor, as one tensor; `expected` ends the message where it cannot be."""
    try:
        return torch.stack(list(tensors))
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"{where}: {name} is a list that begins with a tensor and cannot be stacked ({error}), expected {expected}"
        ) from error
