"""Advantages inside an episode: for each step among steps from the same state, and the critic's way."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from grouprl.advantages.core import compute
from grouprl.advantages.extras import read_numbers
from grouprl.advantages.group_ids import read_group_ids
from grouprl.advantages.inputs import ArrayLike, Rewards, choose, finite, read_rewards, read_valid
from grouprl.advantages.layout import Segments
from grouprl.advantages.presets import OWN_GROUP
from grouprl.advantages.registry import register
from grouprl.advantages.whitening import scored_of
from grouprl.errors import InputError


@register("gigpo", scope="token", per_completion={"episode_ids", "state_ids"}, laws=OWN_GROUP | {"zero_sum"})
def gigpo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    episode_ids: ArrayLike | None = None,
    state_ids: ArrayLike | None = None,
    omega: float = 1.0,
    gamma: float = 1.0,
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """A whole episode among its task's, plus ω times a step among the steps taken from the same state.

        A_t = A(Σ_t r_t among the task's episodes) + ω · A(Σ_l γ^l r_{t+l} among steps from t's state)
        A(x) = (x − mean) / (std + eps)

    Args:
        rewards: Shape (N,), each step's own reward; the steps of an episode in the order they were taken.
        group_ids: Shape (N,), the task of each step. None: one task.
        episode_ids: Shape (N,), unique within a task. None: each step is an episode of its own.
        state_ids: Shape (N,), the state (such as a hash of the observation) in which each step was taken; steps
            of one task with the same id are compared. None: no second term, and with episode_ids=None this
            is `grpo`.
        omega: ω ≥ 0.
        gamma: γ from 0 to 1.
        scale: "std", or "none" for both terms.
        eps: As for `grouprl.group_advantages`.
        ddof: As for `grouprl.group_advantages`.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        An advantage for each step. An episode with an unscored step is unscored as a whole: 0 for all its steps.
        The only episode of a task, and the only step from a state, get 0 from that term.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for ids of another length, or an omega or gamma out of
            range.

    Example:
        >>> from grouprl import advantages
        >>> advantages.gigpo(
        ...     [0.0, 1.0, 0.0, 0.0],
        ...     episode_ids=["a", "a", "b", "b"],
        ...     state_ids=["start", "door", "start", "wall"],
        ... )
        tensor([ 2.0000,  1.0000, -2.0000, -1.0000])

    Source: GiGPO, https://arxiv.org/abs/2505.10978, section 3.
    """
    where = "gigpo"
    choose(where, "scale", scale, {"std": 0, "none": 0})
    omega, gamma = finite(where, "omega", omega), finite(where, "gamma", gamma)
    if omega < 0.0 or not 0.0 <= gamma <= 1.0:
        raise InputError(
            f"{where}: omega is {omega} and gamma {gamma}, expected omega ≥ 0 and gamma from 0 to 1; choose others"
        )
    options: dict[str, Any] = {"scale": scale, "eps": eps, "ddof": ddof, "spread_ulps": spread_ulps}
    if episode_ids is None and state_ids is None:
        return compute(where, rewards, group_ids, valid=valid, **options)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.ndim != 1:
        raise InputError(
            f"{where}: rewards has shape {tuple(batch.values.shape)}, expected one axis of steps; flatten all ids alike"
        )
    n, device = batch.values.shape[0], batch.values.device
    if n == 0:
        return compute(where, rewards, group_ids, valid=valid, **options)
    steps = torch.arange(n, device=device)
    tasks = torch.zeros_like(steps) if group_ids is None else read_group_ids(where, group_ids, n, device)
    episodes = steps if episode_ids is None else _read_ids(where, "episode_ids", episode_ids, batch)
    returns, to_go, first, scored = _returns(batch, _pair(tasks, episodes), gamma)
    whole = compute(where, returns, tasks, valid=first & scored, **options)
    layout = Segments(_pair(tasks, episodes))
    total = layout.restore(layout.expand(layout.sum(layout.arrange(whole.to(torch.float64)))))
    if state_ids is not None:
        states = _pair(tasks, _read_ids(where, "state_ids", state_ids, batch))
        total = total + omega * compute(where, to_go, states, valid=scored, **options).to(torch.float64)
    total = torch.where(scored, total, 0.0).clamp_(-batch.precision.largest, batch.precision.largest)
    return batch.give(total.to(batch.precision.out))


@register("gae", scope="token", needs={"values"}, per_completion={"mask"})
def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    last_values: float = 0.0,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Any:
    """The critic's way, for comparison: what came, against what the critic expected, token by token.

        δ_t = r_t + γ V_{t+1} − V_t        A_t = Σ_l (γλ)^l δ_{t+l}

    Args:
        rewards: Shape (..., T), of each token; the last axis is time.
        values: The critic's V_t, of the rewards' shape.
        mask: True for the policy's own tokens. Others get 0 and are passed over, as though the sequence had been
            written without them; so padding may hold anything.
        last_values: V after the last token: 0 for a sequence that ended.
        gamma: γ from 0 to 1.
        lam: λ from 0 to 1.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit; the critic's targets are these plus
        values. A sequence with a reward or value that is not finite gets 0.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for values of another shape, or a gamma or lam out of
            range.

    Example:
        >>> from grouprl import advantages
        >>> advantages.gae([[0.0, 0.0, 1.0]], [[0.5, 0.5, 0.75]], gamma=1.0, lam=0.5)
        tensor([[0.1875, 0.3750, 0.2500]])

    Source: Generalised advantage estimation, https://arxiv.org/abs/1506.02438, equation 16.
    """
    where = "gae"
    numbers = [
        finite(where, name, x) for name, x in (("gamma", gamma), ("lam", lam), ("last_values", last_values))
    ]
    if not all(0.0 <= share <= 1.0 for share in numbers[:2]):
        raise InputError(
            f"{where}: gamma is {gamma} and lam {lam}, expected numbers from 0 to 1; choose others"
        )
    batch = read_rewards(where, rewards, None, None)
    critic = read_numbers(where, "values", values, batch.values, why="the critic's value of each token")
    own = read_valid(where, mask, batch.values)
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=batch.precision.out))
    reward = batch.values.to(torch.float64)
    own = torch.ones_like(reward, dtype=torch.bool) if own is None else own
    sound = ((reward.isfinite() & critic.isfinite()) | own.logical_not()).all(-1, keepdim=True)
    use = own & sound
    reward, critic = torch.where(use, reward, 0.0), torch.where(use, critic, 0.0)
    passed = use.logical_not().to(torch.float64)
    following = _scan(critic, passed, end=numbers[2])
    ahead = _shifted(following, 1, numbers[2])
    delta = torch.where(use, reward + numbers[0] * ahead - critic, 0.0)
    total = _scan(delta, passed + (1.0 - passed) * (numbers[0] * numbers[1]), end=0.0)
    largest = batch.precision.largest
    total = torch.nan_to_num(torch.where(use, total, 0.0), posinf=largest, neginf=-largest)
    return batch.give(total.clamp_(-largest, largest).to(batch.precision.out))


def _scan(
    x: Float64[Tensor, "*batch time"], factor: Float64[Tensor, "*batch time"], end: float
) -> Float64[Tensor, "*batch time"]:
    """y_t = x_t + factor_t · y_{t+1}, with y_T = end: backwards in time, in log2(T) steps."""
    n, step = x.shape[-1], 1
    while step < n:
        later, its_factor = _shifted(x, step, 0.0), _shifted(factor, step, 1.0)
        x, factor = x + factor * later, factor * its_factor
        step *= 2
    return x + factor * end


def _shifted(x: Float64[Tensor, "*batch time"], step: int, fill: float) -> Float64[Tensor, "*batch time"]:
    """x_{t+step}, and a number after the end."""
    return torch.nn.functional.pad(x.narrow(-1, step, x.shape[-1] - step), (0, step), value=fill)


def _returns(
    batch: Rewards, episodes: Int64[Tensor, " n"], gamma: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each step: its episode's sum, the discounted sum from here on, whether it is the first, whether scored."""
    layout = Segments(episodes)
    order = layout.arrange(torch.arange(len(episodes), device=episodes.device))
    sorted_ids = episodes.index_select(0, order)
    goes_on = sorted_ids.diff().eq(0)
    first = torch.nn.functional.pad(goes_on.logical_not(), (1, 0), value=True)
    follows = torch.nn.functional.pad(goes_on, (0, 1), value=False).to(torch.float64)
    fine = layout.arrange(scored_of(batch))
    scored = layout.expand(layout.min_max(fine.to(torch.float64), None)[0]) > 0
    reward = torch.where(scored, layout.arrange(batch.values.to(torch.float64)), 0.0)
    to_go, returns = (_scan(reward, follows * share, end=0.0) for share in (gamma, 1.0))
    out = batch.precision.out
    largest = torch.finfo(out).max
    kept = (x.clamp(-largest, largest).to(out) for x in (returns, to_go))
    total, rest = (layout.restore(x) for x in kept)
    return total, rest, layout.restore(first), layout.restore(scored)


def _read_ids(where: str, argument: str, ids: ArrayLike, batch: Rewards) -> Int64[Tensor, " n"]:
    try:
        return read_group_ids(where, ids, batch.values.shape[0], batch.values.device)
    except InputError as error:
        raise InputError(str(error).replace("group_ids", argument)) from error


def _pair(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """One id for each pair of ids."""
    return _dense(a) * a.shape[0] + _dense(b)


def _dense(ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Ids as ranks below n."""
    ascending, order = ids.sort()
    rank = torch.nn.functional.pad(ascending.diff().ne(0).cumsum(0), (1, 0))
    return torch.empty_like(rank).scatter_(0, order, rank)
