"""Groups of completions → one reward each: the weighted sum of the components, or None for unscored."""

from __future__ import annotations

import inspect
import math
import numbers
import traceback
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

from grouprl.errors import InputError, MissingDependency, RewardError, RewardUnavailable
from grouprl.tasks.columns import Batch, accepted_columns
from grouprl.tasks.outcomes import Verdict
from grouprl.tasks.task import Reward
from grouprl.types import Group

MAX_EXAMPLES = 5
MAX_SHOWN = 120


@dataclass(frozen=True)
class Scores:
    """The scores of a batch, one entry a completion: groups in order, completions in order.

    Args:
        rewards: The weighted sums; None where a component of non-zero weight is None, for a partial sum would
            be compared with its siblings' whole ones.
        components: Reward name → its values, unweighted.
        errors: How many values are None because a reward function raised on that completion.
        error_examples: The first few of them, a line each.
        nonfinite: How many values, and sums, were NaN or infinite. They are None.
        outcomes: Reward name → the outcome of each value, for rewards that return a `Verdict` or list `outcomes`; None
            for a value without one.
        possible_outcomes: Reward name → the outcomes that it lists.
    """

    rewards: list[float | None]
    components: dict[str, list[float | None]]
    errors: int = 0
    error_examples: list[str] = field(default_factory=list)
    nonfinite: int = 0
    outcomes: dict[str, list[str | None]] = field(default_factory=dict)
    possible_outcomes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def outcome_shares(self) -> dict[str, float]:
        """`reward_<name>_<outcome>_share`: the share of the completions, under the names of metrics.jsonl.

        Outcomes that a reward lists and that did not happen are there with 0. Empty without completions.

        Example:
            >>> scores = Scores([0.0], {"r": [0.0]}, outcomes={"r": ["wrong"]}, possible_outcomes={"r": ("right",)})
            >>> scores.outcome_shares()
            {'reward_r_right_share': 0.0, 'reward_r_wrong_share': 1.0}
        """
        shares: dict[str, float] = {}
        for name, found in self.outcomes.items():
            for outcome in dict.fromkeys([*self.possible_outcomes.get(name, ()), *found]):
                if outcome is not None and found:
                    shares[f"reward_{name}_{outcome}_share"] = found.count(outcome) / len(found)
        return shares

    def take(self, indices: Sequence[int]) -> Scores:
        """Those of some completions; what was counted over all is left behind."""
        return Scores(
            [self.rewards[i] for i in indices],
            {name: [values[i] for i in indices] for name, values in self.components.items()},
            outcomes={name: [found[i] for i in indices] for name, found in self.outcomes.items()},
            possible_outcomes=self.possible_outcomes,
        )

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several batches, at least one, by the same rewards, as one batch's."""
        first = parts[0]
        return cls(
            rewards=[reward for part in parts for reward in part.rewards],
            components={
                name: [v for part in parts for v in part.components[name]] for name in first.components
            },
            errors=sum(part.errors for part in parts),
            error_examples=[line for part in parts for line in part.error_examples],
            nonfinite=sum(part.nonfinite for part in parts),
            outcomes={name: [v for part in parts for v in part.outcomes[name]] for name in first.outcomes},
            possible_outcomes=first.possible_outcomes,
        )


def score(
    task_rewards: Sequence[Reward],
    groups: Sequence[Group],
    *,
    on_error: Literal["raise", "abstain"] = "raise",
) -> Scores:
    """Call each reward function once on all completions, and add up.

    A function that raises is called again, completion by completion, to find out which completions it
    raises on. "raise" stops at the first of them; "abstain" leaves exactly those unscored and keeps what the
    others get on their own. Where what scores them could not be reached (RewardUnavailable), no function is called
    again, and "abstain" leaves those unscored that had no answer. KeyboardInterrupt and SystemExit always
    pass through: a signal handler may be behind them. So do MissingDependency and a RewardError of grouprl's own, which
    no other completion would mend.

    Args:
        task_rewards: The components, `task.rewards`.
        groups: The groups; an empty one takes no place.
        on_error: What an exception inside a reward function means. It has no bearing on a wrong return value.

    Returns:
        The scores. Without completions no function is called.

    Raises:
        RewardError: a function raised (with "raise"), or returned no list, a wrong count, or something that
            is not a number, bool or None. It names the function, the prompt and the completion.
        TaskError: a function has a required parameter that no column of these prompts supplies.
        InputError: another `on_error`.

    Example:
        >>> from grouprl.types import Completion, Prompt
        >>> completion = Completion((5,), (-0.1,), (True,), "22", "stop")
        >>> group = Group("g", Prompt("p", "7 + 15?", {"answer": 22}), "7 + 15?", (1, 2), (completion,) * 2)
        >>> def right(completions, answer):
        ...     return [text == str(gold) for text, gold in zip(completions, answer)]
        >>> score([Reward("right", right, weight=2.0)], [group]).rewards
        [2.0, 2.0]
    """
    if on_error not in ("raise", "abstain"):
        raise InputError(f"score: on_error {on_error!r}, expected 'raise' or 'abstain'")
    batch = Batch.of(groups)
    tally = _Tally()
    components: dict[str, list[float | None]] = {}
    outcomes: dict[str, list[str | None]] = {}
    possible: dict[str, tuple[str, ...]] = {}
    for reward in task_rewards:
        values = _component(reward, batch, on_error, tally) if len(batch) else []
        components[reward.name] = [None if value is None else float(value) for value in values]
        listed = tuple(getattr(reward.function, "outcomes", ()))
        if listed or any(isinstance(value, Verdict) for value in values):
            outcomes[reward.name] = [getattr(value, "outcome", None) for value in values]
            possible[reward.name] = listed
    return Scores(
        rewards=[_total(task_rewards, components, index, tally) for index in range(len(batch))],
        components=components,
        errors=tally.errors,
        error_examples=tally.examples,
        nonfinite=tally.nonfinite,
        outcomes=outcomes,
        possible_outcomes=possible,
    )


