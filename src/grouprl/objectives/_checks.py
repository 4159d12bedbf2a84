"""What the public functions accept: shapes, dtypes and options; never values, so no device is waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor

from grouprl.errors import InputError

T = TypeVar("T")


def look_up(where: str, option: str, name: str, table: Mapping[str, T]) -> T:
    """The entry called `name`, or an error that lists the names there are."""
    if name not in table:
        raise InputError(f"{where}: {option}={name!r}, expected one of {', '.join(table)}; pick one of them")
    return table[name]


def check_mask(where: str, completion_mask: Tensor) -> None:
    """`completion_mask` is (B, T) and bool."""
    _check_tensor(where, "completion_mask", completion_mask)
    if completion_mask.dim() != 2:
        raise InputError(
            f"{where}: completion_mask of shape {_shape(completion_mask)}, expected (B, T); "
            "give one row a completion, padded to the longest"
        )
    if completion_mask.dtype != torch.bool:
        raise InputError(
            f"{where}: completion_mask of {completion_mask.dtype}, expected torch.bool; "
            "call .bool() on it (True is a trained token)"
        )


def check_counted(where: str, counted: Tensor, completion_mask: Tensor) -> None:
    """`counted` is (B,) and bool."""
    _check_tensor(where, "counted", counted)
    rows = completion_mask.shape[0]
    if counted.shape != (rows,) or counted.dtype != torch.bool:
        raise InputError(
            f"{where}: counted of shape {_shape(counted)} and {counted.dtype}, expected ({rows},) and "
            "torch.bool; give one entry a completion, True where it has a reward"
        )


def check_logprobs(where: str, name: str, value: object, completion_mask: Tensor) -> None:
    """A floating (B, T) tensor in the shape of the mask, on its device."""
    value = _check_tensor(where, name, value)
    if value.shape != completion_mask.shape:
        raise InputError(
            f"{where}: {name} of shape {_shape(value)}, expected {_shape(completion_mask)} as "
            "completion_mask; pad both to the same length"
        )
    _check_floating(where, name, value)
    _check_device(where, name, value, completion_mask)


def check_advantages(where: str, advantages: Tensor, completion_mask: Tensor) -> None:
    """A floating (B,) or (B, T) tensor, on the mask's device."""
    _check_tensor(where, "advantages", advantages)
    rows = completion_mask.shape[0]
    if advantages.shape not in ((rows,), completion_mask.shape):
        raise InputError(
            f"{where}: advantages of shape {_shape(advantages)}, expected ({rows},) or "
            f"{_shape(completion_mask)}; give one a completion, or one a token"
        )
    _check_floating(where, "advantages", advantages)
    _check_device(where, "advantages", advantages, completion_mask)


def check_number(
    where: str,
    option: str,
    value: object,
    *,
    above: float | None = None,
    high: float = math.inf,
    finite: bool = False,
) -> None:
    """A real number from 0, or from anywhere above `above`, to `high`; NaN is none."""
    if _is_number(value):
        large_enough = value >= 0.0 if above is None else value > above
        if large_enough and value <= high and not (finite and math.isinf(value)):
            return
    kind = "a finite number" if finite else "a number"
    if above is not None:
        limits = f"above {above:g}"
    else:
        limits = "0 or more" if math.isinf(high) else f"from 0 to {high:g}"
    raise InputError(f"{where}: {option}={value!r}, expected {kind}, {limits}; correct {option}")


def check_bounds(where: str, low_option: str, low: float, high_option: str, high: float) -> None:
    """0 ≤ low ≤ high; high may be inf."""
    check_number(where, low_option, low, finite=True)
    check_number(where, high_option, high)
    if low > high:
        raise InputError(
            f"{where}: {low_option}={low!r} and {high_option}={high!r}, expected {low_option} at most "
            f"{high_option}; exchange them or correct one"
        )


def check_max_tokens(where: str, value: object, *, needed: bool) -> None:
    """A whole number of tokens, 1 or more; None only where it is not needed."""
    if value is None and not needed:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(
            f"{where}: max_tokens={value!r}, expected the most tokens a completion may have, 1 or more; "
            "give the limit that the sampler has"
        )


def check_denominator(where: str, value: object) -> None:
    """A count: a finite number that is not negative, or a 0-d tensor."""
    if isinstance(value, Tensor):
        usable = value.dim() == 0 and value.dtype != torch.bool and not value.is_complex()
        given = f"a tensor of shape {_shape(value)} and {value.dtype}"
    else:
        usable = _is_number(value) and 0.0 <= value < math.inf
        given = repr(value)
    if not usable:
        raise InputError(
            f"{where}: denominator is {given}, expected a count (int, float or 0-d tensor, not negative); "
            "take it from loss_denominator over the whole batch"
        )


def _is_number(value: object) -> TypeGuard[float]:
    """An int or float, NumPy's included; not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _check_tensor(where: str, name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(
            f"{where}: {name} is {type(value).__name__}, expected a torch.Tensor; "
            "convert it with torch.as_tensor"
        )
    return value


def _check_floating(where: str, name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise InputError(f"{where}: {name} of {value.dtype}, expected a floating dtype; call .float() on it")


def _check_device(where: str, name: str, value: Tensor, completion_mask: Tensor) -> None:
    if value.device != completion_mask.device:
        raise InputError(
            f"{where}: {name} on {value.device}, expected {completion_mask.device} as completion_mask; "
            "move both to one device"
        )
