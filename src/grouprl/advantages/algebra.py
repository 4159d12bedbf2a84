"""The parts an advantage is put together from: what is subtracted (baseline), what it is divided by (scale).

    A_i = (R_i − baseline) / (scale + eps)

A part is a function of the measured groups, so a new one is an entry in a table here. All values are in units of
the groups' `scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from grouprl.advantages.groups import Groups, at_least_one, standard_deviation, where_scored
from grouprl.advantages.layout import on_host
from grouprl.advantages.numerics import order_free_sum, pow2_floor
from grouprl.errors import InputError

MAD_FLOOR = 1 / 32
"""A median deviation below this share of a group's extent is tiny."""


@dataclass(frozen=True, slots=True)
class Options:
    """Validated numbers that parts may read."""

    eps: float = 1e-6
    ddof: int = 0
    quantile: float = 0.4
    spread_ulps: float = 4.0


Baseline = Callable[[Groups, Options], Float64[Tensor, "*completions"]]
"""R − baseline per completion; 0 where unscored."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a group's deviations are divided by.

    Args:
        divisor: A positive number per group, eps included.
        bounded: Whether the quotient is bounded by the group's size alone. If not, it saturates at the
            largest number of its type.
        needs_batch: Whether it looks at the whole batch.
    """

    divisor: Callable[[Groups, Options], Float64[Tensor, "*groups"]]
    bounded: bool = True
    needs_batch: bool = False


# ---- baselines ------------------------------------------------------------------------------------------


def leave_one_out(groups: Groups, options: Options) -> Float64[Tensor, "*completions"]:
    """R_i − mean of the others = n/(n−1) · (R_i − mean)."""
    factor = groups.count / at_least_one(groups.count - 1.0)
    return groups.centred * (groups.layout.expand(factor) if isinstance(factor, Tensor) else factor)


def median(groups: Groups, options: Options) -> Float64[Tensor, "*completions"]:
    """R_i − median; the midpoint of the middle two in an even group."""
    middle = groups.layout.expand(_median(groups, groups.above))
    return where_scored(groups.scored, groups.above - middle)


def quantile(groups: Groups, options: Options) -> Float64[Tensor, "*completions"]:
    """R_i − b, b the smallest reward that at least a share K of the group does not exceed."""
    # K·n may come out a rounding above the whole number it is.
    place = _places(groups, options.quantile * (1.0 - 2.0**-50), 0.0).ceil_().sub_(1.0).clamp_min_(0.0)
    cut = groups.layout.expand(_pick(groups, groups.above, place.to(torch.int64)))
    return where_scored(groups.scored, groups.above - cut)


def length_weighted(groups: Groups, options: Options) -> Float64[Tensor, "*completions"]:
    """R_i − Σ|o_j| R_j / Σ|o_j|."""
    return where_scored(groups.scored, groups.above - groups.layout.expand(weighted_mean(groups)))


def weighted_mean(groups: Groups) -> Float64[Tensor, "*groups"]:
    """Σ|o| (R − min R) / Σ|o|; the plain mean where no scored completion has a token."""
    tokens, longest, total = token_counts(groups)
    weighted = order_free_sum(
        tokens * groups.above,
        longest * groups.ceiling,
        groups.count,
        groups.layout,
        fine=groups.precision.fine,
    )
    mean = torch.minimum(
        weighted / total.clamp_min(torch.finfo(torch.float64).tiny), groups.high - groups.low
    )
    return torch.where(total > 0, mean, groups.mean_above)


def token_counts(
    groups: Groups,
) -> tuple[Float64[Tensor, "*completions"], Float64[Tensor, "*groups"], Float64[Tensor, "*groups"]]:
    """Tokens of the scored completions, a power of two above the longest of each group, and their sum."""
    assert groups.lengths is not None  # noqa: S101  (read where the baseline is chosen)
    tokens = where_scored(groups.scored, groups.lengths)
    _, most = groups.layout.min_max(tokens, None)
    longest = 2.0 * pow2_floor(most.clamp_min(0.0))  # −∞ for groups without members
    return tokens, longest, order_free_sum(tokens, longest, groups.count, groups.layout, fine=True)


# ---- scales ---------------------------------------------------------------------------------------------


