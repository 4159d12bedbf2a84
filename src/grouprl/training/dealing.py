"""Sampling and scoring dealt out over the ranks, whole groups, and put together again in the order of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from grouprl.policy import EncodedPrompt
from grouprl.rollout import Engine, Sampling
from grouprl.tasks import Reward, Scores, score
from grouprl.training.ranks import Ranks
from grouprl.types import Group


def sample_groups(
    ranks: Ranks,
    engine: Engine,
    prompts: Sequence[EncodedPrompt],
    *,
    group_size: int,
    sampling: Sampling,
    seed: int,
    stream: str,
    earlier: Sequence[EncodedPrompt] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Group]:
    """A group for each prompt, on every rank those of all. See `rollout.generate`.

    A rank samples a contiguous share of the prompts, maybe none. To its engine the prompts of the ranks before it are
    `earlier` ones, so that ids and randomness are those of one process.
    """
    mine = ranks.share(len(prompts))

    def act() -> list[Group]:
        if not mine:
            return []
        return engine.generate(
            prompts[mine.start : mine.stop],
            group_size=group_size,
            sampling=sampling,
            seed=seed,
            stream=stream,
            earlier=[*earlier, *prompts[: mine.start]],
            progress=progress,
        )

    return [group for groups in ranks.each(act) for group in groups]


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
