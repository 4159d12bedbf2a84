"""What an estimator does to a prompt that is solved with probability p, exactly, from its own code.

With 0/1 rewards, what a completion's advantage does to the policy in expectation is w(p) · ∇ log(p / (1 − p)),
p being the prompt's pass rate and

    w(p) = E[A_i (R_i − p)] = p (1 − p) (E[A | right] − E[A | wrong])

the expectation being over all groups of G completions. An estimator that looks at the whole batch gets one in which
all pass rates are equally frequent: then the number of right answers is uniform on 0 … G.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grouprl import advantages

PASS_RATES = [k / 100 for k in range(101)]
Curve = list[tuple[float, float]]


def outcomes(G: int) -> Tensor:
    """(G + 1, G): row c has c right answers."""
    return (torch.arange(G) < torch.arange(G + 1).unsqueeze(-1)).to(torch.float64)


def binomial(G: int, p: float) -> list[float]:
    """P(c of G are right), c = 0 … G."""
    if p in (0.0, 1.0):
        return [float(c == G * p) for c in range(G + 1)]
    chance = [math.lgamma(G + 1) - math.lgamma(c + 1) - math.lgamma(G - c + 1) for c in range(G + 1)]
    return [math.exp(x + c * math.log(p) + (G - c) * math.log(1 - p)) for c, x in enumerate(chance)]


def weight_and_mean(advantage: Tensor, p: float, G: int) -> tuple[float, float]:
    """w(p) and E[A], of advantages (G + 1, G) of `outcomes(G)`."""
    chance = torch.tensor(binomial(G, p), dtype=torch.float64)
    push = (advantage * (outcomes(G) - p)).mean(-1)
    return float(chance @ push), float(chance @ advantage.mean(-1))


def curve(estimator: str, G: int = 8, **keywords: Any) -> Curve:
    """(p, w(p)) of an estimator, called once on all outcomes as one batch."""
    advantage = advantages.get(estimator)(outcomes(G), **keywords)
    return [(p, weight_and_mean(advantage, p, G)[0]) for p in PASS_RATES]


def by_right_and_wrong(estimate: Callable[[Tensor, Tensor], Tensor]) -> list[tuple[float, float, float]]:
    """(p, w(p), E[A]) of an estimator without groups.

    Args:
        estimate: (rewards, pass rates) → advantages, of one batch that holds every pass rate k / 100 equally
            often, right and wrong in that proportion.
    """
    rates = torch.tensor(PASS_RATES, dtype=torch.float64).repeat_interleave(100)
    rewards = (torch.arange(100).repeat(101) < torch.round(100 * rates)).to(torch.float64)
    result = estimate(rewards, rates)
    rows = []
    for k, p in enumerate(PASS_RATES):
        mine = slice(100 * k, 100 * (k + 1))
        push = float((result[mine] * (rewards[mine] - p)).mean())
        rows.append((p, push, float(result[mine].mean())))
    return rows


def mean_advantage(estimator: str, G: int = 8, **keywords: Any) -> Curve:
    """(p, E[A]) of an estimator, called once on all outcomes as one batch."""
    advantage = advantages.get(estimator)(outcomes(G), **keywords)
    return [(p, weight_and_mean(advantage, p, G)[1]) for p in PASS_RATES]