def std(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """std(R) + eps."""
    return standard_deviation(groups, options.ddof).add_(groups.scale * options.eps)


def batch_std(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """std over every scored reward of the batch, + eps."""
    batch = groups.batch
    assert batch is not None  # noqa: S101  (measured where the scale is chosen)
    whole = standard_deviation(batch, options.ddof).squeeze(-1) * (groups.scale / _scalar(batch.scale))
    return torch.zeros_like(groups.low).add_(whole).add_(groups.scale * options.eps)


def mean_abs(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """mean |R − mean(R)| + eps."""
    total = order_free_sum(
        groups.centred.abs(), groups.ceiling, groups.count, groups.layout, fine=groups.precision.fine
    )
    return total.div_(at_least_one(groups.count)).add_(groups.scale * options.eps)


def mad(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """median |R − median(R)| + eps, at least (max − min) / 32; 1 where it is 0: a majority shares one reward.

    The floor keeps quotients below 32 where the majority's rewards differ by next to nothing.
    """
    deviation = _median(groups, median(groups, options).abs())
    floor = (groups.high - groups.low) * MAD_FLOOR
    divisor = torch.maximum(deviation, floor).add_(groups.scale * options.eps)
    tolerance = pow2_floor(torch.maximum(groups.high, -groups.low)) * (
        options.spread_ulps * groups.precision.ulp
    )
    return torch.where(deviation > tolerance, divisor, none(groups, options))


def mean(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """mean(R) + eps; ∞, hence no advantage, where a group holds a negative reward."""
    level = groups.low + groups.mean_above
    return torch.where(groups.low < 0, torch.inf, level).add_(groups.scale * options.eps)


def none(groups: Groups, options: Options) -> Float64[Tensor, "*groups"]:
    """1: the plain deviation, without eps."""
    return torch.ones_like(groups.low) * groups.scale


BASELINES: Mapping[str, Baseline | None] = {
    "mean": lambda groups, options: groups.centred,
    "leave_one_out": leave_one_out,
    "median": median,
    "length_weighted": length_weighted,
    "quantile": quantile,
    "none": None,
}
SCALES: Mapping[str, Scale] = {
    "std": Scale(std),
    "batch_std": Scale(batch_std, needs_batch=True),
    "mean_abs": Scale(mean_abs),
    "mad": Scale(mad, bounded=False),
    "mean": Scale(mean),
    "none": Scale(none, bounded=False),
}


def refuse_senseless(where: str, baseline: str, scale: str) -> None:
    """Refuse a scale that exists for another baseline only.

    Raises:
        InputError: For such a pair.
    """
    if baseline == "none" and scale != "none":
        raise InputError(
            f"{where}: baseline='none' with scale={scale!r}, expected scale='none': a group without spread would "
            "be divided by next to nothing; choose another baseline, or scale='none'"
        )
    if scale in ("leave_one_out", "leave_one_out_std"):
        raise InputError(
            f"{where}: scale={scale!r}, expected a scale of the whole group: beside equal rewards the others' std "
            "is 0, and the one that differs would get any number; choose scale='std' or 'none'"
        )


def refuse_negative(where: str, groups: Groups) -> None:
    """Refuse negative rewards, where looking at them is free."""
    if on_host(groups.low) and bool((groups.low < 0).any()):
        raise InputError(
            f"{where}: rewards holds a negative number, expected rewards ≥ 0, as they are divided by their mean; "
            "shift them, or choose another scale"
        )


def combine(
    groups: Groups, baseline: Baseline, scale: Scale, options: Options
) -> Float64[Tensor, "*completions"]:
    """(R − baseline) / divisor in group order.

    Exactly 0 where a group has no spread and where a reward is unscored.
    """
    return quotient(groups, baseline(groups, options), scale.divisor(groups, options), scale.bounded)


def quotient(
    groups: Groups,
    deviation: Float64[Tensor, "*completions"],
    divisor: Float64[Tensor, "*groups"],
    bounded: bool,
) -> Float64[Tensor, "*completions"]:
    """Deviations over their group's divisor; 0 where a group has no spread."""
    divisor = divisor.masked_fill_(groups.has_spread.logical_not(), torch.inf)
    result = (deviation / groups.layout.expand(divisor)).add_(0.0)  # −0 becomes 0
    return result if bounded else result.clamp_(-groups.precision.largest, groups.precision.largest)


# ---- order statistics -----------------------------------------------------------------------------------


def _median(groups: Groups, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*groups"]:
    """The middle of each group's scored values, or the mean of the middle two."""
    last = _places(groups, 1.0, -1.0).clamp_min_(0.0)
    ranked = _rank(groups, x)
    lower = groups.layout.pick(ranked, (last / 2.0).floor().to(torch.int64))
    upper = groups.layout.pick(ranked, (last / 2.0).ceil().to(torch.int64))
    return lower + (upper - lower) / 2.0


def _pick(
    groups: Groups, x: Float64[Tensor, "*completions"], place: Int64[Tensor, "*groups"]
) -> Float64[Tensor, "*groups"]:
    return groups.layout.pick(_rank(groups, x), place)


def _rank(groups: Groups, x: Float64[Tensor, "*completions"]) -> Float64[Tensor, "*completions"]:
    """Ascending in each group, the unscored last, with the largest number there is."""
    if groups.scored is not None:
        x = torch.where(groups.scored, x, torch.finfo(torch.float64).max)
    return groups.layout.sort(x)


def _places(groups: Groups, factor: float, offset: float) -> Float64[Tensor, "*groups"]:
    """factor · count + offset."""
    return torch.ones_like(groups.low).mul_(groups.count).mul_(factor).add_(offset)


def _scalar(x: Tensor | float) -> Tensor | float:
    return x.squeeze(-1) if isinstance(x, Tensor) else x
