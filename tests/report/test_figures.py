"""The figures: drawn from the numbers present, thinned where a run is long."""

from __future__ import annotations

import json

import polars as pl
import pytest

from grouprl.report.figures import figures
from grouprl.report.html import script_safe_json
from grouprl.report.series import thin
from grouprl.report.sources import Source, source_of_rollouts


def drawn(metrics, evaluations=()):
    source = Source("run", metrics=metrics, evaluations=list(evaluations))
    return {figure.name: figure for figure in figures(source).drawn}


def series(figure):
    return {one["name"]: one["y"] for one in figure.data["series"]}


def of_rows(rows):
    source = source_of_rollouts(pl.DataFrame(rows).lazy(), "rows")
    return {figure.name: figure for figure in figures(source).drawn}


def row(step, group, reward, **further):
    return {
        "step": step,
        "group_id": f"{step}/{group}",
        "prompt_id": group,
        "prompt": f"prompt {group}",
        "reward": reward,
        "advantage": None,
        "completion_tokens": None,
    } | further


def test_the_band_is_the_mean_with_the_std_around_it():
    records = [
        {"step": 1, "reward_mean": 0.5, "reward_group_std": 0.25},
        {"step": 2, "reward_mean": None, "reward_group_std": None},
        {"step": 3, "reward_mean": 1.0, "reward_group_std": 0.5},
    ]
    data = drawn(records)["reward"].data
    (line,) = data["series"]
    assert (data["x"], line["y"]) == ([1, 2, 3], [0.5, None, 1.0])
    assert (line["low"], line["high"]) == ([0.25, None, 0.5], [0.75, None, 1.5])


def test_shares_that_do_not_reach_one_get_the_rest_named():
    record = {"groups_informative_share": 0.5, "groups_all_low_share": 0.25}
    assert series(drawn([record | {"step": 1}, record | {"step": 2}])["groups"]) == {
        "informative": [0.5, 0.5],
        "all low": [0.25, 0.25],
        "equal, in between": [0.25, 0.25],
    }


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({}, "Only groups whose rewards differ have a gradient."),
        (
            {"groups_with_advantage_share": 1.0},
            "100% had an advantage other than 0: only these have a gradient",
        ),
    ],
)
def test_which_groups_have_a_gradient_is_what_the_run_recorded(further, said):
    """Not what GRPO would have made of them."""
    metrics = [{"step": 1, "groups_informative_share": 0.25, "groups_all_low_share": 0.75, **further}]
    assert said in drawn(metrics)["groups"].caption


def test_other_seconds_are_what_the_stages_leave_and_never_negative():
    records = [
        {"step": 1, "seconds_step": 10.0, "seconds_rollout": 4.0, "seconds_train": 5.0},
        {"step": 2, "seconds_step": 1.0, "seconds_rollout": 4.0, "seconds_train": 5.0},
    ]
    assert series(drawn(records)["seconds"])["other"] == [1.0, 0.0]


def test_what_runs_beside_training_is_not_stacked_on_it():
    """The stack is what a step took: 1 s of waiting and 5 of training; 6 of sampling and scoring ran beside it."""
    line = {
        "seconds_step": 6.0,
        "seconds_wait": 1.0,
        "seconds_train": 5.0,
        "seconds_rollout": 5.5,
        "seconds_reward": 0.5,
    }
    figure = drawn([{"step": 1, **line}, {"step": 2, **line}])["seconds"]
    assert series(figure) == {"wait for completions": [1.0, 1.0], "train": [5.0, 5.0]}
    assert "Beside it, of the next step: rollout 5.5 s, reward 0.5 s." in figure.caption


@pytest.mark.parametrize("present", [0, 1])
def test_held_out_is_drawn_from_two_evaluations(present):
    evaluations = [{"step": 0, "accuracy": 0.1}, {"step": 5, "accuracy": 0.5}][: present + 1]
    assert ("held-out" in drawn([{"step": 1}], evaluations)) == (present == 1)


def test_held_out_has_its_interval():
    evaluations = [
        {"step": 0, "accuracy": 0.25, "accuracy_low": 0.125, "accuracy_high": 0.5},
        {"step": 5, "accuracy": 0.5, "accuracy_low": None, "accuracy_high": None},
    ]
    (line,) = drawn([{"step": 1}], evaluations)["held-out"].data["series"]
    assert (line["low"], line["high"], line["bars"]) == ([0.125, None], [0.5, None], True)


def test_nothing_is_drawn_from_nothing():
    assert drawn([{"step": 1}]) == {}
    assert drawn([{"step": 1, "reward_mean": "high", "truncated_share": True}]) == {}


