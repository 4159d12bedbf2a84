r"""The reward of mathematical answers: 1 where the final answer equals the gold one, 0 where it does not.

    completion → its final answer (`final_answers`) → what it says (`math_values`)
    both plain numbers   compared exactly, here: no more is asked
    words                compared as text
    else                 parsed and compared by math-verify, in processes with limits (`worker_pool`, `math_worker`)

What a model wrote is never given to a parser of Python expressions or to a computer algebra system in this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grouprl.errors import GrouprlError, MissingDependency, RewardError, TaskError
from grouprl.tasks import answers
from grouprl.tasks.builtin_rewards import gold_number, shown
from grouprl.tasks.final_answers import HASHES, after_hashes, final_answer, last_box
from grouprl.tasks.math_values import Formula, Number, Value, Words, read_value, same_number, same_words
from grouprl.tasks.outcomes import Verdict
from grouprl.tasks.worker_pool import Failure, WorkerPool, WorkerStartError
from grouprl.types import Prompt

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 1 << 30

OUTCOMES = ("right", "wrong", "no_marker", "unparsed", "timed_out", "crashed")


@dataclass(frozen=True)
class MathReward:
    r"""1 where a completion's final answer equals the prompt's `answer`, else 0, with the reason.

    The answer stands in `\boxed{…}`, after `####`, after "final answer is", or in `<answer>` tags; the rule is that
    of `grouprl.tasks.final_answers`. `answer` is a number, an answer as text ("72", "x^2 + 1", "Evelyn"), or a
    worked solution that ends in one `#### 72` (GSM8K) or holds `\boxed{72}` (MATH; the last one counts).

    Each score is a `Verdict`; its outcome is one of

        right       equal
        wrong       another value
        no_marker   no final answer stands out, or an empty one
        unparsed    it is no answer that can be read, or is not finite (1/0)
        timed_out   comparing it took longer than the limit
        crashed     comparing it took more memory than the limit, or brought the checking process down otherwise

    Args:
        lenient: Without a marker, read the last number of the completion. Recorded with weight 0 beside the strict
            reward it tells learning the format from learning the task.
        time_limit_s: Seconds for one comparison.
        memory_limit_bytes: Address space of a checking process.

    Edges: a plain number equals another exactly or not at all (0.333 is not 1/3, nor 1.4142 √2); a percent sign is
    read as `math_values.same_number` says. Sets and lists in any order, an assignment "x = 5" for 5, and whatever else
    math-verify holds to be equal, is; a sum that is not worked out ("2 + 2" for 4) is too.

    Example:
        >>> reward = MathReward()
        >>> said = ["So it is \\boxed{29.00}.", "#### 28", "It is 29."]
        >>> [(float(v), v.outcome) for v in reward(completions=said, answer=["29"] * 3)]
        [(1.0, 'right'), (0.0, 'wrong'), (0.0, 'no_marker')]
    """

    lenient: bool = False
    time_limit_s: float = TIME_LIMIT_S
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES

    @property
    def name(self) -> str:
        """The built-in name."""
        return "math_lenient" if self.lenient else "math"

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What `score` counts."""
        return OUTCOMES

    def __call__(self, completions: Sequence[str], answer: Sequence[Any]) -> list[Verdict]:
        """Score the batch.

        Raises:
            TaskError: A gold answer that cannot be read.
            MissingDependency: math-verify is not installed, and a comparison needs it.
        """
        found: list[str] = []
        requests: dict[str, list[Any]] = {}  # equal ones once
        for text, gold in zip(completions, answer, strict=True):
            try:
                outcome = self._compare(text, read_gold(gold), requests)
            except ValueError as error:
                raise TaskError(f"reward {self.name!r}: {error}") from error
            found.append(outcome)
        checked = dict(zip(requests, self._check(list(requests.values()))))
        return [_verdict(checked.get(outcome, outcome)) for outcome in found]

    def check_prompts(self, prompts: Iterable[Prompt]) -> Iterator[tuple[Prompt, str]]:
        """The prompts whose `answer` cannot be read, or does not parse to a finite value that equals itself."""
        if find_spec("math_verify") is None:
            raise MissingDependency(
                f"reward {self.name!r}: needs math-verify, which is not installed; pip install 'grouprl[math]'"
            )
        problems: dict[int, str] = {}
        formulas: dict[str, list[int]] = {}
        prompts = list(prompts)
        for index, prompt in enumerate(prompts):
            try:
                gold = read_gold(prompt.fields.get("answer"))
            except ValueError as error:
                problems[index] = str(error)
                continue
            if isinstance(gold, Formula):
                formulas.setdefault(gold.latex, []).append(index)
        requests = [["read", ["latex", latex]] for latex in formulas]
        for (latex, rows), outcome in zip(formulas.items(), self._check(requests)):
            if outcome != "read":
                problem = f"answer {shown(latex)} {_GOLD_PROBLEMS[outcome]}, expected mathematics that parses"
                problems |= dict.fromkeys(rows, problem)
        for index in sorted(problems):
            yield prompts[index], problems[index]

    def _compare(self, completion: str, gold: Value, requests: dict[str, list[Any]]) -> str:
        """The outcome, or the key of the request that will tell."""
        said = final_answer(completion)
        if said is not None:
            value = read_value(said)
        elif self.lenient and (last := answers.last_number(completion)) is not None:
            value = Number(last)
        else:
            return "no_marker"
        if said is not None and isinstance(gold, Words) and same_words(gold, said):
            return "right"
        if value is None:
            return "unparsed"
        if isinstance(gold, Number) and isinstance(value, Number):
            return "right" if same_number(gold, value) else "wrong"
        if value == gold:
            return "right"
        if isinstance(gold, Words):
            return "wrong"
        if isinstance(value, Words):
            return "unparsed"
        request = ["compare", _sent(gold), _sent(value)]
        key = f"{request}"
        requests[key] = request
        return key

    def _check(self, requests: Sequence[Any]) -> list[str]:
        if not requests:
            return []
        try:
            found = _pool(self.time_limit_s, self.memory_limit_bytes).ask_all(requests)
        except WorkerStartError as error:
            raise _cannot_start(self.name, error) from None
        return [_outcome_of(answer) for answer in found]


