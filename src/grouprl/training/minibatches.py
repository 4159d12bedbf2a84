"""Which completions an optimizer step sees, what its loss is divided by, and in which micro-batches it runs.

    rollout batch  →  mini-batches: whole groups, one optimizer step each  →  micro-batches: what fits the memory

The first cut is part of the objective: a mini-batch's loss is divided by the mini-batch's own count. The second is
not: loss and gradient do not depend on it. On several ranks a mini-batch's completions are dealt out between the two,
and each rank cuts its own share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives import filter_overlong, loss_denominator
from grouprl.policy import Policy, Rows, plan_micro_batches
from grouprl.policy.rows import Member, longest_sequence
from grouprl.training.config import Config, ObjectiveConfig
from grouprl.training.memory import MOST
from grouprl.training.ranks import Ranks
from grouprl.types import Group


@dataclass(frozen=True)
class MicroBatch:
    """What runs in one forward and backward.

    Args:
        members: Its completions, in the order of `rows.indices`.
        rows: The same in tensors.
    """

    members: Sequence[Member]
    rows: Rows

    @cached_property
    def sampler_logprobs(self) -> Float[Tensor, "completions tokens"]:
        """What the sampler said of each token, in nats; 0 behind a completion's end."""
        sampler = torch.zeros(self.rows.completion_mask.shape)
        for k, (_, _, completion) in enumerate(self.members):
            sampler[k, : len(completion.logprobs)] = torch.tensor(completion.logprobs)
        return sampler.to(self.rows.completion_mask.device)


@dataclass(frozen=True)
class MiniBatch:
    """The groups of one optimizer step.

    Args:
        micro_batches: The completions whose gradient this rank computes.
        idle: Forwards to take part in without a share of the loss, where the weights are sharded and another rank has
            more micro-batches: its forward needs this rank's weights.
        completions: How many all ranks compute the gradient of.
        denominator: What the loss is divided by: all that counts, whether or not its gradient is computed.
        scored: Completions with a reward.
        filtered: Scored completions that `overlong_filter` took out.
        trainable: Whether a scored completion is left with a trained token. Without one there is no step to make.
    """

    micro_batches: Sequence[MicroBatch]
    idle: Sequence[MicroBatch]
    completions: int
    denominator: int
    scored: int
    filtered: int
    trainable: bool


def reaches_every_completion(objective: ObjectiveConfig) -> bool:
    """Whether a completion with advantage 0 has a gradient: a term of the loss does not depend on advantages."""
    return (objective.beta > 0 and objective.kl_in == "loss") or objective.entropy_weight > 0


def plan_mini_batches(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Float[Tensor, " n"],
    scored: Sequence[bool],
    config: Config,
    ranks: Ranks | None = None,
) -> list[MiniBatch]:
    """Cut a batch of groups into mini-batches of whole groups, in order and as even as it goes, the larger first.

    In a mini-batch

    - an unscored completion is out of numerator and denominator;
    - one that was cut off loses its tokens with `overlong_filter` and keeps its place among the completions;
    - a group in which every advantage is 0 counts, unless denominator = "informative": then it is out of both, KL
      and entropy included;
    - a completion with advantage 0 is not run where its gradient is 0: without KL in the loss and entropy bonus.

    Args:
        policy: Its device, and whether it can share prompts.
        groups: The batch.
        advantages: (N,), groups in order, completions in order.
        scored: (N,), whether the completion has a reward.
        config: Objective, most tokens of a completion and micro-batch size are read.
        ranks: All plan alike, on the whole batch, and each keeps the micro-batches of its share; by default one.

    Returns:
        `mini_batches` of them, or one for each group where there are fewer groups.
    """
    values, members = advantages.tolist(), number_members(groups)
    plans, start = [], 0
    for part in split_evenly(len(groups), config.objective.mini_batches):
        size = sum(len(groups[g].completions) for g in part)
        mine = members[start : start + size]
        start += size
        plans.append(_plan(policy, mine, values, scored, config, ranks or Ranks()))
    return plans


def number_members(groups: Sequence[Group]) -> list[Member]:
    """Every completion with its place in the batch."""
    return [(i, group, c) for i, (group, c) in enumerate((g, c) for g in groups for c in g.completions)]


