"""An advantage estimator inside another framework's trainer: whether it can run there, and one call of it.

The same for all frameworks. A framework says what its batches hold; an estimator that needs more is refused before
the run, and whatever it returns is checked.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.advantages import Estimator
from grouprl.advantages.registry import NEEDS, get, names
from grouprl.advantages.specs import (
    check_options,
    estimator_from_spec,
    full_options,
    option_names,
    option_parameters,
    parameters,
)
from grouprl.errors import ConfigError, EstimatorError, InputError, RunError

MEMORY = "a memory"
"""What a stateful estimator needs: prompts that are known again, and a place in the checkpoints."""


@dataclass(frozen=True)
class Batch:
    """What an estimator is called with, one entry a completion.

    Args:
        rewards: NaN or infinite where unscored.
        group_ids: Of its group in this batch, integers.
        prompt_ids: Its prompt, the same from batch to batch: a stateful estimator's memory goes by it.
        lengths: Its trained tokens; None where the estimator does not look at them.
        components: Each reward's own score by name, before weights, NaN where it gave none.
    """

    rewards: Float[Tensor, " n"]
    group_ids: Tensor
    prompt_ids: Sequence[str]
    lengths: Tensor | None = None
    components: Mapping[str, Float[Tensor, " n"]] | None = None


def as_estimator(
    given: str | Estimator | Callable[..., Any], *, where: str, lacking: Mapping[str, str]
) -> Estimator:
    """The estimator that a user gave, if it can run where `lacking` is not to be had.

    Args:
        given: A registered name, "file.py:function" of a registered one, an `Estimator`, or any function
            `(rewards, group_ids, **keywords) → advantages`. A function that is not registered is given what it
            names among its parameters (`lengths`, `components`).
        where: Begins the messages: "GRPOTrainer".
        lacking: What estimators may need, or `MEMORY`, and the framework does not have → why.

    Raises:
        ConfigError: No such estimator, or one that cannot run there.
    """
    estimator = _find(given, where)
    if estimator.scope == "token":
        raise ConfigError(
            f"{where}: estimator {estimator.name!r} looks at steps or tokens inside a completion, expected one "
            f"that takes one reward a completion; choose one of {_usable(lacking)}"
        )
    for need, why in lacking.items():
        if need in _needed(estimator):
            raise ConfigError(
                f"{where}: estimator {estimator.name!r} needs {need}, and {why}; choose one of {_usable(lacking)}"
            )
    return estimator


def _find(given: Any, where: str) -> Estimator:
    if isinstance(given, Estimator):
        return given
    if isinstance(given, str):
        try:
            return estimator_from_spec(given)
        except InputError as error:
            raise ConfigError(f"{where}: advantage_estimator: {error}") from error
    if not callable(given):
        raise ConfigError(
            f"{where}: advantage_estimator is a {type(given).__name__}, expected a name such as 'grpo', or a function "
            "(rewards, group_ids) → advantages"
        )
    for name in names():
        if get(name).function is given:
            return get(name)
    named = inspect.signature(given).parameters
    name = getattr(given, "__name__", type(given).__name__)
    return Estimator(name, given, summary="a function of one's own", needs=NEEDS & set(named))


def _usable(lacking: Collection[str]) -> str:
    every = map(get, names())
    return ", ".join(e.name for e in every if e.scope != "token" and not _needed(e) & set(lacking))


def _needed(estimator: Estimator) -> frozenset[str]:
    return estimator.needs | ({MEMORY} if estimator.scope == "stateful" else set())


class Estimating:
    """An estimator with its options and, where it has one, its state.

    Args:
        estimator: What `as_estimator` gave.
        options: Its keywords (`eps`, `convention`, `max_reward`, …).
        where: Begins the messages.
        option: How a missing one is given, with {name} in its place.

    Raises:
        ConfigError: An unknown or missing option, or it fails on made-up rewards.
    """

    def __init__(
        self,
        estimator: Estimator,
        options: Mapping[str, Any],
        *,
        where: str,
        option: str = "advantage_options={{'{name}': …}}",
    ) -> None:
        self.estimator, self.name, self._where, self._option = estimator, estimator.name, where, option
        self._check(options)
        self._given = dict(options)
        self._try_out()
        self._call = estimator.start(**self._given)

    @property
    def options(self) -> dict[str, Any]:
        """Those given and its defaults; called with them it gives the same numbers."""
        return full_options(self.estimator, self._given)

    @property
    def stateful(self) -> bool:
        """Whether it remembers earlier batches."""
        return self.estimator.scope == "stateful"

    def needs(self, what: str) -> bool:
        """Whether it looks at it: "lengths", "components"."""
        return what in self.estimator.needs

    def __call__(self, batch: Batch, *, learn: bool = True) -> Float[Tensor, " n"]:
        """Advantages, float32, on the rewards' device; 0 where a completion is unscored.

        Args:
            batch: The completions of all ranks, the same on each.
            learn: False leaves the state as it was, for an evaluation.

        Raises:
            EstimatorError: It raised, or returned anything but N finite numbers.
        """
        call = self._call if learn or not self.stateful else copy.deepcopy(self._call)
        return self._checked(call, batch)

    def state(self) -> Any:
        """What JSON can hold of its state; None for one without.

        Raises:
            EstimatorError: Its state cannot be saved.
        """
        if not self.stateful:
            return None
        try:
            return json.loads(json.dumps(self._call.state_dict()))  # type: ignore[attr-defined]
        except Exception as error:
            raise EstimatorError(
                f"{self._where}: estimator {self.name!r}: its state cannot be saved ({_described(error)}), expected "
                "state_dict() to give what JSON can hold; add it"
            ) from error

    def load_state(self, state: Any) -> None:
        """Take over what `state` gave.

        Raises:
            RunError: It cannot read it.
        """
        try:
            self._call.load_state_dict(state)  # type: ignore[attr-defined]
        except Exception as error:
            raise RunError(
                f"{self._where}: estimator {self.name!r}: its state cannot be read ({_described(error)}), expected "
                "what its state_dict gave; resume with the estimator that the checkpoint was written with"
            ) from error

    def _check(self, options: Mapping[str, Any]) -> None:
        check_options(self.estimator, options)
        where = f"{self._where}: estimator {self.name!r}"
        needed = [p.name for p in option_parameters(self.estimator) if p.default is p.empty]
        if "max_reward" in self.estimator.needs:
            needed.append("max_reward")
        for name in dict.fromkeys(needed):
            if name not in options:
                raise ConfigError(
                    f"{where}: option {name!r} is missing, expected a value as there is no default; give "
                    f"{self._option.format(name=name)}"
                )
        if self.stateful and any(p.name == "rewards" for p in parameters(self.estimator)):
            raise ConfigError(
                f"{where}: it is stateful and takes rewards at once, expected a class, or a function of its options "
                "alone, that makes what is called with rewards"
            )

    def _try_out(self) -> None:
        """Once on made-up rewards, so that what cannot work fails before the run."""
        try:
            call = self.estimator.start(**self._given)
        except InputError as error:
            raise ConfigError(f"{self._where}: estimator {self.name!r}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"{self._where}: estimator {self.name!r}: making it raised {_described(error)}, expected it to take "
                f"its options; correct {self._option.format(name='…')}"
            ) from error
        weights = self._given.get("weights")
        made_up = _made_up(list(weights) if isinstance(weights, Mapping) else ["reward"])
        try:
            self._checked(call, made_up, "on made-up rewards before the run")
        except EstimatorError as error:
            raise ConfigError(str(error)) from error

    def _checked(self, call: Callable[..., Any], batch: Batch, when: str = "") -> Tensor:
        n = len(batch.rewards)
        data = {"lengths": batch.lengths, "components": batch.components}
        ids: Any = list(batch.prompt_ids) if self.stateful else batch.group_ids
        where = f"{self._where}: estimator {self.name!r}"
        expected = f"expected {n} finite numbers, one a completion"
        when = f" {when}" if when else ""
        try:
            given = call(batch.rewards.clone(), ids, **{k: v for k, v in data.items() if self.needs(k)})
        except InputError as error:
            raise EstimatorError(f"{where}:{when and f'{when}:'} {error}") from error
        except Exception as error:
            raise EstimatorError(f"{where}: raised {_described(error)}{when}, {expected}") from error
        try:
            found = torch.as_tensor(given, device=batch.rewards.device).detach().float()
        except (TypeError, ValueError, RuntimeError) as error:
            raise EstimatorError(f"{where}: returned a {type(given).__name__}{when}, {expected}") from error
        if found.shape != (n,):
            raise EstimatorError(f"{where}: returned shape {tuple(found.shape)}{when}, {expected}")
        found = torch.where(batch.rewards.isfinite(), found, 0.0)
        if not bool(found.isfinite().all()):
            first = int((~found.isfinite()).nonzero()[0])
            raise EstimatorError(
                f"{where}: returned {found[first]:g}{when} for completion {first}, whose reward is "
                f"{batch.rewards[first]:g}, {expected}"
            )
        return found


def started(
    name: str, options: Mapping[str, Any], *, where: str, option: str, lacking: Mapping[str, str]
) -> Estimating:
    """A registered estimator for a trainer that calls it once a step: checked and tried out the first time alone.

    Args:
        name: In `grouprl.advantages`.
        options: Its keywords, plain values by name.
        where: As for `as_estimator`.
        option: As for `Estimating`.
        lacking: As for `as_estimator`.

    Raises:
        ConfigError: As for both, or options that are no plain values.
    """
    try:
        plain = json.dumps(dict(options), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: options cannot be read ({error}), expected plain values by name; give "
            f"{option.format(name='…')}"
        ) from error
    return _started(get(name), plain, where, option, tuple(sorted(lacking.items())))


@lru_cache(maxsize=64)
def _started(
    given: Estimator, options: str, where: str, option: str, lacking: tuple[tuple[str, str], ...]
) -> Estimating:
    estimator = as_estimator(given, where=where, lacking=dict(lacking))
    return Estimating(estimator, json.loads(options), where=where, option=option)


def with_weights(
    estimator: Estimator, options: Mapping[str, Any], weights: Mapping[str, float]
) -> dict[str, Any]:
    """The options, and the framework's own weights of the rewards for an estimator that takes them and has none."""
    if "components" in estimator.needs and "weights" in option_names(estimator):
        return {"weights": dict(weights), **options}
    return dict(options)


def _made_up(rewards_named: Sequence[str]) -> Batch:
    """Two groups of four, half of their rewards high."""
    rewards = torch.tensor([0.0, 1.0] * 4)
    ids = torch.arange(8) // 4
    components = {name: rewards.clone() for name in rewards_named}
    return Batch(rewards, ids, [str(i) for i in ids.tolist()], torch.arange(1, 9), components)


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
