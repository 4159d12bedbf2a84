"""The estimator for several rewards a completion: each is standardised before they are summed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grouprl.advantages.algebra import Options, quotient, std
from grouprl.advantages.batch_wide import empty, give
from grouprl.advantages.extras import read_numbers
from grouprl.advantages.groups import measure, where_scored
from grouprl.advantages.inputs import (
    ArrayLike,
    Precision,
    Rewards,
    check_ddof,
    finite,
    non_negative,
    read_rewards,
)
from grouprl.advantages.presets import OWN_GROUP
from grouprl.advantages.registry import register
from grouprl.advantages.whitening import as_batch, scale_to_unit, scored_of
from grouprl.errors import InputError


@register(
    "gdpo",
    scope="batch",
    needs={"components"},
    laws=(OWN_GROUP - {"batch_independent"}) | {"zero_sum", "bounded"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def gdpo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    components: Mapping[str, ArrayLike] | Sequence[ArrayLike] | Tensor | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Several rewards, each standardised in its group, then summed and scaled over the batch.

        S_i = Σ_m w_m (R_im − mean(R_m)) / (std(R_m) + eps)        A_i = S_i / (std(all S) + eps)

    Args:
        rewards: As for `grouprl.group_advantages`; they say which completions are scored, and nothing else.
        group_ids: As for `grouprl.group_advantages`.
        components: The rewards R_m by name, or in order, each of the rewards' shape. A missing one (None or
            NaN) is left out of its mean and std and adds nothing to S_i.
        weights: w_m, by the same names or in the same order; 1 each if not given.
        eps: Added to each std: to R_m's in its unit, to S's without unit.
        ddof: 0 for the population std, 1 for the sample std, of R_m in its group.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`, for each component.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(N − 1), N the batch's scored
        completions. The mean of all S is 0 by construction, so whitening only divides, and a group in which no
        component has spread gets exactly 0. A completion without any component is unscored.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for missing components, or weights that do not match.

    Example:
        >>> from grouprl import advantages
        >>> right, formatted = [[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]
        >>> advantages.gdpo([[2.0, 0.0], [1.0, 0.0]], components={"right": right, "formatted": formatted})
        tensor([[ 1.2649, -1.2649],
                [ 0.6325, -0.6325]])

    Source: GDPO, https://arxiv.org/abs/2601.05242.
    """
    where = "gdpo"
    eps, spread_ulps = non_negative(where, "eps", eps), non_negative(where, "spread_ulps", spread_ulps)
    check_ddof(where, ddof)
    batch = read_rewards(where, rewards, group_ids, valid)
    parts = _components(where, batch, components, weights)
    if batch.values.numel() == 0:
        return empty(batch)
    scored, present = scored_of(batch), torch.zeros_like(batch.values, dtype=torch.bool)
    sums = torch.zeros_like(batch.values, dtype=torch.float64)
    precision = Precision(batch.precision.out, batch.precision.ulp, rescale=True)
    for values, weight in parts:
        groups = measure(replace(batch, values=values, valid=scored, precision=precision), spread_ulps)
        score = quotient(groups, groups.centred, std(groups, Options(eps, ddof)), True)
        sums = sums + weight * groups.layout.restore(score)
        present = present | values.isfinite()
    scored = scored & present
    whole = as_batch(batch, where_scored(scored, sums), scored)
    # Components that cancel leave rounding: it is no signal.
    rounding = 8.0 * max(batch.precision.ulp, 2.0**-50) * sum(abs(weight) for _, weight in parts)
    alive = whole.has_spread & ((whole.high - whole.low) / whole.scale > rounding)
    result = scale_to_unit(replace(whole, has_spread=alive), sums, eps)
    return give(batch, where_scored(scored.reshape(-1), result))


def _components(where: str, batch: Rewards, components: Any, weights: Any) -> list[tuple[Tensor, float]]:
    """Each component's values with its weight."""
    expected = "one or more rewards of the shape of rewards, by name or in order"
    if components is None or len(components) == 0:
        raise InputError(f"{where}: components are missing, expected {expected}; pass components=…")
    named = components if isinstance(components, Mapping) else dict(enumerate(components))
    if weights is None:
        weights = dict.fromkeys(named, 1.0)
    elif not isinstance(weights, Mapping):
        weights = dict(enumerate(weights))
    if set(weights) != set(named):
        raise InputError(
            f"{where}: weights are for {list(weights)}, expected one for each of {list(named)}; "
            "name each component, or leave weights out"
        )
    return [
        (
            read_numbers(where, f"components[{name!r}]", values, batch.values, why=expected),
            finite(where, f"weights[{name!r}]", weights[name]),
        )
        for name, values in named.items()
    ]
