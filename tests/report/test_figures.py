"""The figures: drawn from the numbers present, thinned where a run is long."""

from __future__ import annotations

import json

import pytest

from grouprl.report.figures import figures
from grouprl.report.series import thin


def drawn(metrics, evaluations=()):
    return {figure.name: figure for figure in figures(metrics, list(evaluations))}


def test_the_band_is_the_mean_with_the_std_around_it():
    records = [
        {"step": 1, "reward_mean": 0.5, "reward_group_std": 0.25},
        {"step": 2, "reward_mean": None, "reward_group_std": None},
        {"step": 3, "reward_mean": 1.0, "reward_group_std": 0.5},
    ]
    low, high, line = json.loads(drawn(records)["reward"].data)
    assert (low["x"], low["y"], high["y"]) == ([1, 3], [0.25, 0.5], [0.75, 1.5])
    assert high["fill"] == "tonexty"
    assert line["y"] == [0.5, None, 1.0]


def test_one_step_has_a_bar_for_a_band_and_for_areas():
    record = {"step": 1, "reward_mean": 0.5, "reward_group_std": 0.25, "groups_informative_share": 1.0}
    figure = drawn([record])
    (line,) = json.loads(figure["reward"].data)
    assert line["error_y"]["array"] == [0.25]
    assert [trace["type"] for trace in json.loads(figure["groups"].data)] == ["bar"]


def test_shares_that_do_not_reach_one_get_the_rest_named():
    record = {"groups_informative_share": 0.5, "groups_all_low_share": 0.25}
    traces = json.loads(drawn([record | {"step": 1}, record | {"step": 2}])["groups"].data)
    assert [(trace["name"], trace["y"]) for trace in traces] == [
        ("informative", [0.5, 0.5]),
        ("all low", [0.25, 0.25]),
        ("equal, in between", [0.25, 0.25]),
    ]


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
    other = json.loads(drawn(records)["seconds"].data)[-1]
    assert (other["name"], other["y"]) == ("other", [1.0, 0.0])


@pytest.mark.parametrize("present", [0, 1])
def test_held_out_is_drawn_from_two_evaluations(present):
    evaluations = [{"step": 0, "accuracy": 0.1}, {"step": 5, "accuracy": 0.5}][: present + 1]
    assert ("held-out" in drawn([{"step": 1}], evaluations)) == (present == 1)


def test_held_out_intervals_are_distances_from_the_mean():
    evaluations = [
        {"step": 0, "accuracy": 0.25, "accuracy_low": 0.125, "accuracy_high": 0.5},
        {"step": 5, "accuracy": 0.5, "accuracy_low": None, "accuracy_high": None},
    ]
    (line,) = json.loads(drawn([{"step": 1}], evaluations)["held-out"].data)
    assert (line["error_y"]["array"], line["error_y"]["arrayminus"]) == ([0.25, None], [0.125, None])


def test_nothing_is_drawn_from_nothing():
    assert figures([{"step": 1}], []) == []
    assert figures([{"step": 1, "reward_mean": "high", "truncated_share": True}], []) == []


def test_long_runs_are_thinned_to_equal_stretches():
    steps = [float(i) for i in range(10_000)]
    thinned, (values,) = thin(steps, [[1.0, None] * 5000], most=1000)
    assert len(thinned) == 1000
    assert thinned[0] == 4.5
    assert values == [1.0] * 1000
    assert len(drawn([{"step": i, "reward_mean": 0.5} for i in range(10_000)])["reward"].data) < 50_000


def test_json_cannot_end_its_script_element():
    from grouprl.report.html import _script_safe_json

    text = json.dumps({"x": "</script><!--<script>&"})
    safe = _script_safe_json(text)
    assert not set("<>&") & set(safe)
    assert json.loads(safe) == json.loads(text)
