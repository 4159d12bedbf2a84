"""From the next prompts to scored groups, and what of them is trained on: dynamic sampling, punishment, selection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from grouprl.objectives.overlong import soft_overlong_penalty
from grouprl.policy import EncodedPrompt
from grouprl.rollout import Engine, Sampling
from grouprl.sampling import informative, max_variance
from grouprl.tasks import Scores, Task
from grouprl.training.clock import Clock
from grouprl.training.collected import DOWN_SAMPLED, WITHOUT_SPREAD, Collected
from grouprl.training.config import Config, SamplingConfig, sampling_of
from grouprl.training.curriculum import Curriculum
from grouprl.training.dealing import score_groups
from grouprl.training.events import Listener
from grouprl.training.metrics import group_numbers, rewards_tensor
from grouprl.training.prompts import draw_prompts
from grouprl.training.ranks import Ranks
from grouprl.training.sampling import OVERLONG, overlong_buffer
from grouprl.types import Group


class Collector:
    """Samples and scores a run's groups.

    Args:
        config: rollout, sampling and seed are read.
        task: Its rewards score.
        engine: What completions are drawn from.
        prompts: To train on.
        curriculum: Which of them to pass over; learns from what is sampled.
        listener: Told of the progress.
        ranks: Over which scoring is dealt out, as the engine deals out sampling; by default this process alone.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        engine: Engine,
        prompts: Sequence[EncodedPrompt],
        *,
        curriculum: Curriculum,
        listener: Listener,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.task, self.engine, self.prompts = config, task, engine, prompts
        self.curriculum, self.listener = curriculum, listener
        self.ranks = ranks or Ranks()
        self.sampling = sampling_of(config)

    def collect(self, *, step: int, position: int, clock: Clock) -> Collected:
        """A step's groups.

        Groups without spread in correctness are replaced by groups of the prompts that follow, until there are
        prompts_per_step with spread or the rounds are spent. A later round draws as many prompts as are missing,
        divided by the share of groups with spread so far, but no more than prompts_per_step; what it brings beyond
        prompts_per_step is trained on as well, so nothing that was paid for is thrown away.

        Raises:
            RewardError: A reward function raised.
        """
        wanted, config = self.config.rollout.prompts_per_step, self.config.sampling
        drawn: list[EncodedPrompt] = []
        groups: list[Group] = []
        parts: list[Scores] = []
        kinds: list[str] = []
        skipped: Counter[str] = Counter()
        first_round_done = time.perf_counter()
        while count := self._to_draw(wanted, kinds, rounds=len(parts)):
            next_ = draw_prompts(
                self.prompts,
                position=position,
                count=count,
                seed=self.config.seed,
                skip=self._skip if self.curriculum.on else None,
            )
            fresh = self._generate(next_.prompts, stream=f"train/{step}", earlier=drawn)
            clock.lap("rollout")
            self.listener.stage("reward", 0, len(fresh))
            parts.append(self._score(fresh))
            clock.lap("reward")
            blocks = _by_group(parts[-1].rewards, fresh)
            found = [self._kind(block) for block in blocks]
            for prompt, epoch, block, kind in zip(next_.prompts, next_.epochs, blocks, found):
                self._remember(prompt, epoch, block, spread=kind == "informative")
            kinds += found
            drawn, groups, position = [*drawn, *next_.prompts], [*groups, *fresh], next_.position
            skipped += next_.skipped
            if len(parts) == 1:
                first_round_done = time.perf_counter()
        scores = Scores.joined(parts)
        correctness = scores.rewards
        if config.overlong_buffer_tokens:
            scores = self._punished(scores, groups)
        return Collected(
            groups=groups,
            scores=scores,
            correctness=correctness,
            dropped=_dropped(groups, kinds, scores, config),
            rounds=len(parts),
            position=position,
            skipped=skipped,
            resampling_s=time.perf_counter() - first_round_done if len(parts) > 1 else 0.0,
        )

    def greedy(self, groups: Sequence[Group], *, step: int, clock: Clock) -> Scores:
        """The scores of one greedy completion for the prompt of each group."""
        sampling = self.sampling
        greedy = self._generate(
            [EncodedPrompt(g.prompt, g.prompt_text, g.prompt_token_ids) for g in groups],
            stream=f"greedy/{step}",
            group_size=1,
            sampling=Sampling(temperature=0.0, max_new_tokens=sampling.max_new_tokens, stop=sampling.stop),
        )
        scores = self._score(greedy)
        if self.config.sampling.overlong_buffer_tokens:
            scores = self._punished(scores, greedy)
        clock.lap("greedy")
        return scores

    def _generate(
        self,
        prompts: Sequence[EncodedPrompt],
        *,
        stream: str,
        group_size: int | None = None,
        sampling: Sampling | None = None,
        earlier: Sequence[EncodedPrompt] = (),
    ) -> list[Group]:
        return self.engine.generate(
            prompts,
            group_size=group_size or self.config.rollout.group_size,
            sampling=sampling or self.sampling,
            seed=self.config.seed,
            stream=stream,
            earlier=earlier,
            progress=lambda done, total: self.listener.stage("rollout", done, total),
        )

    def _score(self, groups: Sequence[Group]) -> Scores:
        return score_groups(self.ranks, self.task.rewards, groups, on_error=self.config.on_reward_error)

    def _to_draw(self, wanted: int, kinds: Sequence[str], *, rounds: int) -> int:
        """How many prompts the next round draws; 0 where there is none."""
        if not rounds:
            return wanted
        found = sum(kind == "informative" for kind in kinds)
        if rounds >= self.config.sampling.max_sampling_rounds or found >= wanted:
            return 0
        return min(wanted, -(-(wanted - found) * len(kinds) // found)) if found else wanted

    def _kind(self, correctness: Sequence[float | None]) -> str:
        """What a group is, as `informative` counts it."""
        rewards = rewards_tensor(correctness)
        counts = informative(rewards, high=self.task.success_reward)
        return next((kind for kind in WITHOUT_SPREAD if getattr(counts, kind)), "informative")

    def _skip(self, prompt: EncodedPrompt, epoch: int) -> str | None:
        return self.curriculum.skips(prompt.prompt.prompt_id, epoch)

    def _remember(
        self, prompt: EncodedPrompt, epoch: int, correctness: Sequence[float | None], *, spread: bool
    ) -> None:
        scored = [reward for reward in correctness if reward is not None]
        right = sum(reward >= self.task.success_reward for reward in scored)
        self.curriculum.saw(prompt.prompt.prompt_id, epoch, right=right, scored=len(scored), spread=spread)

    def _punished(self, scores: Scores, groups: Sequence[Group]) -> Scores:
        """With the soft overlong punishment in the rewards, and as a component of its own."""
        lengths = [len(c.token_ids) for group in groups for c in group.completions]
        penalties = soft_overlong_penalty(
            torch.tensor(lengths, dtype=torch.long),
            max_tokens=self.config.rollout.max_new_tokens,
            buffer_tokens=overlong_buffer(self.config),
            factor=self.config.sampling.overlong_penalty,
        ).tolist()
        rewards = [None if r is None else r + penalty for r, penalty in zip(scores.rewards, penalties)]
        return replace(scores, rewards=rewards, components={**scores.components, OVERLONG: penalties})


def _dropped(
    groups: Sequence[Group], kinds: Sequence[str], scores: Scores, config: SamplingConfig
) -> list[str | None]:
    """Why each completion is not trained on, None where it is."""
    dynamic = config.max_sampling_rounds > 1
    dropped: list[str | None] = [
        kind if dynamic and kind != "informative" else None
        for group, kind in zip(groups, kinds)
        for _ in group.completions
    ]
    if config.train_group_size:
        numbers = group_numbers(groups)
        keep = max_variance(rewards_tensor(scores.rewards), numbers, size=config.train_group_size).tolist()
        dropped = [why or (None if kept else DOWN_SAMPLED) for why, kept in zip(dropped, keep)]
    return dropped


def _by_group(values: Sequence[float | None], groups: Sequence[Group]) -> list[Sequence[float | None]]:
    blocks, first = [], 0
    for group in groups:
        blocks.append(values[first : first + len(group.completions)])
        first += len(group.completions)
    return blocks
