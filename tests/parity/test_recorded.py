"""What frameworks' own functions gave (`make parity` records it) against what grouprl gives for the same rewards."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import grouprl
from grouprl import advantages

RECORDED = Path(__file__).parent / "recorded"
RECORDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))
}
EPS32 = 2.0**-23

# Recorded function → the same estimator here. The group-normalised ones go by ddof and eps alone.
NORMALISED = {
    ("trl", "grpo"): (1, 1e-4),
    ("verl", "grpo"): (1, 1e-6),
    ("verl", "grpo_vectorized"): (1, 1e-6),
    ("openrlhf", "group_norm"): (1, 1e-9),
    ("skyrl", "grpo"): (1, 1e-6),
    ("ms_swift", "grpo"): (1, 1e-4),
    ("ms_swift", "grpo, dynamic"): (1, 1e-4),
    ("tunix", "grpo"): (1, 1e-6),
}
NAMED = {
    ("trl", "grpo, scale_rewards=none"): ("dr_grpo", {}),
    ("trl", "grpo, scale_rewards=batch"): ("batch_std", {"ddof": 1, "eps": 1e-4}),
    ("trl", "rloo"): ("rloo", {}),
    ("verl", "dr_grpo"): ("dr_grpo", {}),
    ("verl", "rloo"): ("rloo", {}),
    ("verl", "rloo_vectorized"): ("rloo", {}),
    ("verl", "opo"): ("opo", {"lengths": 1}),
    ("verl", "opo, 1 to 4 tokens"): ("opo", {"lengths": 4}),
    ("verl", "remax, greedy reward 0.5"): ("remax", {"greedy_rewards": 0.5}),
    ("openrlhf", "dr_grpo"): ("dr_grpo", {}),
    ("openrlhf", "rloo"): ("rloo", {}),
    ("skyrl", "dr_grpo"): ("dr_grpo", {}),
    ("skyrl", "rloo"): ("rloo", {}),
    ("skyrl", "maxrl"): ("maxrl", {"eps": 1e-6}),
    ("ms_swift", "dr_grpo"): ("dr_grpo", {}),
    ("ms_swift", "rloo"): ("rloo", {}),
    ("tunix", "drgrpo"): ("dr_grpo", {}),
    ("tunix", "rloo"): ("rloo", {}),
    ("art", "grpo"): ("grpo", {"eps": 0.0}),
    ("art", "dr_grpo"): ("dr_grpo", {}),
    ("tinker_cookbook", "dr_grpo"): ("dr_grpo", {}),
}


def flat(groups):
    return np.array([x for group in groups for x in group], np.float32)


def ids(groups):
    return np.array([i for i, group in enumerate(groups) for _ in group])


def cases(kind, functions):
    """Every recorded case of these functions that was not refused, as parameters."""
    return [
        pytest.param(framework, function, case, id=f"{framework}, {function}: {name}")
        for framework, function in functions
        for name, case in RECORDS[framework]["functions"][function][kind].items()
        if "advantages" in case
    ]


def rounding(rewards, scale):
    """How far a float32 computation may be off: a few roundings of the largest reward, over the smallest std."""
    return 16 * EPS32 * (1 + np.abs(rewards).max() / scale)


def smallest_std(groups, ddof):
    return min(float(np.std(np.float32(group), ddof=ddof, dtype=np.float64)) for group in groups)


@pytest.mark.parametrize(("framework", "function", "case"), cases("healthy", NORMALISED))
def test_healthy_groups_get_the_frameworks_numbers(framework, function, case):
    ddof, eps = NORMALISED[framework, function]
    rewards = flat(case["rewards"])
    ours = grouprl.group_advantages(rewards, ids(case["rewards"]), ddof=ddof, eps=eps)
    tolerance = rounding(rewards, smallest_std(case["rewards"], ddof))
    np.testing.assert_allclose(ours, flat(case["advantages"]), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("framework", "function", "case"), cases("healthy", NORMALISED))
def test_a_convention_is_that_frameworks_ddof_and_eps(framework, function, case):
    rewards, group_ids = flat(case["rewards"]), ids(case["rewards"])
    ddof, eps = NORMALISED[framework, function]
    ours = advantages.grpo(rewards, group_ids, convention=framework)
    assert np.array_equal(ours, grouprl.group_advantages(rewards, group_ids, ddof=ddof, eps=eps))


@pytest.mark.parametrize(("framework", "function", "case"), cases("healthy", NAMED))
def test_named_estimators_get_the_frameworks_numbers(framework, function, case):
    name, keywords = NAMED[framework, function]
    rewards = flat(case["rewards"])
    if name == "maxrl" and rewards.min() < 0:
        with pytest.raises(grouprl.errors.InputError, match="negative"):
            advantages.maxrl(rewards, ids(case["rewards"]))
        return
    if "lengths" in keywords:
        keywords = {"lengths": 1 + np.arange(rewards.size) % keywords["lengths"]}
    if "greedy_rewards" in keywords:
        keywords = {"greedy_rewards": np.full_like(rewards, keywords["greedy_rewards"])}
    ours = advantages.get(name)(rewards, ids(case["rewards"]), **keywords)
    scale = smallest_std(case["rewards"], 0) if name == "grpo" else 1
    np.testing.assert_allclose(ours, flat(case["advantages"]), rtol=1e-5, atol=rounding(rewards, scale))


@pytest.mark.parametrize(
    ("function", "longest"),
    [
        ("reinforce_plus_plus", 1),
        ("reinforce_plus_plus, 1 to 4 tokens", 4),
        ("reinforce_plus_plus_baseline", 1),
    ],
)
@pytest.mark.parametrize("case", RECORDS["verl"]["functions"]["reinforce_plus_plus"]["healthy"])
def test_verl_whitens_with_the_sample_std(function, longest, case):
    """So its values are √((n − 1)/n) of the population's, over the n tokens of the batch."""
    case = RECORDS["verl"]["functions"][function]["healthy"][case]
    rewards = flat(case["rewards"])
    lengths = 1 + np.arange(rewards.size) % longest
    n = lengths.sum()
    estimator = advantages.get(function.partition(",")[0])
    ours = estimator(rewards, ids(case["rewards"]), lengths=lengths, eps=0.0) * math.sqrt((n - 1) / n)
    np.testing.assert_allclose(ours, flat(case["advantages"]), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", RECORDS["verl"]["functions"]["gpg"]["healthy"])
def test_verl_scales_gpg_by_the_share_of_rewards_that_are_not_zero(case):
    """The paper, and grouprl, by the share of groups that have a spread."""
    case = RECORDS["verl"]["functions"]["gpg"]["healthy"][case]
    rewards = flat(case["rewards"])
    scale = rewards.size / np.count_nonzero(rewards)
    ours = scale * advantages.dr_grpo(rewards, ids(case["rewards"]))
    np.testing.assert_allclose(ours, flat(case["advantages"]), rtol=1e-5, atol=rounding(rewards, 1) * scale)


EQUAL = [
    "0.1 × 7",
    "0.7 × 11",
    "100.1 × 7",
    "0.9 × 3",
    "0.9 × 7",
    "1000.1 × 7",
    "two groups of 0.3 × 8",
]


@pytest.mark.parametrize(("framework", "function", "case"), cases("sick", NORMALISED))
def test_sick_groups_get_the_contract(framework, function, case):
    """Zero for no spread, for one member and for what is unscored; the others as if that had not been sampled."""
    ddof, eps = NORMALISED[framework, function]
    ours = grouprl.group_advantages(flat(case["rewards"]), ids(case["rewards"]), ddof=ddof, eps=eps)
    rest = iter(ours)
    for group in case["rewards"]:
        result = np.array([next(rest) for _ in group])
        scored = np.isfinite(group)
        members = np.float32(group)[scored]
        assert not result[~scored].any()
        if members.min() == members.max():
            assert not result.any()
        else:
            std = members.std(ddof=ddof, dtype=np.float64)
            exact = (members.astype(np.float64) - members.mean(dtype=np.float64)) / (std + eps)
            np.testing.assert_allclose(result[scored], exact, rtol=1e-6)
            assert np.abs(result).max() <= math.sqrt(len(members) - 1)


@pytest.mark.parametrize(("framework", "function"), NORMALISED)
def test_equal_rewards_get_noise_from_the_framework_and_nothing_here(framework, function):
    ddof, eps = NORMALISED[framework, function]
    largest = 0.0
    for name in EQUAL:
        case = sick(framework, function, name)
        assert not grouprl.group_advantages(
            flat(case["rewards"]), ids(case["rewards"]), ddof=ddof, eps=eps
        ).any()
        largest = max(largest, np.abs(flat(case["advantages"])).max())
    assert largest > 0.1


def sick(framework, function, case):
    return RECORDS[framework]["functions"][function]["sick"][case]


def recorded(framework, function, case):
    (group,) = sick(framework, function, case)["advantages"]
    return group


@pytest.mark.parametrize(
    ("framework", "function", "case", "advantage"),
    [
        ("trl", "grpo", "1000.1 × 7", -0.368),
        ("ms_swift", "grpo", "1000.1 × 7", -0.368),
        ("verl", "grpo", "0.9 × 3", 0.0555),
        ("verl", "grpo_vectorized", "0.9 × 3", 0.0555),
        ("skyrl", "grpo", "0.9 × 3", 0.0555),
        ("tunix", "grpo", "0.9 × 7", -0.056),
        ("openrlhf", "group_norm", "0.9 × 7", -0.912),
        ("verl", "grpo", "a group of one", 5.0),
        ("verl", "grpo_vectorized", "a group of one", 5.0),
        ("skyrl", "grpo", "a group of one", 5.0),
        ("ms_swift", "grpo", "a group of one", 0.0),
        ("tunix", "grpo", "a group of one", math.nan),
        ("openrlhf", "group_norm", "a group of one", math.nan),
    ],
)
def test_what_docs_conventions_says_of_a_framework_was_recorded(framework, function, case, advantage):
    group = recorded(framework, function, case)
    np.testing.assert_allclose(group, [advantage] * len(group), rtol=5e-3)


@pytest.mark.parametrize("framework", ["verl", "skyrl", "tunix"])
def test_a_missing_reward_takes_its_siblings_along_elsewhere(framework):
    assert all(math.isnan(a) for a in recorded(framework, "grpo", "a NaN among four"))


def test_art_drops_the_whole_group_for_a_missing_reward():
    assert recorded("art", "grpo", "a NaN among four") == [0.0] * 4


def test_art_gives_equal_rewards_nothing_as_we_do():
    for name in EQUAL:
        assert not flat(sick("art", "grpo", name)["advantages"]).any()


def test_trl_leaves_a_missing_reward_out_as_we_do():
    theirs = recorded("trl", "grpo", "a NaN among four")
    ours = grouprl.group_advantages(np.float32([1.0, np.nan, 0.0, 1.0]), ddof=1, eps=1e-4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_ms_swift_takes_a_missing_reward_for_zero():
    theirs = recorded("ms_swift", "grpo", "a NaN among four")
    ours = grouprl.group_advantages(np.float32([1.0, 0.0, 0.0, 1.0]), ddof=1, eps=1e-4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_trl_refuses_groups_of_one():
    assert "at least 2 generations" in sick("trl", "grpo", "a group of one")["refused"]


@pytest.mark.parametrize("framework", RECORDS)
def test_a_record_names_what_made_it(framework):
    record = RECORDS[framework]
    assert record["framework"]
    assert record["version"]
    assert record["python"]
    for function in record["functions"].values():
        assert "." in function["path"]
        assert set(function) >= {"healthy", "sick"}
