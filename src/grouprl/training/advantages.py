"""From a step's scores to advantages, by the run's estimator: what it is given, its state, what is recorded of it."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.advantages import Estimator
from grouprl.advantages.specs import full_options, option_names
from grouprl.errors import ConfigError, EstimatorError, InputError, RunError
from grouprl.tasks import Scores, Task
from grouprl.training.config import Config
from grouprl.training.estimators import needs_critic
from grouprl.training.metrics import group_numbers, rewards_tensor
from grouprl.training.sampling import OVERLONG
from grouprl.types import Group


@dataclass(frozen=True)
class Batch:
    """What an estimator is called with, one entry a completion.

    Args:
        rewards: float64, NaN where unscored.
        group_numbers: The number of its group in the step.
        prompt_ids: Its prompt, the same from step to step.
        lengths: Its trained tokens.
        components: Each reward's own score, before weights, NaN where it gave none.
        greedy_rewards: The reward of its prompt's greedy completion, NaN where unscored; None where not sampled.
    """

    rewards: Float[Tensor, " n"]
    group_numbers: Tensor
    prompt_ids: Sequence[str]
    lengths: Tensor
    components: Mapping[str, Float[Tensor, " n"]]
    greedy_rewards: Float[Tensor, " n"] | None = None

    @classmethod
    def of(cls, groups: Sequence[Group], scores: Scores, greedy: Scores | None) -> Batch:
        """A step's batch; `greedy` holds one score a group."""
        numbers = group_numbers(groups)
        completions = [c for group in groups for c in group.completions]
        return cls(
            rewards_tensor(scores.rewards),
            numbers,
            [group.prompt.prompt_id for group in groups for _ in group.completions],
            torch.tensor([sum(c.loss_mask) for c in completions], dtype=torch.long),
            {name: _numbers(values) for name, values in scores.components.items()},
            None if greedy is None else rewards_tensor(greedy.rewards)[numbers],
        )


@dataclass(frozen=True)
class Result:
    """A step's advantages.

    Args:
        advantages: (N,), float32, finite.
        columns: Of the rollouts file: what the estimator looked at that no other column holds.
    """

    advantages: Float[Tensor, " n"]
    columns: dict[str, list[float | None]] = field(default_factory=dict)