def read_gold(answer: Any) -> Value:
    r"""What a prompt's `answer` says: see `MathReward`.

    Args:
        answer: The field.

    Returns:
        The value. A formula has not been parsed yet.

    Raises:
        ValueError: No text and no number; a solution with several `####`; nothing after it; prose; what cannot be
            read.

    Example:
        >>> read_gold("48/2 = <<48/2=24>>24 clips\n#### 72").value
        Fraction(72, 1)
        >>> read_gold("from 2 to -3")
        Traceback (most recent call last):
        ...
        ValueError: answer 'from 2 to -3', expected one answer, or a solution with one '#### …' or with \boxed{…}
    """
    if not isinstance(answer, str):
        return Number(gold_number(answer))
    text = answer
    if HASHES in answer:
        marked = after_hashes(answer)
        if len(marked) != 1:
            raise ValueError(f"answer {shown(answer)}, expected one '####', not {len(marked)}")
        text = marked[0]
    elif (boxed := last_box(answer)) is not None:
        text = boxed
    value = read_value(text)
    if value is None:
        raise ValueError(
            f"answer {shown(answer)}, expected one answer, or a solution with one '#### …' or with \\boxed{{…}}"
        )
    return value


_GOLD_PROBLEMS = {
    "unparsed": "does not parse",
    "not_finite": "is not finite",
    "not_itself": "parses to what does not equal itself",
    "timed_out": "takes too long to parse",
    "crashed": "takes too much memory to parse",
}


def _verdict(outcome: str) -> Verdict:
    return Verdict(float(outcome == "right"), outcome)


def _sent(value: Number | Formula) -> list[str]:
    """A value as the checking process takes it. A plain number goes as a fraction: as text it would be a float."""
    if isinstance(value, Formula):
        return ["latex", value.latex]
    return ["number", str(value.amount.numerator), str(value.amount.denominator)]


def _outcome_of(answer: str | Failure) -> str:
    if isinstance(answer, Failure):
        return "timed_out" if answer.kind == "timed_out" else "crashed"
    return answer


def _cannot_start(name: str, error: WorkerStartError) -> GrouprlError:
    where = f"reward {name!r}: no checking process comes up ({error})"
    if "ImportError" in str(error) or "ModuleNotFoundError" in str(error):
        return MissingDependency(f"{where}; pip install 'grouprl[math]'")
    return RewardError(f"{where}, expected it to start; is memory short?")


@cache
def _pool(time_limit_s: float, memory_limit_bytes: int) -> WorkerPool:
    """One for all rewards of the same limits."""
    return WorkerPool(
        Path(__file__).with_name("math_worker.py"),
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
    )