def split_evenly(count: int, parts: int) -> list[range]:
    """0 … count − 1 in order, in at most `parts` ranges, none empty, whose lengths differ by one at most.

    >>> split_evenly(5, 2), split_evenly(2, 3)
    ([range(0, 3), range(3, 5)], [range(0, 1), range(1, 2)])
    """
    parts = min(parts, count)
    ends = [0]
    for k in range(parts):
        ends.append(ends[-1] + count // parts + (k < count % parts))
    return [range(a, b) for a, b in pairwise(ends)]


def deal(members: Sequence[Member], parts: int) -> list[list[Member]]:
    """Completions in shares of about as many tokens, each in order; none empty where there are as many completions.

    Groups go whole, the largest first, to the share with the fewest tokens. Where there are fewer groups than shares,
    the largest is cut in two until there are enough.
    """
    if parts == 1:
        return [list(members)]
    units: dict[int, list[Member]] = {}
    for member in members:
        units.setdefault(id(member[1]), []).append(member)
    pieces = list(units.values())
    while len(pieces) < parts and any(len(piece) > 1 for piece in pieces):
        largest = max((piece for piece in pieces if len(piece) > 1), key=_tokens)
        at, half = pieces.index(largest), (len(largest) + 1) // 2
        pieces[at : at + 1] = [largest[:half], largest[half:]]
    shares: list[list[Member]] = [[] for _ in range(parts)]
    used = [0] * parts
    for piece in sorted(pieces, key=_tokens, reverse=True):
        least = used.index(min(used))
        shares[least] += piece
        used[least] += _tokens(piece)
    return [sorted(share, key=lambda member: member[0]) for share in shares]


def _tokens(members: Sequence[Member]) -> int:
    """Tokens that run where the prompt is shared."""
    return len(members[0][1].prompt_token_ids) + sum(len(c.token_ids) for _, _, c in members)


def cut_micro_batches(policy: Policy, members: Sequence[Member], config: Config) -> Iterator[MicroBatch]:
    """Completions in micro-batches of at most `micro_batch_tokens`, as tensors on the policy's device."""
    share_prefix = policy.can_share(longest_sequence(members))
    for rows in _plan_rows(members, config, share_prefix):
        yield MicroBatch([m for row in rows for m in row], policy.rows(rows, share_prefix=share_prefix))


def _plan_rows(members: Sequence[Member], config: Config, share_prefix: bool) -> list[list[list[Member]]]:
    most = config.micro_batch_tokens or MOST["cpu"]
    return plan_micro_batches(members, micro_batch_tokens=most, share_prefix=share_prefix)


def _idle(policy: Policy, shares: Sequence[Sequence[Member]], config: Config, rank: int) -> list[MicroBatch]:
    """One of the shortest completions, as often as the busiest rank has more micro-batches than this one."""
    counts = [
        len(_plan_rows(share, config, policy.can_share(longest_sequence(share)))) if share else 0
        for share in shares
    ]
    missing = max(counts) - counts[rank]
    if not missing:
        return []
    shortest = min((m for share in shares for m in share), key=lambda m: _tokens([m]))
    return list(cut_micro_batches(policy, [shortest], config)) * missing


def _plan(
    policy: Policy,
    members: Sequence[Member],
    values: Sequence[float],
    scored: Sequence[bool],
    config: Config,
    ranks: Ranks,
) -> MiniBatch:
    objective = config.objective
    with_signal = {id(group) for i, group, _ in members if scored[i] and values[i] != 0}
    counts = [
        scored[i] and (objective.denominator == "all" or id(group) in with_signal) for i, group, _ in members
    ]
    mask = loss_masks(members)
    rewarded = torch.tensor([scored[i] for i, _, _ in members], dtype=torch.bool)
    before = mask.any(dim=1) & rewarded
    if objective.overlong_filter:
        mask = filter_overlong(mask, [c.finish_reason for _, _, c in members])
    trained = mask.any(dim=1) & rewarded
    everywhere = reaches_every_completion(objective)
    active = [
        m
        for m, counted, kept in zip(members, counts, trained.tolist())
        if counted and kept and (everywhere or values[m[0]] != 0)
    ]
    denominator = loss_denominator(
        mask,
        objective.aggregation,
        counted=torch.tensor(counts, dtype=torch.bool),
        max_tokens=config.rollout.max_new_tokens,
    )
    shares = deal(active, ranks.size)
    return MiniBatch(
        micro_batches=list(cut_micro_batches(policy, shares[ranks.rank], config)),
        idle=_idle(policy, shares, config, ranks.rank) if policy.sharded else [],
        completions=len(active),
        denominator=int(denominator),
        scored=int(rewarded.sum()),
        filtered=int((before & ~trained).sum()),
        trainable=bool(trained.any()),
    )


def loss_masks(members: Sequence[Member]) -> Bool[Tensor, "completions tokens"]:
    """Which tokens are trained, a completion a row."""
    width = max((len(c.token_ids) for _, _, c in members), default=0)
    mask = torch.zeros(len(members), width, dtype=torch.bool)
    for k, (_, _, completion) in enumerate(members):
        mask[k, : len(completion.loss_mask)] = torch.tensor(completion.loss_mask)
    return mask
