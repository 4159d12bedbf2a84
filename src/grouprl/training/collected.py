"""What was sampled in a step, what of it is trained on, and its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from grouprl.tasks import Scores
from grouprl.training.metrics import group_numbers
from grouprl.training.statistics import mean
from grouprl.types import Group

WITHOUT_SPREAD = ("all_high", "all_low", "single", "unscored")
"""Why dynamic sampling drops a group, as `grouprl.sampling.informative` counts them."""

DOWN_SAMPLED = "down_sampled"
"""Why a completion of a group that is trained on is left out."""


@dataclass(frozen=True)
class Collected:
    """What was sampled in a step, and what of it is trained on. One entry a completion where not said otherwise.

    Args:
        groups: All that were sampled, in the order they were drawn.
        scores: Their rewards as advantages are made of them, shaping included.
        correctness: Their rewards before shaping.
        dropped: Why it is not trained on; None where it is.
        rounds: Rounds of prompts that were drawn.
        position: Prompts visited after this step.
        skipped: Prompts passed over, by reason.
        resampling_s: Seconds spent in rounds after the first.
    """

    groups: list[Group]
    scores: Scores
    correctness: list[float | None]
    dropped: list[str | None]
    rounds: int
    position: int
    skipped: Counter[str]
    resampling_s: float

    @cached_property
    def kept(self) -> list[int]:
        """The completions that are trained on, by their number."""
        return [i for i, reason in enumerate(self.dropped) if reason is None]

    @cached_property
    def used_groups(self) -> list[Group]:
        """The groups that are trained on, with the completions that are."""
        used, first = [], 0
        for group in self.groups:
            reasons = self.dropped[first : first + len(group.completions)]
            first += len(group.completions)
            chosen = tuple(c for c, reason in zip(group.completions, reasons) if reason is None)
            if chosen:
                used.append(replace(group, completions=chosen))
        return used

    @cached_property
    def used_scores(self) -> Scores:
        """Their scores."""
        return self.scores.take(self.kept)

    def over_all(self, values: Sequence[Any]) -> list[Any]:
        """Values of the completions that are trained on, with None for the others in between."""
        whole: list[Any] = [None] * len(self.dropped)
        for i, value in zip(self.kept, values, strict=True):
            whole[i] = value
        return whole

    def with_used_rewards(self, rewards: Sequence[float | None]) -> Collected:
        """With other rewards for the completions that are trained on: what their advantages were computed from."""
        whole = list(self.scores.rewards)
        for i, reward in zip(self.kept, rewards, strict=True):
            whole[i] = reward
        return replace(self, scores=replace(self.scores, rewards=whole))

    def groups_dropped(self, reason: str) -> int:
        """How many whole groups were dropped for a reason."""
        numbers = group_numbers(self.groups).tolist()
        return len({number for number, why in zip(numbers, self.dropped) if why == reason})


def sampling_metrics(collected: Collected, *, prompts: int) -> dict[str, Any]:
    """What of the sampled groups is trained on, what was dropped and why, and where the run stands in its prompts."""
    lengths = [len(c.token_ids) for group in collected.groups for c in group.completions]
    rewards = [r for r in collected.used_scores.rewards if r is not None]
    return {
        "sampling_rounds": collected.rounds,
        "groups_used": len(collected.used_groups),
        **{f"groups_dropped_{reason}": collected.groups_dropped(reason) for reason in WITHOUT_SPREAD},
        "completions_used": len(collected.kept),
        "completions_down_sampled": collected.dropped.count(DOWN_SAMPLED),
        "tokens_dropped": sum(lengths) - sum(lengths[i] for i in collected.kept),
        "used_reward_mean": mean(rewards),
        "prompts_skipped_solved": collected.skipped["solved"],
        "prompts_skipped_unsolved": collected.skipped["unsolved"],
        "epochs": collected.position / prompts,
        "seconds_resampling": collected.resampling_s,
    }
