"""What a caller may hand in, made into tensors and a layout; and how results go back in the caller's kind.

Everything is validated here, once. Nothing below this module meets an array, a list or a wrong shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grouprl.advantages.dlpack import as_tensor, giver, namespace_of
from grouprl.advantages.group_ids import check_dense, read_group_ids, stack
from grouprl.advantages.layout import Layout, Rows, Segments, on_host
from grouprl.errors import InputError

Array: TypeAlias = NDArray[Any]
ArrayLike: TypeAlias = Tensor | Array | Sequence[Any]
T = TypeVar("T")

BLOCK = 2**15 - 1
"""Rewards computed at a time on a CPU: their float64 intermediates stay in cache, and torch, which wakes its
threads from 2^15 elements on, does not wait for them: that costs milliseconds where other work has the cores."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What the reward's own type asks of the float64 arithmetic.

    Args:
        out: Type of the results.
        ulp: Distance between neighbouring values at 1.0 that counts as the reward's rounding; 0 for whole
            numbers.
        rescale: Whether float64 itself could overflow or underflow, so that each group is rescaled first.
    """

    out: torch.dtype
    ulp: float
    rescale: bool

    @property
    def fine(self) -> bool:
        """Whether results are read to float64's last places."""
        return self.rescale or self.out == torch.float64

    @property
    def largest(self) -> float:
        """The largest finite result; where an unscaled one would exceed it, it saturates."""
        return torch.finfo(self.out).max


SINGLE = Precision(out=torch.float32, ulp=2.0**-23, rescale=False)
DOUBLE = Precision(out=torch.float64, ulp=2.0**-52, rescale=True)


@dataclass(frozen=True, slots=True)
class Rewards:
    """Validated rewards in the caller's order.

    Args:
        values: In their own dtype, detached, on the caller's device; at least one axis.
        valid: Which of them may be scored; None for all.
        layout: Which of them form a group.
        precision: What their original type asks for.
        give: Takes a result (any tensor) to the caller's kind.
        lengths: Each completion's length in tokens, float64; None where nothing asks for it.
    """

    values: Tensor
    valid: Tensor | None
    layout: Layout
    precision: Precision
    give: Callable[[Tensor], Any]
    lengths: Tensor | None = None

    def blocks(self) -> list[Rewards]:
        """Parts that hold whole groups. On a CPU blocks of rows that fit its cache, elsewhere one."""
        if not isinstance(self.layout, Rows) or self.values.numel() <= BLOCK or not on_host(self.values):
            return [self]
        group_size = self.values.shape[-1]
        rows = max(1, BLOCK // group_size)

        values = self.values.reshape(-1, group_size).split(rows)

        def split(x: Tensor | None) -> Sequence[Tensor | None]:
            return [None] * len(values) if x is None else x.reshape(-1, group_size).split(rows)

        parts = zip(values, split(self.valid), split(self.lengths))
        return [replace(self, values=v, valid=m, lengths=n) for v, m, n in parts]

    def as_one_group(self) -> Rewards:
        """The whole batch as one group, in the caller's order, flat."""
        n = self.values.numel()
        valid = None if self.valid is None else self.valid.reshape(n)
        lengths = None if self.lengths is None else self.lengths.reshape(n)
        return replace(self, values=self.values.reshape(n), valid=valid, lengths=lengths, layout=Rows(n))


def read_rewards(
    where: str, rewards: ArrayLike, group_ids: ArrayLike | None, valid: ArrayLike | None
) -> Rewards:
    """Validate rewards, ids and mask.

    Args:
        where: Public name that an error message begins with.
        rewards: Tensor, array (NumPy's; JAX's, CuPy's and others over DLPack) or (nested) sequence of numbers,
            None where unscored.
        group_ids: None, where the last axis is the group, or one id for each of the 1-D rewards.
        valid: None, or a boolean per reward.

    Raises:
        InputError: On a wrong shape, length or type.
    """
    if isinstance(rewards, Tensor):
        check_dense(where, "rewards", rewards)
        values, precision = rewards.detach(), precision_of(rewards.dtype)
        give: Callable[[Tensor], Any] = _as_is
    else:
        values, precision, give = _read_foreign(where, rewards)
    if values.is_complex():
        raise InputError(
            f"{where}: rewards are {_name(values.dtype)}, expected real numbers; pass one real part"
        )
    if values.ndim == 0:
        raise InputError(
            f"{where}: rewards is a single number, expected at least one axis; "
            "pass a list or a 1-D tensor, even for a group of one"
        )
    layout: Layout
    if group_ids is None:
        layout = Rows(values.shape[-1])
    else:
        if values.ndim != 1:
            raise InputError(
                f"{where}: group_ids with rewards of shape {tuple(values.shape)}, expected 1-D rewards; "
                "flatten both, or leave group_ids out where the last axis is the group"
            )
        ids = read_group_ids(where, group_ids, values.shape[0], values.device)
        layout = Segments(ids) if values.shape[0] else Rows(0)
    return Rewards(values, read_valid(where, valid, values), layout, precision, give)


_ONE_SHAPE = "tensors of one shape; pass groups of different sizes flat, with group_ids"


def precision_of(dtype: torch.dtype) -> Precision:
    """Precision of a tensor's type: float64 itself, float32 for other floats, whole numbers."""
    if dtype == torch.float64:
        return DOUBLE
    if dtype.is_floating_point:
        return SINGLE
    return Precision(out=torch.get_default_dtype(), ulp=0.0, rescale=False)


def read_valid(where: str, valid: ArrayLike | None, values: Tensor) -> Tensor | None:
    """A boolean mask of the rewards' shape on their device, or None."""
    if valid is None:
        return None
    valid = as_tensor(where, "valid", valid)
    if not isinstance(valid, Tensor):
        try:
            valid = torch.from_numpy(np.array(valid, order="C"))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{where}: valid cannot be read as an array ({error}), expected True or False for each "
                f"reward; pass a mask of shape {tuple(values.shape)}"
            ) from error
    check_dense(where, "valid", valid)
    empty = valid.numel() == 0  # an empty list has no type of its own
    if (valid.is_floating_point() and not empty) or valid.is_complex():
        raise InputError(
            f"{where}: valid is {_name(valid.dtype)}, expected True or False for each reward; "
            "pass a comparison, such as mask > 0"
        )
    if valid.shape != values.shape:
        raise InputError(
            f"{where}: valid has shape {tuple(valid.shape)}, expected {tuple(values.shape)}, as rewards; "
            "pass one entry for each reward"
        )
    return valid.detach().to(values.device, torch.bool)


