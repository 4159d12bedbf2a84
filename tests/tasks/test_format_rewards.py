"""Tags: strict, loose, and counted."""

import pytest

from grouprl.errors import TaskError
from grouprl.tasks import reward_from_spec
from grouprl.tasks.format_rewards import TagReward

R1 = "<think>2 + 2</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("completion", "strict", "loose", "count"),
    [
        (R1, 1, 1, 1),
        ("\n<think>\na\n</think>\n\n<answer>\n4\n</answer>\n", 1, 1, 1),
        ("<think></think><answer></answer>", 1, 1, 1),
        (f"Sure: {R1}", 0, 1, 1),
        (f"{R1} Done.", 0, 1, 1),
        ("<think>a</think> so <answer>4</answer>", 0, 1, 1),
        ("<answer>4</answer><think>a</think>", 0, 0, 1),
        ("<think>a<answer>4</answer></think>", 0, 0, 1),
        (R1 + R1, 0, 0, 0),
        (R1 + "<answer>5</answer>", 0, 0, 0.5),
        ("<think>a</think>4", 0, 0, 0.5),
        ("<think>a", 0, 0, 0.25),
        ("<THINK>a</THINK><answer>4</answer>", 0, 0, 0.5),
        ("", 0, 0, 0),
    ],
)
def test_modes(completion: str, strict: float, loose: float, count: float) -> None:
    scores = [TagReward(mode=mode)([completion]) for mode in ("strict", "loose", "count")]  # type: ignore[arg-type]
    assert scores == [[strict], [loose], [count]]


def test_other_tags_by_spec() -> None:
    reward = reward_from_spec("tags:plan,code,result")
    assert reward.name == "tags"
    right = "<plan>a</plan> <code>b</code> <result>c</result>"
    assert reward.function(completions=[right, R1]) == [1.0, 0.0]
    assert reward_from_spec("tags_loose:answer").function(completions=[R1, "4"]) == [1.0, 0.0]
    assert reward_from_spec("tag_count:answer").function(completions=[R1, "</answer>"]) == [1.0, 0.5]


@pytest.mark.parametrize("spec", ["tags:a,a", "tags:<a>", "tags:a b", "tags:", "tags:a,", "tags:7"])
def test_names_that_are_none(spec: str) -> None:
    with pytest.raises(TaskError, match=r"reward 'tags.*expected"):
        reward_from_spec(spec)


@pytest.mark.parametrize("unit", ["<think>", "</think>", "<think></think>", "<answer>", "< ", " ", "a"])
def test_a_megabyte_is_read_in_linear_time(unit: str) -> None:
    for mode in ("strict", "loose", "count"):
        TagReward(mode=mode)([unit * (1_000_000 // len(unit))])  # type: ignore[arg-type]
