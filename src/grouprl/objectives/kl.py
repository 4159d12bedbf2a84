"""KL estimators from log-probs of sampled tokens. One function each, by name in `KL_ESTIMATORS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor


def k3(log_ratio: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """An unbiased estimate of KL(π ‖ π_ref) that is never negative.

        k3(d) = e^(−d) + d − 1,    d = log π − log π_ref,    computed as expm1(−d) + d

        gradient with respect to log π:   1 − e^(−d)

    Args:
        log_ratio: (B, T), d of tokens sampled from π, in nats, |d| ≤ 20 as `ratio.log_ratio` gives it.

    Returns:
        (B, T), nats.

    Edges: 0 at d = 0. `expm1` keeps the small values that e^(−d) − 1 would round away.

    >>> k3(torch.tensor([[0.0, -1.0, 1.0]]))
    tensor([[0.0000, 0.7183, 0.3679]])

    Source: DeepSeekMath, arXiv 2402.03300, equation 4; John Schulman, "Approximating KL divergence" (2020),
    http://joschu.net/blog/kl-approx.html, where it is called k3.
    """
    return torch.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"k3": k3})
