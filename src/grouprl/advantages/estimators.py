"""The parts an advantage is put together from: what is subtracted (baseline), what it is divided by (scale).

A part is a function of the measured groups, so a new one is an entry in a table here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from grouprl.advantages.groups import Groups, standard_deviation

Baseline = Callable[[Groups], Float64[Tensor, "*completions"]]
"""R − baseline per completion, times the groups' `scale`; 0 where unscored."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a group's deviations are divided by.

    Args:
        divisor: (groups, eps, ddof) → a positive number per group, times the groups' `scale`.
        bounded: Whether the quotient is bounded by the group's size alone. If not, it saturates at the
            largest number of its type.
    """

    divisor: Callable[[Groups, float, int], Float64[Tensor, "*groups"]]
    bounded: bool


def std(groups: Groups, eps: float, ddof: int) -> Float64[Tensor, "*groups"]:
    """std(R) + eps."""
    return standard_deviation(groups, ddof).add_(groups.scale * eps)


def none(groups: Groups, eps: float, ddof: int) -> Float64[Tensor, "*groups"]:
    """1: the plain deviation, without eps."""
    return torch.ones_like(groups.low) * groups.scale


BASELINES: Mapping[str, Baseline] = {"mean": lambda groups: groups.centred}
SCALES: Mapping[str, Scale] = {"std": Scale(std, bounded=True), "none": Scale(none, bounded=False)}


def advantages(
    groups: Groups, baseline: Baseline, scale: Scale, eps: float, ddof: int
) -> Float64[Tensor, "*completions"]:
    """(R − baseline) / divisor in group order.

    Exactly 0 where a group has no spread and where a reward is unscored.
    """
    deviation = baseline(groups)
    divisor = scale.divisor(groups, eps, ddof).masked_fill_(groups.has_spread.logical_not(), torch.inf)
    quotient = (deviation / groups.layout.expand(divisor)).add_(0.0)  # −0 becomes 0
    return quotient if scale.bounded else quotient.clamp_(-groups.precision.largest, groups.precision.largest)
