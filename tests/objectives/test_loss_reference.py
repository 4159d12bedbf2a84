"""policy_loss against the same equations written with loops and the math module, gradient included."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.objectives import policy_loss


@dataclass
class Reference:
    """What the loops give: the loss, d loss / d log π, and the sums.

    Surrogate and KL of opposite sign cancel, e¹⁹ against e¹⁹ at worst, so `loss_scale` and `gradient_scale`
    hold the sizes before cancellation, to which the rounding is relative.
    """

    loss: float
    gradient: list[list[float]]
    loss_scale: float
    gradient_scale: list[list[float]]
    sums: dict[str, float] = field(default_factory=dict)


def reference_loss(
    new: list[list[float]],
    old: list[list[float]],
    ref: list[list[float]],
    advantages: list[float],
    mask: list[list[bool]],
    clip_low: float,
    clip_high: float,
    aggregation: str,
    beta: float,
) -> Reference:
    zeros = [[0.0] * len(row) for row in new]
    result = Reference(0.0, deepcopy(zeros), 1.0, deepcopy(zeros))
    names = (
        "tokens clipped_low_tokens clipped_high_tokens clamped_tokens ref_clamped_tokens ratio_sum kl_ref_sum"
    )
    sums = dict.fromkeys(names.split(), 0.0)
    tokens_of_batch = sum(sum(row) for row in mask)
    for i, row in enumerate(mask):
        for t, trained in enumerate(row):
            if not trained:
                continue
            weight = 1 / (len(mask) * sum(row)) if aggregation == "sequence_mean" else 1 / tokens_of_batch
            a, log_r = advantages[i], new[i][t] - old[i][t]
            clamped = abs(log_r) > 20
            r = math.exp(max(-20.0, min(20.0, log_r)))
            too_high, too_low = a > 0 and r > 1 + clip_high, a < 0 and r < 1 - clip_low
            if too_high:
                surrogate, slope = -(1 + clip_high) * a, 0.0
            elif too_low:
                surrogate, slope = -(1 - clip_low) * a, 0.0
            else:
                surrogate, slope = -r * a, 0.0 if clamped else -r * a
            d = new[i][t] - ref[i][t]
            ref_clamped = abs(d) > 20
            d = max(-20.0, min(20.0, d))
            kl, kl_slope = math.expm1(-d) + d, 0.0 if ref_clamped else -math.expm1(-d)
            result.loss += weight * (surrogate + beta * kl)
            result.gradient[i][t] = weight * (slope + beta * kl_slope)
            result.loss_scale += weight * (abs(surrogate) + beta * kl)
            result.gradient_scale[i][t] = weight * (abs(slope) + beta * abs(kl_slope))
            sums["tokens"] += 1
            sums["clipped_low_tokens"] += too_low
            sums["clipped_high_tokens"] += too_high
            sums["clamped_tokens"] += clamped
            sums["ref_clamped_tokens"] += ref_clamped
            sums["ratio_sum"] += r
            sums["kl_ref_sum"] += kl
    result.sums = sums
    return result


# None of these lies on a clip bound, where a rounding would decide.
LOG_RATIOS = st.sampled_from(
    [0.0, 0.03, -0.03, 0.15, -0.15, 0.5, -0.5, 3.0, -3.0, 19.0, -19.0, 25.0, -100.0, 100.0]
)
ADVANTAGES = st.sampled_from([0.0, 1.0, -1.0, 2.645, -0.378])


@st.composite
def batches(draw: st.DrawFn) -> dict[str, list]:
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def matrix(of: st.SearchStrategy) -> list[list]:
        return draw(st.lists(st.lists(of, min_size=width, max_size=width), min_size=rows, max_size=rows))

    new = matrix(st.floats(-5, 0, width=16))
    by_old, by_ref = matrix(LOG_RATIOS), matrix(LOG_RATIOS)
    return {
        "new": new,
        "old": [[n - x for n, x in zip(a, b)] for a, b in zip(new, by_old)],
        "ref": [[n - x for n, x in zip(a, b)] for a, b in zip(new, by_ref)],
        "advantages": draw(st.lists(ADVANTAGES, min_size=rows, max_size=rows)),
        "mask": matrix(st.booleans()),
    }


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
@given(
    batch=batches(),
    clips=st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.1, 0.4), (1.0, math.inf)]),
    beta=st.sampled_from([0.0, 0.04, 1.0]),
    per_token_advantages=st.booleans(),
)
@settings(deadline=None)
def test_value_gradient_and_sums(batch, clips, beta, per_token_advantages, aggregation, dtype, rtol):
    expected = reference_loss(
        **batch, clip_low=clips[0], clip_high=clips[1], aggregation=aggregation, beta=beta
    )
    logprobs = torch.tensor(batch["new"], dtype=dtype, requires_grad=True)
    advantages = torch.tensor(batch["advantages"], dtype=dtype)
    if per_token_advantages:
        advantages = advantages[:, None].expand_as(logprobs)
    loss, metrics = policy_loss(
        logprobs,
        torch.tensor(batch["old"], dtype=dtype),
        advantages,
        torch.tensor(batch["mask"]),
        clip_low=clips[0],
        clip_high=clips[1],
        aggregation=aggregation,
        ref_logprobs=torch.tensor(batch["ref"], dtype=dtype),
        beta=beta,
    )
    loss.backward()
    assert logprobs.grad is not None
    assert loss.item() == pytest.approx(expected.loss, abs=rtol * expected.loss_scale)
    error = (logprobs.grad.double() - torch.tensor(expected.gradient, dtype=torch.float64)).abs()
    assert (error <= rtol * (1 + torch.tensor(expected.gradient_scale, dtype=torch.float64))).all()
    got = {name: metrics[name].item() for name in expected.sums}
    assert got == pytest.approx(expected.sums, rel=rtol, abs=rtol)
