"""Several ranks as one run, on gloo processes: the updates of one process, on replayed completions."""

import math

import pytest
import torch
import update_ranks
from update_ranks import CASES

from grouprl.training.minibatches import deal, number_members
from grouprl.training.ranks import Ranks


@pytest.fixture(scope="module")
def alone():
    return {case.name: update_ranks.outcome(case, Ranks()) for case in CASES}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("size", [2, 4])
def test_updates_are_those_of_one_process(size, strategy, alone):
    """Also with uneven shares and idle ranks, and where there is no update to make. Every rank has the same bits."""
    ranks = update_ranks.on_ranks(size, strategy)
    for number, case in enumerate(update_ranks.cases(strategy)):
        expected = alone[case.name]
        first = ranks[0][number]
        for found in ranks:
            for name, weight in found[number].weights.items():
                assert torch.equal(weight, first.weights[name]), (case.name, name)
        for name, weight in expected.weights.items():
            torch.testing.assert_close(
                first.weights[name], weight, rtol=1e-5, atol=2e-6, msg=f"{case.name}, {name}"
            )
        agree(first.result, expected.result, case.name)
        assert first.penalties == pytest.approx(expected.penalties, abs=1e-5), case.name


def agree(found, expected, name):
    """Losses, metrics and log-probs; what a completion's mean log-prob is None for, too."""
    assert found.metrics.keys() == expected.metrics.keys(), name
    for key, value in expected.metrics.items():
        assert found.metrics[key] == pytest.approx(value, rel=1e-4, abs=2e-6, nan_ok=True), (name, key)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4, nan_ok=True), name
    assert [m is None for m in found.trainer_logprobs_mean] == [
        m is None for m in expected.trainer_logprobs_mean
    ]
    for mine, theirs in zip(found.trainer_logprobs_mean, expected.trainer_logprobs_mean, strict=True):
        assert mine is None or mine == pytest.approx(theirs, abs=1e-5)
    assert (found.updates, found.completions) == (expected.updates, expected.completions), name
    assert found.warnings == expected.warnings, name


def test_the_cases_are_what_they_say(alone):
    named = {name: found.result for name, found in alone.items()}
    assert named["plain"].updates == 1
    assert named["four updates"].updates == 4
    assert named["uneven: a dead group"].completions == 6
    assert named["idle: one completion"].completions == 1
    assert (named["all idle"].completions, named["all idle"].updates) == (0, 1)
    assert named["not a number"].updates == 0
    assert math.isnan(named["not a number"].grad_norm)
    assert named["clipped"].grad_norm > 0.1
    assert "value_loss" in named["critic"].metrics
    assert all(p is not None for p in alone["kl in the reward"].penalties)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 9, 11])
def test_groups_are_dealt_whole_while_there_are_enough(parts):
    members = number_members(update_ranks.GROUPS)
    shares = deal(members, parts)
    assert len(shares) == parts
    assert sorted(m[0] for share in shares for m in share) == list(range(9))
    assert all([m[0] for m in share] == sorted(m[0] for m in share) for share in shares)
    groups = [{m[1].group_id for m in share} for share in shares]
    if parts <= 3:
        assert sum(map(len, groups)) == 3  # each in one share alone
    assert sum(not share for share in shares) == max(parts - 9, 0)


def test_no_completion_is_dealt_to_nobody():
    assert deal([], 3) == [[], [], []]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_are_contiguous_and_even(count, size):
    shares = [Ranks(rank, size).share(count) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
