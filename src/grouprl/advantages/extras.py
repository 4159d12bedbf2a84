"""What some estimators need besides rewards: a number for each completion, or for each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from grouprl.advantages.dlpack import as_tensor
from grouprl.advantages.inputs import ArrayLike
from grouprl.advantages.layout import on_host
from grouprl.errors import InputError


def read_numbers(
    where: str, argument: str, numbers: ArrayLike | None, like: Tensor, *, why: str
) -> Float64[Tensor, "*completions"]:
    """One number for each reward, float64, on the rewards' device. None (in a list) becomes NaN.

    Args:
        where: Public name that an error message begins with.
        argument: Name of the argument.
        numbers: Of the rewards' shape; or (..., 1), one for each row of a matrix.
        like: The rewards.
        why: What they are, for the message where they are missing.
    """
    if numbers is None:
        raise InputError(f"{where}: {argument} is missing, expected {why}; pass {argument}=…")
    numbers = as_tensor(where, argument, numbers)
    if isinstance(numbers, Tensor):
        read = numbers.detach()
    else:
        read = _from_foreign(where, argument, numbers)
    if read.is_complex():
        raise InputError(f"{where}: {argument} is complex, expected real numbers; pass one real part")
    if read.shape != like.shape:
        if like.ndim < 2 or read.shape != (*like.shape[:-1], 1):
            raise InputError(
                f"{where}: {argument} has shape {tuple(read.shape)}, expected {tuple(like.shape)}, as rewards; "
                "pass one number for each reward"
            )
        read = read.expand(like.shape)
    return read.to(like.device, torch.float64)


def read_lengths(where: str, lengths: ArrayLike | None, like: Tensor) -> Float64[Tensor, "*completions"]:
    """Completion lengths in tokens. Where looking at them would wait, a length that is none counts as 0.

    Raises:
        InputError: If they are missing, of another shape, negative or not finite.
    """
    read = read_numbers(where, "lengths", lengths, like, why="each completion's length in tokens")
    if on_host(read):
        if bool((read.isfinite() & (read >= 0)).all()):
            return read
        raise InputError(
            f"{where}: lengths holds a negative, missing or infinite number, expected tokens; "
            "pass completion_mask.sum(-1)"
        )
    return torch.nan_to_num(read, nan=0.0, posinf=0.0, neginf=0.0).clamp_min(0.0)


def _from_foreign(where: str, argument: str, numbers: Any) -> Tensor:
    try:
        if isinstance(numbers, list | tuple) and numbers and isinstance(numbers[0], Tensor):
            return torch.stack(list(numbers)).detach()
        return torch.from_numpy(np.array(numbers, dtype=np.float64, order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{where}: {argument} cannot be read ({error}), expected one number for each reward; "
            "pass a tensor, an array or a list"
        ) from error
