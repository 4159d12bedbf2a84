"""Sampling and scoring over the ranks of a run: what each rank does, and how all get all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import torch

from grouprl.policy import EncodedPrompt, Policy
from grouprl.policy.lora import merged_parameters
from grouprl.rollout import Draw, Engine
from grouprl.tasks import Reward, Scores, score
from grouprl.training.ranks import Ranks
from grouprl.types import Group


class DealtEngine:
    """An engine on each rank, as one. A rank samples a contiguous share of the prompts, whole groups, maybe none.

    To its engine the prompts of the ranks before it are `earlier` ones, so that ids and randomness are those of one
    process.

    Args:
        engine: This rank's.
        ranks: All get the groups of all, in the order of the prompts.
    """

    def __init__(self, engine: Engine, ranks: Ranks) -> None:
        self._engine, self._ranks = engine, ranks

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """See `Engine.generate`; progress is told of this rank's share."""
        mine = self._ranks.share(len(prompts))

        def act() -> list[Group]:
            before = [*earlier, *prompts[: mine.start]]
            return (
                self._engine.generate(prompts[mine.start : mine.stop], earlier=before, **draw) if mine else []
            )

        return [group for groups in self._ranks.each(act) for group in groups]

    def take_weights(self, policy: Policy) -> None:
        """See `Engine.take_weights`; of sharded weights collective."""
        self._engine.take_weights(policy)

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


class FirstEngine:
    """One engine for all ranks, which rank 0 has: a server, say.

    Args:
        make: Makes it, for the policy whose weights it will be handed. Called on rank 0 alone.
        policy: What is trained, its weights still whole.
        ranks: All get the groups.
        copy: Where the weights are going to be shared out over the ranks: the type in which rank 0 keeps a whole copy
            to hand over. None where they stay whole.
    """

    def __init__(
        self,
        make: Callable[[Policy], Engine],
        policy: Policy,
        ranks: Ranks,
        *,
        copy: torch.dtype | None = None,
    ) -> None:
        self._ranks = ranks
        self._copy = policy.copy(copy) if copy is not None and ranks.first else None
        self._made: list[Engine] = []  # one, on rank 0
        ranks.from_first(lambda: self._made.append(make(self._copy or policy)))

    def generate(
        self, prompts: Sequence[EncodedPrompt], *, earlier: Sequence[EncodedPrompt] = (), **draw: Unpack[Draw]
    ) -> list[Group]:
        """See `Engine.generate`."""
        return self._ranks.from_first(lambda: self._made[0].generate(prompts, earlier=earlier, **draw))

    def take_weights(self, policy: Policy) -> None:
        """See `Engine.take_weights`; of sharded weights collective."""
        if self._copy is not None:
            self._copy.take_weights(policy)
        elif policy.sharded:
            for _ in merged_parameters(policy.model):  # rank 0 puts them together
                pass
        self._ranks.from_first(lambda: self._made[0].take_weights(self._copy or policy))

    def close(self) -> None:
        """See `Engine.close`."""
        for engine in self._made:
            engine.close()


def score_groups(
    ranks: Ranks,
    rewards: Sequence[Reward],
    groups: Sequence[Group],
    *,
    on_error: Literal["raise", "abstain"] = "raise",
) -> Scores:
    """The scores of groups that every rank has, on every rank those of all. A rank scores its own share, so that slow
    rewards take less time; a reward function is called with the completions of one rank. See `tasks.score`."""
    mine = ranks.share(len(groups))

    def act() -> Scores | None:
        part = groups[mine.start : mine.stop]
        return score(rewards, part, on_error=on_error) if part or not ranks.several else None

    parts = [part for part in ranks.each(act) if part is not None]
    return Scores.joined(parts) if len(parts) != 1 else parts[0]