@dataclass
class _Tally:
    errors: int = 0
    nonfinite: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(line)


def _total(
    rewards: Sequence[Reward], components: Mapping[str, list[float | None]], index: int, tally: _Tally
) -> float | None:
    total = 0.0
    for reward in rewards:
        if reward.weight == 0:
            continue
        value = components[reward.name][index]
        if value is None:
            return None
        total += reward.weight * value
    if not math.isfinite(total):
        tally.nonfinite += 1
        return None
    return total


def _component(reward: Reward, batch: Batch, on_error: str, tally: _Tally) -> list[float | None]:
    names = accepted_columns(reward, batch.names())
    try:
        result = reward.function(**batch.columns(names))
    except RewardUnavailable as error:  # asking again for each completion would only take longer
        if on_error == "raise":
            raise
        tally.errors += error.failed
        tally.note(str(error))
        return _values(reward, error.scores, batch, tally)
    except (MissingDependency, RewardError):
        raise
    except Exception as error:
        failure = error
    else:
        return _values(reward, result, batch, tally)
    if len(batch) == 1:
        _failed(reward, failure, batch, on_error, tally)
        return [None]
    values: list[float | None] = []
    before = tally.errors
    for index in range(len(batch)):
        row = batch.row(index)
        try:
            result = reward.function(**row.columns(names))
        except MissingDependency:
            raise
        except Exception as error:
            _failed(reward, error, row, on_error, tally)
            values.append(None)
        else:
            values += _values(reward, result, row, tally)
    if on_error == "raise":
        raise RewardError(
            f"reward {reward.name!r}: raised {_described(failure)} on a batch of {len(batch)} completions "
            "but on none of them alone, expected scores"
        ) from failure
    if tally.errors == before:
        tally.note(
            f"reward {reward.name!r}: raised {_described(failure)} on the batch, on no completion alone"
        )
    return values


def _failed(reward: Reward, error: Exception, row: Batch, on_error: str, tally: _Tally) -> None:
    message = f"reward {reward.name!r}: raised {_described(error)} on {_row(row, 0)}"
    if on_error == "raise":
        raise RewardError(
            f"{message}, expected a number or None; return None for what it cannot score, or let it abstain "
            "where it raises (--on-reward-error abstain)"
        ) from error
    tally.errors += 1
    tally.note(message)


def _values(reward: Reward, result: Any, batch: Batch, tally: _Tally) -> list[float | None]:
    where = f"reward {reward.name!r}"
    expected = f"expected a list of {len(batch)} numbers, one a completion"
    if inspect.iscoroutine(result):
        result.close()
    if not _is_list(result):
        raise RewardError(f"{where}: returned {_shown(result)} of type {type(result).__name__}, {expected}")
    items = list(result)
    if len(items) != len(batch):
        index = min(len(items), len(batch) - 1)
        what = (
            f"the first without a score is {_row(batch, index)}"
            if len(items) < len(batch)
            else "score each once"
        )
        raise RewardError(f"{where}: returned {len(items)} scores, {expected}; {what}")
    values: list[float | None] = []
    for index, item in enumerate(items):
        try:
            value = None if item is None else _number(item)
        except Exception:  # its own __float__ may raise anything
            raise RewardError(
                f"{where}: returned {_shown(item)} of type {type(item).__name__} for {_row(batch, index)}, "
                "expected a number, bool or None"
            ) from None
        if value is not None and not math.isfinite(value):
            tally.nonfinite += 1
            value = None
        values.append(value)
    return values


def _is_list(result: Any) -> bool:
    """Whether it has a length and an order: not a generator, text, a mapping, a set or a 0-d array."""
    if isinstance(result, str | bytes | Mapping | Set) or getattr(result, "ndim", 1) == 0:
        return False
    return isinstance(result, Iterable) and isinstance(result, Sized)


def _number(item: Any) -> float:
    if isinstance(item, Verdict):
        return item
    complex_number = isinstance(item, numbers.Complex) and not isinstance(item, numbers.Real)
    if complex_number or not hasattr(item, "__float__") or getattr(item, "ndim", 0) > 0:
        raise TypeError
    if hasattr(item, "detach"):  # a torch tensor with a gradient warns otherwise
        item = item.detach()
    try:
        return float(item)
    except OverflowError:  # an integer beyond float64
        return math.inf


def _row(batch: Batch, index: int) -> str:
    prompt = batch.prompts[index]
    content = prompt.content if isinstance(prompt.content, str) else prompt.content[-1]["content"]
    return (
        f"completions[{batch.first + index}] {_shown(batch.completions[index].text)} to prompt "
        f"{prompt.prompt_id!r} {_shown(content)}"
    )


def _described(error: BaseException) -> str:
    """The exception and where it was raised, on one line."""
    text = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
    text = text if len(text) <= 2 * MAX_SHOWN else text[: 2 * MAX_SHOWN] + "…"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else text


def _shown(value: Any) -> str:
    """A short form on one line, control characters escaped."""
    if isinstance(value, str) and len(value) > MAX_SHOWN:
        return f"{value[:MAX_SHOWN]!r}… ({len(value)} characters)"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 2 * MAX_SHOWN else text[: 2 * MAX_SHOWN] + "…"
