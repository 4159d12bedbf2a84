"""The critic's loss: how far its values are from the returns. For PPO, which GRPO does without."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives._checks import check_denominator, check_logprobs, check_mask, check_number, look_up
from grouprl.objectives.aggregations import AGGREGATIONS, loss_denominator


def value_loss(
    values: Float[Tensor, "b t"],
    old_values: Float[Tensor, "b t"],
    returns: Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    value_clip: float | None = 0.2,
    aggregation: str = "token_mean",
    max_tokens: int | None = None,
    denominator: Tensor | float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The squared error of a critic, with PPO's clipping, of a batch or of one micro-batch of it.

        loss = aggregate over tokens of   ½ max( (V − R)², (V_clip − R)² )
        V_clip = V_old + clip(V − V_old, −value_clip, value_clip)

    Args:
        values: (B, T), any floating dtype: V of the state before each sampled token, in the reward's unit. It
            receives the gradient.
        old_values: (B, T), the same before the first update on this batch.
        returns: (B, T), what V is to become: advantages of `advantages.gae` plus old_values.
        completion_mask: (B, T), True where a token is trained.
        value_clip: How far V may move from V_old before the error stops counting, in the reward's unit; None: without
            bound.
        aggregation: A name in `aggregations.AGGREGATIONS`.
        max_tokens: For "constant": the most tokens a completion may have. Not needed with a denominator.
        denominator: What the whole batch divides by (`loss_denominator`), where this call sees a part of it. None takes
            this call's own count.

    Returns:
        The loss, 0-d, float32 (float64 for float64 `values`), and metrics: 0-d detached **sums** over the trained
        tokens of this call: value_tokens, value_clipped_tokens (where the clipped error was the larger), value_sum,
        return_sum, return_square_sum, value_error_sum (R − V), value_error_square_sum. Of these
        `explained_variance` makes 1 − Var(R − V) / Var(R).

    Raises:
        InputError: A wrong shape, dtype, device or option. Values are not looked at.

    Edges: masked positions may hold anything. Nothing trained: the loss is exactly 0, with a gradient of zeros. Where
    the clipped error is the larger the token has gradient 0: V has already moved by value_clip towards R.

    >>> values = torch.tensor([[0.9, 0.1]], requires_grad=True)
    >>> loss, metrics = value_loss(
    ...     values, torch.tensor([[0.5, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    ... )
    >>> loss.backward()
    >>> round(loss.item(), 4), metrics["value_clipped_tokens"].item()  # ½ (0.3² + 0.9²) / 2
    (0.225, 1)
    >>> values.grad
    tensor([[ 0.0000, -0.4500]])

    Source: PPO's public implementation (baselines, ppo2), see Engstrom et al., arXiv 2005.12729, section 3; the loss of
    the critic in PPO for language models is this one in TRL and verl.
    """
    where = "value_loss"
    aggregate = look_up(where, "aggregation", aggregation, AGGREGATIONS)
    if value_clip is not None:
        check_number(where, "value_clip", value_clip)
    check_mask(where, completion_mask)
    for name, value in (("values", values), ("old_values", old_values), ("returns", returns)):
        check_logprobs(where, name, value, completion_mask)
    if denominator is None:
        denominator = loss_denominator(completion_mask, aggregation, max_tokens=max_tokens)
    check_denominator(where, denominator)

    dtype = torch.promote_types(values.dtype, torch.float32)
    values = torch.where(completion_mask, values.to(dtype), 0.0)
    old_values = torch.where(completion_mask, old_values.detach().to(dtype), 0.0)
    returns = torch.where(completion_mask, returns.detach().to(dtype), 0.0)
    error = (values - returns).square()
    clipped = torch.zeros_like(completion_mask)
    if value_clip is not None:
        held = (values - old_values).clamp(-value_clip, value_clip) + old_values
        bounded = (held - returns).square()
        clipped = bounded > error
        error = torch.maximum(error, bounded)
    total = aggregate.total(0.5 * error, completion_mask)
    divisor = torch.as_tensor(denominator, dtype=dtype, device=total.device)
    return total / torch.where(divisor > 0, divisor, 1.0), _sums(values, returns, clipped, completion_mask)


@torch.no_grad()
def _sums(values: Tensor, returns: Tensor, clipped: Tensor, mask: Tensor) -> dict[str, Tensor]:
    error = returns - values
    return {
        "value_tokens": mask.sum(),
        "value_clipped_tokens": clipped.sum(),
        "value_sum": values.detach().sum(),
        "return_sum": returns.sum(),
        "return_square_sum": returns.square().sum(),
        "value_error_sum": error.detach().sum(),
        "value_error_square_sum": error.detach().square().sum(),
    }


def explained_variance(
    *, count: float, total: float, square: float, error: float, error_square: float
) -> float | None:
    """What share of the returns' variance a critic explains, out of sums.

        1 − Var(R − V) / Var(R)

    Args:
        count: Tokens.
        total: Σ R.
        square: Σ R².
        error: Σ (R − V).
        error_square: Σ (R − V)².

    Returns:
        1 for a critic that knows every return, 0 for one that is as good as a constant, below 0 for a worse one; None
        where the returns do not vary.

    >>> explained_variance(count=4, total=2.0, square=2.0, error=0.0, error_square=0.25)
    0.75

    Source: the usual diagnostic of a critic (baselines, `explained_variance`).
    """
    if count == 0:
        return None
    variance = square / count - (total / count) ** 2
    if variance <= 1e-12 * max(square / count, 1e-12):
        return None
    return 1.0 - (error_square / count - (error / count) ** 2) / variance