def choose(where: str, argument: str, name: str, choices: Mapping[str, T]) -> T:
    """The choice of that name."""
    if not isinstance(name, str) or name not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise InputError(f"{where}: {argument} is {name!r}, expected one of {known}; choose one of them")
    return choices[name]


def non_negative(where: str, argument: str, value: float) -> float:
    """The value, if it is a finite number ≥ 0."""
    number = finite(where, argument, value)
    if number < 0.0:
        raise InputError(
            f"{where}: {argument} is {number}, expected a finite number ≥ 0; pass 0 to do without it"
        )
    return number


def finite(where: str, argument: str, value: float) -> float:
    """The value, if it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: {argument} is {value!r}, expected a finite number; pass a float")
    return number


def check_ddof(where: str, ddof: int) -> None:
    """Refuse anything but 0 and 1."""
    if ddof not in (0, 1):
        raise InputError(
            f"{where}: ddof is {ddof!r}, expected 0 or 1; choose 0 for the population std, 1 for the sample"
        )


def _read_foreign(where: str, rewards: Any) -> tuple[Tensor, Precision, Callable[[Tensor], Any]]:
    """Rewards that are no tensor: arrays stay arrays, sequences become tensors."""
    if isinstance(rewards, list | tuple) and rewards and isinstance(rewards[0], Tensor):
        stacked = stack(where, "rewards", rewards, _ONE_SHAPE).detach()
        return stacked, precision_of(stacked.dtype), _as_is
    if namespace_of(rewards) is not None:
        values = as_tensor(where, "rewards", rewards)
        return values, precision_of(values.dtype), giver(rewards)
    is_array = hasattr(rewards, "__array__")
    if not is_array and (isinstance(rewards, str | bytes) or not isinstance(rewards, Sequence)):
        if hasattr(rewards, "__float__"):
            return torch.tensor(float(rewards)), SINGLE, _as_is
        raise InputError(
            f"{where}: rewards is a {type(rewards).__name__}, expected numbers; "
            "pass a tensor, an array or a list"
        )
    try:
        array = np.ma.asarray(rewards) if isinstance(rewards, np.ma.MaskedArray) else np.asarray(rewards)
        if array.dtype.kind == "O":
            array = _numbers(array)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"{where}: rewards cannot be read ({error}), expected numbers, or None where unscored, in rows "
            "of one length; pass groups of different sizes flat, with group_ids"
        ) from error
    if array.dtype.kind not in "biufc":
        raise InputError(f"{where}: rewards are {array.dtype}, expected numbers; convert them first")
    precision = _precision_of_array(array)
    if isinstance(array, np.ma.MaskedArray):
        array = np.ma.filled(array.astype(np.float64), np.nan)
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, hence unscored
        values = torch.from_numpy(
            np.array(array, dtype=np.complex128 if array.dtype.kind == "c" else np.float64, order="C")
        )
    if is_array:
        return values, precision, Tensor.numpy
    return values, Precision(torch.get_default_dtype(), precision.ulp, precision.rescale), _as_is


def _precision_of_array(array: Array) -> Precision:
    """As for tensors, but whole numbers give float64, as they do throughout NumPy."""
    if array.dtype.kind in "biu":
        return Precision(out=torch.float64, ulp=0.0, rescale=False)
    return SINGLE if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else DOUBLE


def _numbers(array: Array) -> Array:
    """An object array as float64, None as NaN."""
    if any(isinstance(item, str | bytes) for item in array.flat):
        raise TypeError("it holds text")
    numbers = (math.nan if item is None else float(item) for item in array.flat)
    return np.fromiter(numbers, np.float64, array.size).reshape(array.shape)


def _as_is(x: Tensor) -> Tensor:
    return x


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
