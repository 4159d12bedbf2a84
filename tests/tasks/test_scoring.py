"""score: alignment, totals, what a function may return, and what happens where it raises."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import GrouprlError, InputError, MissingDependency, RewardError, TaskError
from grouprl.tasks import Reward, score
from grouprl.types import Completion, Group, Prompt


def group(prompt: Prompt, *texts: str, finish: Any = "stop") -> Group:
    completions = tuple(
        Completion((n, 9), (-0.1,) * 2, (True,) * 2, text, finish) for n, text in enumerate(texts)
    )
    return Group(f"g/{prompt.prompt_id}", prompt, str(prompt.content), (1,), completions)


A = Prompt("a", "What is 1 + 1?", {"answer": "2"})
B = Prompt("b", ({"role": "user", "content": "What is 2 + 2?"},), {"answer": "4"})
GROUPS = [group(A, "2", "3"), group(B, "4", "2", "x")]


def right(completions: list[str], answer: list[str]) -> list[float]:
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def test_prompts_and_fields_belong_to_their_completions() -> None:
    seen: dict[str, Any] = {}

    def record(**columns: Any) -> list[int]:
        seen.update(columns)
        return [0] * len(columns["completions"])

    score([Reward("record", record)], GROUPS)
    assert seen == {
        "completions": ["2", "3", "4", "2", "x"],
        "prompts": [A.content] * 2 + [list(B.content)] * 3,
        "finish_reasons": ["stop"] * 5,
        "completion_ids": [[0, 9], [1, 9], [0, 9], [1, 9], [2, 9]],
        "answer": ["2", "2", "4", "4", "4"],
    }
    # Two prompts with two completions each: the golds are not repeated a second time.
    twice = score([Reward("right", right)], [group(A, "2", "4"), group(B, "2", "4")])
    assert twice.rewards == [1, 0, 0, 1]


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5), st.randoms())
def test_groups_of_any_size_and_order_keep_their_scores(sizes: list[list[int]], shuffler: Any) -> None:
    groups = [group(Prompt(str(n), "Hi", {"answer": n}), *map(str, texts)) for n, texts in enumerate(sizes)]

    def equal(completions: list[str], answer: list[int]) -> list[bool]:
        return [text == str(gold) for text, gold in zip(completions, answer, strict=True)]

    shuffler.shuffle(groups)
    scores = score([Reward("equal", equal)], groups)
    assert scores.rewards == [float(c.text == g.prompt.prompt_id) for g in groups for c in g.completions]


def test_only_the_keywords_of_the_signature_are_passed() -> None:
    def trl_style(completions: list[str], answer: list[str], **kwargs: Any) -> list[int]:
        assert set(kwargs) == {"prompts", "finish_reasons", "completion_ids"}
        return [1] * len(completions)

    def few(*, finish_reasons: list[str], threshold: float = 0.5) -> list[float]:
        return [threshold] * len(finish_reasons)

    scores = score([Reward("trl", trl_style), Reward("few", few)], GROUPS)
    assert scores.rewards == [1.5] * 5


def test_a_field_that_one_prompt_lacks_is_none_there() -> None:
    def known(completions: list[str], answer: list[str | None]) -> list[bool]:
        return [gold is not None for gold in answer]

    groups = [group(Prompt("p", "Hi"), "a"), group(A, "b")]
    assert score([Reward("known", known)], groups).rewards == [0, 1]


def test_a_function_that_changes_its_lists_changes_nothing_else() -> None:
    def rude(completions: list[str], prompts: list[Any], answer: list[str]) -> list[float]:
        result = right(completions, answer)
        answer.reverse()
        completions.clear()
        prompts[-1][0]["content"] = "changed"
        return result

    scores = score([Reward("rude", rude), Reward("right", right)], GROUPS)
    assert scores.components["rude"] == scores.components["right"] == [1, 0, 1, 0, 0]
    assert B.content[0]["content"] == "What is 2 + 2?"  # type: ignore[index]


def test_total_is_the_weighted_sum_and_none_where_a_weighted_part_is_none() -> None:
    def some(completions: list[str]) -> list[float | None]:
        return [1.0, None, 2.0, None, 3.0]

    def never(completions: list[str]) -> list[None]:
        return [None] * len(completions)

    scores = score(
        [Reward("right", right, 2.0), Reward("some", some, -0.5), Reward("never", never, 0.0)], GROUPS
    )
    assert scores.rewards == [1.5, None, 1.0, None, -1.5]
    assert scores.components == {
        "right": [1, 0, 1, 0, 0],
        "some": [1, None, 2, None, 3],
        "never": [None] * 5,
    }
    assert (scores.errors, scores.error_examples, scores.nonfinite) == (0, [], 0)


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0.0, True, None, 0.5],
        (1, 0, 1, None, 0.5),
        np.array([1, 0, 1, np.nan, 0.5], dtype=np.float32),
        [np.float64(1), np.int8(0), np.bool_(True), None, np.float32(0.5)],
        [Fraction(1), Decimal(0), 1, None, Decimal("0.5")],
        {"a": 1, "b": 0, "c": 1, "d": None, "e": 0.5}.values(),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_any_list_of_numbers_is_taken(returned: Any) -> None:
    scores = score([Reward("r", lambda completions: returned)], GROUPS)
    assert scores.rewards == [1, 0, 1, None, 0.5]
    assert all(value is None or type(value) is float for value in scores.rewards)


def test_tensors_are_taken() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5], requires_grad=True).detach()
    assert score([Reward("r", lambda completions: values)], GROUPS).rewards == [1, 0, 1, 0, 0.5]
    with pytest.raises(RewardError, match=r"of type Tensor for completions\[0\]"):
        score([Reward("r", lambda completions: values[:, None])], GROUPS)


def test_nan_and_infinite_values_are_unscored_and_counted() -> None:
    values = [math.nan, math.inf, -math.inf, 10**400, 1.0]
    scores = score([Reward("r", lambda completions: values)], GROUPS)
    assert scores.rewards == [None, None, None, None, 1.0]
    assert scores.nonfinite == 4
    overflow = score([Reward("r", lambda completions: [1e308] * 5, 100.0)], GROUPS)
    assert overflow.rewards == [None] * 5
    assert overflow.nonfinite == 5


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None of type NoneType, expected a list of 5 numbers"),
        (1.0, "returned 1.0 of type float, expected a list of 5"),
        ("11111", "returned '11111' of type str"),
        ({"a": 1}, "of type dict, expected a list"),
        ({1, 2, 3, 4, 5}, "of type set, expected a list"),
        ((n for n in range(5)), "of type generator, expected a list"),
        (np.array(1.0), "of type ndarray, expected a list"),
        (
            [],
            r"returned 0 scores, expected a list of 5 .*without a score is completions\[0\] '2' to",
        ),
        ([1.0, 0.0], r"returned 2 scores, .*completions\[2\] '4' to prompt 'b' 'What is 2 \+ 2\?'"),
        ([1.0] * 10, "returned 10 scores, expected a list of 5"),
        ([1.0, 0.0, "1", 0, 0], r"returned '1' of type str for completions\[2\] '4' to prompt 'b'"),
        ([1.0, {}, 0, 0, 0], r"returned {} of type dict for completions\[1\] '3' to prompt 'a'"),
        ([1.0, [1.0], 0, 0, 0], r"returned \[1.0\] of type list for completions\[1\]"),
        ([1j, 0, 0, 0, 0], "of type complex"),
        ([np.complex128(1), 0, 0, 0, 0], "of type complex128"),
        (np.ones((5, 1)), r"of type ndarray for completions\[0\]"),
        ([Decimal("sNaN"), 0, 0, 0, 0], "of type Decimal"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
@pytest.mark.parametrize("on_error", ["raise", "abstain"])
def test_anything_else_is_refused(returned: Any, message: str, on_error: Any) -> None:
    with pytest.raises(RewardError, match=f"^reward 'mine': .*{message}|^reward 'mine': {message}") as caught:
        score([Reward("mine", lambda completions: returned)], GROUPS, on_error=on_error)
    assert "\n" not in str(caught.value)


def test_an_awaitable_is_refused_without_a_warning() -> None:
    async def later() -> list[float]:
        return [0.0] * 5

    with pytest.raises(RewardError, match="of type coroutine, expected a list"):
        score([Reward("r", lambda completions: later())], GROUPS)


def fails_on(*bad: str) -> Any:
    def fragile(completions: list[str]) -> list[int]:
        for text in completions:
            if text in bad:
                raise KeyError(f"no\n{text}")
        return [len(text) for text in completions]

    return fragile


def test_raise_names_function_exception_prompt_and_completion() -> None:
    groups = [group(A, "fine", "bad\x1b[31m\n" + "x" * 10_000), group(B, "bad too")]
    function = fails_on(groups[0].completions[1].text, "bad too")
    with pytest.raises(RewardError) as caught:
        score([Reward("fragile", function)], groups)
    message = str(caught.value)
    assert message.startswith("reward 'fragile': raised KeyError: ")
    assert "test_scoring.py:" in message
    assert r"completions[1] 'bad\x1b[31m\nxxx" in message
    assert "(10009 characters)" in message
    assert "to prompt 'a' 'What is 1 + 1?'" in message
    assert len(message) < 1000
    assert message.isprintable()
    assert isinstance(caught.value.__cause__, KeyError)


def test_abstain_leaves_the_neighbours_scores_where_they_are() -> None:
    groups = [group(A, "a", "bad", "ccc"), group(B, "dddd", "bad")]
    scores = score([Reward("fragile", fails_on("bad")), Reward("right", right)], groups, on_error="abstain")
    assert scores.components["fragile"] == [1, None, 3, 4, None]
    assert scores.components["right"] == [0, 0, 0, 0, 0]
    assert scores.rewards == [1, None, 3, 4, None]
    assert scores.errors == 2
    assert len(scores.error_examples) == 2
    assert "completions[1] 'bad' to prompt 'a'" in scores.error_examples[0]
    assert "completions[4] 'bad' to prompt 'b'" in scores.error_examples[1]
    assert all(line.isprintable() for line in scores.error_examples)


def test_abstain_of_one_and_of_many() -> None:
    assert score([Reward("f", fails_on("a"))], [group(A, "a")], on_error="abstain").rewards == [None]
    many = score([Reward("f", fails_on("a"))], [group(A, *"a" * 50)], on_error="abstain")
    assert (many.errors, len(many.error_examples), many.rewards) == (50, 5, [None] * 50)


def test_a_function_that_raises_on_the_batch_alone() -> None:
    def batch_shy(completions: list[str]) -> list[int]:
        if len(completions) > 1:
            raise ValueError("too many")
        return [1]

    with pytest.raises(RewardError, match=r"raised ValueError: too many .* on none of them alone") as caught:
        score([Reward("shy", batch_shy)], GROUPS)
    assert isinstance(caught.value.__cause__, ValueError)
    scores = score([Reward("shy", batch_shy)], GROUPS, on_error="abstain")
    assert (scores.rewards, scores.errors) == ([1] * 5, 0)
    assert "on the batch, on no completion alone" in scores.error_examples[0]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MissingDependency])
@pytest.mark.parametrize("on_error", ["raise", "abstain"])
def test_interrupts_pass_through(kind: type[BaseException], on_error: Any) -> None:
    def interrupted(completions: list[str]) -> list[int]:
        raise kind("stop")

    with pytest.raises(kind):
        score([Reward("r", interrupted)], GROUPS, on_error=on_error)


def test_an_interrupt_while_the_failing_completion_is_sought_passes_through() -> None:
    def interrupted(completions: list[str]) -> list[int]:
        if len(completions) > 1:
            raise ValueError
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score([Reward("r", interrupted)], GROUPS, on_error="abstain")


def test_an_exception_that_cannot_be_printed() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def mute(completions: list[str]) -> list[int]:
        raise Mute

    with pytest.raises(RewardError, match=r"raised .*Mute: <exception str"):
        score([Reward("r", mute)], GROUPS)


def test_nothing_to_score_calls_no_function() -> None:
    for groups in ([], [group(A)]):
        scores = score([Reward("r", fails_on())], groups)
        assert (scores.rewards, scores.components) == ([], {"r": []})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda completions, gold: [],
            "parameter 'gold' matches no column, expected one of completions, .*answer;",
        ),
        (eval("lambda completions, /: []"), "parameter 'completions' is positional-only"),
        (min, "the signature of <built-in function min> cannot be read"),
    ],
)
def test_a_signature_that_does_not_fit(function: Any, message: str) -> None:
    with pytest.raises(TaskError, match=f"reward 'r': {message}"):
        score([Reward("r", function)], GROUPS)


def test_on_error_is_one_of_two() -> None:
    with pytest.raises(InputError, match="on_error 'ignore', expected 'raise' or 'abstain'"):
        score([Reward("r", right)], GROUPS, on_error="ignore")  # type: ignore[arg-type]
    assert issubclass(InputError, GrouprlError)
