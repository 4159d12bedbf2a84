"""What rollouts lack is said; right and wrong are told apart by a number that is said, too."""

from __future__ import annotations

import math

import polars as pl
import pytest

from grouprl.report.figures import figures
from grouprl.report.html import render
from grouprl.report.sources import NAMES, source_of_rollouts
from grouprl.report.tables import group_table

FULL = {
    "step": [1, 1, 2, 2],
    "group_id": ["a", "a", "b", "b"],
    "prompt_id": ["p", "p", "q", "q"],
    "sample_index": [0, 1, 0, 1],
    "prompt": ["2+2?"] * 4,
    "completion": ["4", "5", "4", "4"],
    "reward": [1.0, 0.0, 1.0, 1.0],
    "advantage": [1.0, -1.0, 0.0, 0.0],
    "completion_tokens": [1, 1, 1, 1],
    "finish_reason": ["stop", "length", "stop", "stop"],
}


def source(**changes):
    columns = {name: values for name, values in (FULL | changes).items() if values is not None}
    return source_of_rollouts(pl.DataFrame(columns, strict=False).lazy(), "rows")


def test_all_that_is_there_is_named_missing_nowhere():
    assert source().missing == ()
    assert figures(source()).absent == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["absent", "null"])
def test_each_column_may_be_missing_and_the_page_says_so(name, how):
    made = source(**{name: None if how == "absent" else [None] * 4})
    assert made.missing == (name,)
    assert f"The records do not say {NAMES[name]}" in render(made)


def test_everything_but_rewards_may_be_missing():
    made = source_of_rollouts(pl.DataFrame({"reward": [1, 0, 1]}).lazy(), "bare")
    assert set(made.missing) == set(NAMES) - {"reward"}
    assert [figure.name for figure in figures(made).drawn] == ["reward"]
    assert "The records do not say groups" in render(made)


def test_completions_of_no_known_group_stand_alone():
    table = group_table(source(group_id=["a", None, None, "a"], step=[1, 1, 1, 1]))
    assert sorted(table["completions"]) == [1, 1, 2]


def test_no_rows_at_all():
    made = source_of_rollouts(pl.DataFrame({"reward": pl.Series([], dtype=pl.Float64)}).lazy(), "none")
    assert "The rollouts hold no rows" in render(made)


def test_nan_and_infinite_rewards_are_unscored_and_bools_are_numbers():
    made = source_of_rollouts(
        pl.DataFrame({"reward": [math.nan, math.inf, 1.0], "reward_ok": [True, False, None]}).lazy(), "rows"
    )
    rows = made.rollouts.collect()
    assert made.components == ("ok",)
    assert rows["reward"].to_list() == [None, None, 1.0]
    assert rows["reward_ok"].to_list() == [1.0, 0.0, None]


@pytest.mark.parametrize(
    ("rewards", "right"),
    [
        ([0.0, 1.0, 0.0, 1.0], 1.0),
        ([-1.0, 1.0, -1.0, 1.0], 1.0),
        ([0.0, 0.1, 0.0, 0.1], 0.1),  # two values: the higher is right
        ([0.0, 0.0, 0.0, 0.0], 1.0),  # nobody was right
        ([2.0, 2.0, 2.0, 2.0], 2.0),
        ([0.2, 0.5, 1.1, 3.0], 1.0),  # on both sides of 1
        ([0.2, 0.4, 0.5, 0.6], 0.4),  # none reaches 1: the middle
    ],
)
def test_from_which_reward_on_a_completion_is_right(rewards, right):
    assert source(reward=rewards).success_reward == pytest.approx(right, rel=1e-15)


def test_group_kinds_by_hand():
    rewards = {"high": [1, 1], "low": [0, 0], "mixed": [1, 0], "single": [1, None], "none": [None, None]}
    # In float64, 0.1 + 0.2 and 0.3 differ by one unit in the last place: no spread.
    rewards["rounding"] = [0.1 + 0.2, 0.3]
    made = source_of_rollouts(
        pl.DataFrame(
            [{"step": 1, "group_id": name, "reward": r} for name, two in rewards.items() for r in two],
            schema={"step": pl.Int64, "group_id": pl.String, "reward": pl.Float64},
        ).lazy(),
        "kinds",
    )
    table = group_table(made)
    assert dict(table.select("group_id", "kind").iter_rows()) == {
        "high": "all_high",
        "low": "all_low",
        "mixed": "informative",
        "single": "single",
        "none": "unscored",
        "rounding": "all_low",
    }


def test_curves_are_made_from_rollouts_where_there_is_no_log():
    first, second = source().metrics
    assert (first["step"], first["reward_mean"], first["reward_group_std"]) == (1, 0.5, 0.5)
    assert (first["groups_informative_share"], second["groups_all_high_share"]) == (1.0, 1.0)
    assert first["truncated_share"] == 0.5


def test_right_and_wrong_are_told_apart_before_shaping_and_dropped_groups_are_kept():
    """A right answer whose length was punished is right; a group that was not trained on is there, and says so."""
    made = source(
        reward=[0.4, -0.6, 1.0, 0.9],
        correctness=[1.0, 0.0, 1.0, 1.0],
        advantage=[1.0, -1.0, None, None],
        used=[True, True, False, False],
        dropped_reason=[None, None, "all_high", "all_high"],
    )
    table = group_table(made)
    assert made.success_reward == 1.0
    assert table.select("group_id", "right", "kind", "used", "dropped_reason").rows() == [
        ("a", 1, "informative", True, None),
        ("b", 2, "all_high", False, "all_high"),
    ]
