"""grouprl inside slime, against a recording of its interface (slime_interface.py): pip does not have slime."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from slime_interface import Sample, arguments, load_function, post_processed

from grouprl import advantages
from grouprl.errors import ConfigError, EstimatorError

PATH = "grouprl.integrations.slime"


def samples(rewards, groups, masks=None):
    return [
        Sample(index=i, group_index=group, reward=reward, response_length=4, loss_mask=masks and masks[i])
        for i, (reward, group) in enumerate(zip(rewards, groups, strict=True))
    ]


def test_the_path_of_every_estimator_is_found_as_slime_looks_for_it():
    for name in advantages.names():
        assert callable(load_function(f"{PATH}.{name}"))
    with pytest.raises(AttributeError, match="'grop', expected one of grpo"):
        load_function(f"{PATH}.grop")


def test_the_module_needs_no_slime():
    assert importlib.import_module(PATH).HOOKS


def test_the_numbers_are_those_of_slime_for_equal_groups():
    """slime: reward minus the group's mean, over the sample std + 1e-6."""
    rewards = [1.0, 0.0, 0.5, 2.0, -1.0, 0.25, 3.0, 0.75]
    groups = [0] * 4 + [1] * 4
    made = samples(rewards, groups)
    args = arguments(n_samples_per_prompt=4, rollout_batch_size=2)
    raw, theirs = post_processed(args, made)
    args = arguments(
        n_samples_per_prompt=4,
        rollout_batch_size=2,
        custom_reward_post_process_path=f"{PATH}.grpo",
        grouprl={"ddof": 1, "eps": 1e-6},
    )
    own, mine = post_processed(args, made)
    assert own == raw == rewards
    assert mine == pytest.approx(theirs, abs=2e-6)
    assert all(isinstance(a, float) for a in mine)


def test_groups_of_different_sizes_stay_groups_where_slime_makes_one_of_them():
    """After a filter dropped a sample slime takes the whole batch for one group; group_index says otherwise."""
    rewards, groups = [1.0, 0.0, 5.0, 4.0, 6.0], [0, 0, 1, 1, 1]
    args = {"n_samples_per_prompt": 3, "rollout_batch_size": 2}
    _, theirs = post_processed(arguments(**args), samples(rewards, groups))
    _, mine = post_processed(
        arguments(**args, custom_reward_post_process_path=f"{PATH}.dr_grpo"), samples(rewards, groups)
    )
    assert mine == pytest.approx([0.5, -0.5, 0.0, -1.0, 1.0])
    assert sum(theirs[:2]) < -1.0  # the first group against the second


def test_a_reward_that_is_missing_is_unscored_and_equal_ones_are_zero():
    made = samples([1.0, None, 0.0, *[1000.1] * 7], [0] * 3 + [1] * 7)
    raw, found = post_processed(arguments(custom_reward_post_process_path=f"{PATH}.grpo"), made)
    assert math.isnan(raw[1])
    assert found[:3] == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)
    assert found[3:] == [0.0] * 7


def test_lengths_are_those_of_trained_tokens():
    masks = [[1, 1, 1, 0], [1, 0, 0, 0]]
    made = samples([1.0, 0.0], [0, 0], masks)
    _, found = post_processed(arguments(custom_reward_post_process_path=f"{PATH}.opo"), made)
    assert found == pytest.approx([1 - 0.75, -0.75])  # the baseline is (3·1 + 1·0) / 4
    _, found = post_processed(
        arguments(custom_reward_post_process_path=f"{PATH}.opo"), samples([1.0, 0.0], [0, 0])
    )
    assert found == pytest.approx([0.5, -0.5])  # no mask: response_length


def test_rewards_by_name_are_taken_apart():
    rewards = [{"right": 1.0, "form": 0.0}, {"right": 0.0, "form": 1.0}, {"right": 0.0, "form": 0.0}]
    made = samples(rewards, [0] * 3)
    args = arguments(custom_reward_post_process_path=f"{PATH}.gdpo", reward_key="right")
    raw, found = post_processed(args, made)
    components = {name: torch.tensor([r[name] for r in rewards]) for name in ("right", "form")}
    expected = advantages.gdpo(torch.tensor(raw), [0] * 3, components=components)
    assert found == pytest.approx(expected.tolist())
    with pytest.raises(EstimatorError, match="a sample's reward is no dict"):
        post_processed(arguments(custom_reward_post_process_path=f"{PATH}.gdpo"), samples([1.0, 0.0], [0, 0]))


def test_options_come_from_the_configuration_file():
    path = f"{PATH}.ngrpo"
    made = samples([1.0, 0.0], [0, 0])
    _, found = post_processed(
        arguments(custom_reward_post_process_path=path, grouprl={"max_reward": 2.0}), made
    )
    assert found == pytest.approx(advantages.ngrpo([1.0, 0.0], max_reward=2.0).tolist())
    with pytest.raises(
        ConfigError, match=r"give grouprl: \{max_reward: …\} in the file of --custom-config-path"
    ):
        post_processed(arguments(custom_reward_post_process_path=path), made)
    with pytest.raises(ConfigError, match="grouprl is 3 in the file"):
        post_processed(arguments(custom_reward_post_process_path=path, grouprl=3), made)


@pytest.mark.parametrize("theirs", ["ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_an_estimator_that_would_transform_advantages_again_is_refused(theirs):
    args = arguments(custom_reward_post_process_path=f"{PATH}.grpo", advantage_estimator=theirs)
    with pytest.raises(
        ConfigError, match=f"--advantage-estimator is {theirs}, expected one of grpo, gspo, cispo"
    ):
        post_processed(args, samples([1.0, 0.0], [0, 0]))


def test_what_slime_has_not_enough_for_says_so():
    made = samples([1.0, 0.0], [0, 0])
    for name, why in {
        "remax": "samples no greedy",
        "spo": "checkpoints have no place",
        "gae": "looks at",
    }.items():
        with pytest.raises(ConfigError, match=why):
            post_processed(arguments(custom_reward_post_process_path=f"{PATH}.{name}"), made)


def test_bad_samples_are_refused():
    args = arguments(custom_reward_post_process_path=f"{PATH}.grpo")
    with pytest.raises(EstimatorError, match="sample 1 has no group_index"):
        post_processed(args, samples([1.0, 0.0], [0, None]))
    with pytest.raises(EstimatorError, match=r"the reward of sample 0 is \{'a': 1.0\}, expected a number"):
        post_processed(args, samples([{"a": 1.0}], [0]))
