"""SPO: what it remembers of each prompt, and how that is saved."""

import json
import math

import pytest
import torch

from grouprl import advantages
from grouprl.errors import InputError


def test_the_baseline_is_what_was_known_before():
    tracker = advantages.spo(keep=0.5, strength=2.0)
    tracker([1.0, 0.0, 1.0], ["a", "a", "b"])
    # a: (½·1 + 1, ½·1 + 1), b: (½·1 + 1, ½·1 + 0)
    assert tracker.value("a") == 0.5
    assert tracker.value("b") == 0.75
    got = tracker(torch.tensor([1.0, 1.0], dtype=torch.float64), ["a", "b"])
    torch.testing.assert_close(got, torch.tensor([1.0, -1.0], dtype=torch.float64), rtol=0, atol=1e-4)


def test_state_survives_json():
    tracker = advantages.spo()
    prompts = torch.tensor([3, 3, -1])
    tracker(torch.tensor([1.0, 0.0, 1.0]), prompts)
    tracker([1.0], [("file", 7)])
    again = advantages.spo()
    again.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert [again.value(p) for p in (3, -1, ("file", 7))] == [tracker.value(p) for p in (3, -1, ("file", 7))]
    assert torch.equal(again([1.0, 0.0, 0.5], [3, -1, 9]), tracker([1.0, 0.0, 0.5], [3, -1, 9]))


def test_unscored_teach_nothing():
    tracker = advantages.spo()
    got = tracker([1.0, math.nan, 0.0], ["a", "b", "c"], valid=[True, True, False])
    assert got.tolist() == [0.0, 0.0, 0.0]
    assert tracker.value("b") == tracker.value("c") == 0.5 < tracker.value("a")


def test_rewards_on_another_scale():
    minus, plain = advantages.spo(low=-1.0), advantages.spo()
    assert torch.equal(minus([-1.0, 1.0], ["a", "b"]), plain([0.0, 1.0], ["a", "b"]))
    assert minus.value("b") == plain.value("b")


def test_each_start_has_its_own_state():
    estimator = advantages.get("spo")
    first, second = estimator.start(), estimator.start(prior=0.25)
    first([1.0], ["a"])
    assert second.value("a") == 0.25
    assert estimator([1.0, 0.0], ["a", "b"]).tolist() == first([1.0, 0.0], ["x", "y"]).tolist()


def test_refusals():
    for keywords in ({"keep": 2.0}, {"prior": -1.0}, {"strength": 0.0}, {"low": 1.0}):
        with pytest.raises(InputError, match="spo"):
            advantages.spo(**keywords)
    with pytest.raises(InputError, match="group_ids are missing"):
        advantages.spo()([1.0, 0.0])
    for state in ({}, {"trackers": [1]}, {"trackers": [["a", -1.0, 1.0]]}):
        with pytest.raises(InputError, match="state"):
            advantages.spo().load_state_dict(state)