def test_steps_that_have_no_number_are_counted():
    assert drawn([{"reward_mean": 0.5}, {"reward_mean": 0.75}])["reward"].data["x"] == [1, 2]


def test_large_step_numbers_keep_their_digits():
    assert drawn([{"step": 1234567, "reward_mean": 0.5}])["reward"].data["x"] == [1234567]


def test_long_runs_are_thinned_to_equal_stretches():
    steps = [float(i) for i in range(10_000)]
    thinned, (values,) = thin(steps, [[1.0, None] * 5000], most=1000)
    assert len(thinned) == 1000
    assert thinned[0] == 4.5
    assert values == [1.0] * 1000
    data = drawn([{"step": i, "reward_mean": 0.5} for i in range(10_000)])["reward"].data
    assert len(json.dumps(data)) < 50_000


def test_json_cannot_end_its_script_element():
    value = {"x": "</script><!--<script>&"}
    safe = script_safe_json(value)
    assert not set("<>&") & set(safe)
    assert json.loads(safe) == value


def test_pass_rates_by_hand():
    """Of step 1's four groups: 0 of 4, 1 of 4 (the first quarter's bound counts to it), 3 of 4, all of 4."""
    rates = {"a": 0, "b": 1, "c": 3, "d": 4}
    rows = [row(1, name, float(i < right)) for name, right in rates.items() for i in range(4)]
    rows += [row(2, "a", 1.0), row(2, "a", None), row(2, "e", None)]
    data = of_rows(rows)["pass-rates"].data
    assert data["x"] == ["1", "2"]
    assert dict(zip(data["rows"], data["cells"], strict=True)) == {
        "0": [0.25, 0],
        "0 to ¼": [0.25, 0],
        "¼ to ½": [0, 0],
        "½ to ¾": [0.25, 0],
        "¾ to 1": [0, 0],
        "1": [0.25, 1],
    }


def test_prompts_by_steps_by_hand():
    rows = [row(1, "easy", 1.0), row(1, "easy", 1.0), row(1, "hard", 0.0), row(1, "once", 1.0)]
    rows += [row(2, "hard", 1.0), row(2, "hard", 0.0), row(3, "easy", 0.0), row(3, "easy", 1.0)]
    figure = of_rows(rows)["prompts"]
    assert len(set(figure.data["keys"])) == 2  # the one drawn once is left out
    assert figure.data["rows"] == ["prompt easy", "prompt hard"]  # 3 of 4 right, 1 of 3
    assert figure.data["cells"] == [[1, None, 0.5], [0, 0.5, None]]
    assert "of 3" in figure.caption


def test_where_no_prompt_came_twice_there_is_no_grid_of_prompts():
    assert "prompts" not in of_rows([row(1, "a", 1.0), row(2, "b", 0.0)])


def test_more_steps_than_columns_are_taken_together():
    rows = [row(step, "a", float(step <= 60)) for step in range(1, 121)]
    data = of_rows(rows)["prompts"].data
    assert len(data["x"]) == 60
    assert data["x"][:2] == ["1–2", "3–4"]
    assert data["cells"] == [[1.0] * 30 + [0.0] * 30]


def test_advantages_by_hand():
    """Most is 2, so 40 bins of 0.1: −2 in the first, 2 in the last, 0 counted apart."""
    rows = [
        row(1, "a", 1.0, advantage=2.0),
        row(1, "a", 0.0, advantage=-2.0),
        row(1, "a", 0.0, advantage=0.0),
        row(1, "a", 0.0, advantage=0.05),
    ]
    figure = of_rows(rows)["advantages"]
    counts = series(figure)
    assert (counts["right"][39], sum(counts["right"])) == (1, 1)
    assert (counts["wrong"][0], counts["wrong"][20], sum(counts["wrong"])) == (1, 1, 2)
    assert figure.data["edges"][:2] == [-2.0, -1.9]
    assert "4 completions, 25% of them with an advantage of exactly 0" in figure.caption


def test_lengths_of_right_and_wrong_completions():
    rows = [
        row(1, "a", 1.0, completion_tokens=10),
        row(1, "a", 0.0, completion_tokens=20),
        row(1, "a", 0.0, completion_tokens=40),
        row(1, "a", None, completion_tokens=1000),
    ]
    figure = of_rows(rows)["lengths"]
    assert series(figure) == {"right, mean tokens": [10], "wrong, mean tokens": [30]}
    assert "right ones 10.0, wrong ones 30.0" in figure.caption