class Advantages:
    """A run's estimator with its options and, where it has one, its state.

    Args:
        estimator: What `load_estimator` gives for the configuration.
        config: Its options, and the shape of a step.
        task: Its rewards' weights and highest reward go to estimators that ask for them.

    Raises:
        ConfigError: It fails on made-up rewards: an option of the wrong type or range, say.
    """

    def __init__(self, estimator: Estimator, config: Config, task: Task) -> None:
        self.estimator, self.name = estimator, estimator.name
        self.notes: list[str] = []
        from_task = _from_task(estimator, task, config)
        if "max_reward" in from_task:
            self.notes.append(
                f"{self.name}: max_reward is {task.success_reward:g}, the task's success_reward; "
                "--estimator-option max_reward=… sets another"
            )
        self._given = {**config.advantage.options, **from_task}
        self._try_out(config, task)
        self.options = full_options(self.estimator, self._given)
        self._call = self.estimator.start(**self._given)
        self.state = self._state_text() if self.stateful else None
        """After the last whole step, as JSON; None for an estimator without."""

    @property
    def stateful(self) -> bool:
        """Whether it remembers earlier steps."""
        return self.estimator.scope == "stateful"

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt needs a greedy completion."""
        return "greedy_rewards" in self.estimator.needs

    @property
    def needs_critic(self) -> bool:
        """Whether a critic gives it values, and it advantages of tokens: see `training.critic`."""
        return needs_critic(self.estimator)

    @property
    def skips_without_spread(self) -> bool:
        """Whether a group without spread has no gradient."""
        return "equal_is_zero" in self.estimator.laws

    def __call__(self, batch: Batch, *, step: int) -> Result:
        """Advantages of one step; a stateful estimator learns from it.

        Raises:
            EstimatorError: It raised, or returned anything but N finite numbers.
        """
        advantages = self._checked(self._call, batch, f"at step {step}")
        columns: dict[str, list[float | None]] = {}
        if "lengths" in self.estimator.needs:
            columns["trained_tokens"] = batch.lengths.tolist()
        if self.needs_greedy and batch.greedy_rewards is not None:
            columns["greedy_reward"] = [None if math.isnan(r) else r for r in batch.greedy_rewards.tolist()]
        return Result(advantages, columns)

    def above_max_reward(self, rewards: Sequence[float | None]) -> float | None:
        """The largest reward, where it is above the highest that the estimator was told of."""
        if "max_reward" not in self.estimator.needs:
            return None
        largest = max((r for r in rewards if r is not None), default=None)
        return largest if largest is not None and largest > self.options["max_reward"] else None

    def commit(self) -> None:
        """The step is done and recorded: its state is what a checkpoint is to hold."""
        if self.stateful:
            self.state = self._state_text()

    def load_state(self, text: str) -> None:
        """Take over a state that `state` gave.

        Raises:
            RunError: The estimator cannot read it.
        """
        try:
            self._call.load_state_dict(json.loads(text))  # type: ignore[attr-defined]
        except Exception as error:
            raise RunError(
                f"estimator {self.name!r}: its state cannot be read ({_described(error)}), expected what its "
                "state_dict gave; restore its code as it was, or start a new run"
            ) from error
        self.state = self._state_text()

    def _state_text(self) -> str:
        try:
            return json.dumps(self._call.state_dict())  # type: ignore[attr-defined]
        except Exception as error:
            raise EstimatorError(
                f"estimator {self.name!r}: it is stateful and its state cannot be saved ({_described(error)}), "
                "expected state_dict() to give what JSON can hold, and load_state_dict(state) to take it; add both"
            ) from error

    def _checked(self, call: Any, batch: Batch, when: str) -> Tensor:
        needs, n = self.estimator.needs, len(batch.rewards)
        data: dict[str, Any] = {
            "lengths": batch.lengths,
            "components": batch.components,
            "greedy_rewards": batch.greedy_rewards,
        }
        ids: Any = list(batch.prompt_ids) if self.stateful else batch.group_numbers
        where, expected = f"estimator {self.name!r}", f"expected {n} finite numbers, one a completion"
        try:
            given = call(batch.rewards.clone(), ids, **{k: v for k, v in data.items() if k in needs})
        except InputError as error:
            raise EstimatorError(f"{where}: {when}: {error}") from error
        except Exception as error:
            raise EstimatorError(f"{where}: raised {_described(error)} {when}, {expected}") from error
        try:
            advantages = torch.as_tensor(given).detach().cpu().double()
        except (TypeError, ValueError, RuntimeError) as error:
            raise EstimatorError(
                f"{where}: returned a {type(given).__name__} {when}, {expected}, in a tensor"
            ) from error
        if advantages.shape != (n,):
            raise EstimatorError(f"{where}: returned shape {tuple(advantages.shape)} {when}, {expected}")
        unscored = batch.rewards.isnan()
        advantages = torch.where(unscored, 0.0, advantages)  # the loss leaves them out
        for i in (~advantages.isfinite()).nonzero()[:1].flatten().tolist():
            hint = "; an unscored reward is NaN, and is to be left out" if unscored.any() else ""
            raise EstimatorError(
                f"{where}: returned {advantages[i]:g} {when} for completion {i}, whose reward is "
                f"{batch.rewards[i]:g}, {expected}{hint}"
            )
        largest = torch.finfo(torch.float32).max
        return advantages.clamp(-largest, largest).float()

    def _try_out(self, config: Config, task: Task) -> None:
        """Call it once on made-up rewards of a step's shape, so that what cannot work fails before the run."""
        size, prompts = (
            config.sampling.train_group_size or config.rollout.group_size,
            config.rollout.prompts_per_step,
        )
        high = self._given.get("max_reward", 1.0)
        if isinstance(high, bool) or not isinstance(high, int | float):
            raise ConfigError(
                f"estimator {self.name!r}: max_reward is {high!r}, expected a number; pass a float"
            )
        batch = _made_up(prompts, size, high, [r.name for r in task.rewards])
        if config.sampling.overlong_buffer_tokens:
            batch = _punished(batch, config.sampling.overlong_penalty)
        try:
            self._call = self.estimator.start(**self._given)
            if self.needs_critic:
                self._call([[0.0, high]], [[0.0, 0.0]])
                return
            if self.stateful:
                self.load_state(self._state_text())
            advantages = self._checked(self._call, batch, "on made-up rewards before the run")
        except (EstimatorError, RunError) as error:
            raise ConfigError(str(error)) from error
        except InputError as error:  # a stateful one reads its options where it is made
            raise ConfigError(f"estimator {self.name!r}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"estimator {self.name!r}: making it raised {_described(error)}, expected it to take its options; "
                "correct [advantage.options], or the estimator"
            ) from error
        if advantages.any():
            return
        said = f"{self.name}: every advantage is 0 on made-up rewards"
        if size == 1:
            raise ConfigError(
                f"rollout.group_size is 1 with {prompts} prompts a step, expected more with estimator {said}; nothing "
                "could be learned"
            )
        self.notes.append(f"{said}, half of them high and half low; look at its options")


def _from_task(estimator: Estimator, task: Task, config: Config) -> dict[str, Any]:
    """What an estimator asks of the task that the options do not say."""
    found: dict[str, Any] = {}
    if "max_reward" in estimator.needs:
        found["max_reward"] = float(task.success_reward)
    if "components" in estimator.needs and "weights" in option_names(estimator):
        found["weights"] = {reward.name: float(reward.weight) for reward in task.rewards}
        if config.sampling.overlong_buffer_tokens:
            found["weights"][OVERLONG] = 1.0
    return {name: value for name, value in found.items() if name not in config.advantage.options}


def _made_up(prompts: int, size: int, high: float, components: Sequence[str]) -> Batch:
    """Rewards that differ within and between groups, against greedy ones in between."""
    i, low = torch.arange(prompts * size), 0.0 if high > 0 else high - 1.0
    rewards = torch.where(i % 2 == 1, high, low).double()
    return Batch(
        rewards,
        i // size,
        [f"prompt {k // size}" for k in range(len(i))],
        i % 3 + 1,
        {name: rewards.clone() for name in components},
        torch.full_like(rewards, (low + high) / 2),
    )


def _punished(batch: Batch, most: float) -> Batch:
    """As soft overlong punishment leaves it: some completions none, half and all of it."""
    penalty = -most * (torch.arange(len(batch.rewards)) % 3).double() / 2
    return replace(batch, rewards=batch.rewards + penalty, components={**batch.components, OVERLONG: penalty})


def _numbers(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)


def _described(error: BaseException) -> str:
    """The exception and where it was raised, on one line."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text[:240]} ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else text[:240]
