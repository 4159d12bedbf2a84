"""grouprl inside verl: its registry, its own functions beside ours, and the trainers' own path to the advantages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import documented
import numpy as np
import pytest
import torch

from grouprl.errors import ConfigError, EstimatorError
from grouprl.integrations import versions

if versions.installed("verl") is None:
    pytest.skip(
        "verl is not installed here; `make integrations` runs these tests in an environment that has it",
        allow_module_level=True,
    )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what verl's imports say of each other
    import verl
    from hydra import compose, initialize_config_dir
    from verl import DataProto
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.config import omega_conf_to_dataclass

from grouprl import advantages
from grouprl.integrations import verl as ours

pytestmark = [
    # verl, ray and hydra say these of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
REWARDS = [1.0, 0.0, 0.5, 2.0, -1.0, 0.25, 3.0, 0.75, 1.5]
UIDS = ["a", "b", "a", "c", "b", "a", "c", "b", "c"]  # interleaved, as after verl balanced the batch
TURNS = [  # 1 where the policy speaks: several turns with a tool's words between, one cut short, one of all tokens
    [1, 1, 0, 0, 1, 0],
    [1, 0, 0, 1, 1, 1],
    [1, 1, 1, 1, 1, 1],
    [1, 0, 0, 0, 0, 0],
    [1, 1, 1, 0, 0, 0],
    [1, 0, 1, 0, 1, 0],
    [1, 1, 0, 1, 1, 0],
    [1, 1, 1, 1, 0, 0],
    [1, 0, 0, 1, 0, 0],
]


def batch(rewards=REWARDS, uids=UIDS, mask=TURNS, dtype=torch.float32) -> DataProto:
    """As verl's reward loop leaves it: a row's reward on the last token that is the policy's."""
    mask = torch.tensor(mask)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    scores = torch.zeros(mask.shape, dtype=dtype)
    scores[torch.arange(len(rewards)), last] = torch.tensor(rewards, dtype=dtype)
    return DataProto.from_dict(
        tensors={"token_level_rewards": scores, "response_mask": mask},
        non_tensors={"uid": np.array(uids, dtype=object)},
    )


def algorithm(*overrides: str):
    """The section of verl's own configuration, with what a user writes on the command line."""
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        return compose("ppo_trainer", overrides=list(overrides)).algorithm


def advantages_of(data: DataProto, *overrides: str) -> torch.Tensor:
    """Through the function that verl's trainers call."""
    config = algorithm(*overrides)
    found = compute_advantage(
        data,
        adv_estimator=config.adv_estimator,
        norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
        config=config,
    )
    if config.adv_estimator.startswith("grouprl_"):
        assert found.batch["returns"].equal(found.batch["advantages"])
    return found.batch["advantages"]


# ---- the registry ----


@pytest.mark.parametrize(
    ("environment", "registered"),
    [
        ({}, True),
        ({"VERL_USE_EXTERNAL_PLUGINS": "none"}, False),
        (
            {
                "VERL_USE_EXTERNAL_PLUGINS": "none",
                "VERL_USE_EXTERNAL_MODULES": "grouprl.integrations.verl",
            },
            True,
        ),
    ],
)
def test_importing_verl_is_enough(environment, registered):
    script = (
        "from verl.trainer.ppo import core_algos\nprint('grouprl_grpo' in core_algos.ADV_ESTIMATOR_REGISTRY)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip().splitlines()[-1] == str(registered), done.stderr


def test_every_estimator_has_a_name_there_and_may_be_registered_again():
    ours.register()
    ours.register("rloo")
    assert {f"grouprl_{name}" for name in advantages.names()} <= set(core_algos.ADV_ESTIMATOR_REGISTRY)
    assert "entry point" in ours.HOOKS[1]
    assert "no entry point" not in ours.HOOKS[1]


def test_one_of_ones_own_is_registered_by_name():
    @advantages.register("test_verl_own", laws={"finite"})
    def own(rewards, group_ids=None, *, factor=1.0, valid=None):
        return rewards * factor

    with pytest.raises(ValueError, match="Unknown advantage estimator"):
        core_algos.get_adv_estimator_fn("grouprl_test_verl_own")
    ours.register("test_verl_own")
    found = advantages_of(
        batch(), "algorithm.adv_estimator=grouprl_test_verl_own", "+algorithm.grouprl.factor=2.0"
    )
    assert found.equal(2 * torch.tensor(REWARDS)[:, None] * torch.tensor(TURNS))


# ---- the numbers, beside verl's own functions ----


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["grouprl_grpo", "+algorithm.grouprl.convention=verl"], ["grpo"]),
        (["grouprl_grpo", "+algorithm.grouprl.convention=verl"], ["grpo_vectorized"]),
        (["grouprl_dr_grpo"], ["grpo", "algorithm.norm_adv_by_std_in_grpo=False"]),
        (["grouprl_rloo"], ["rloo"]),
        (["grouprl_rloo"], ["rloo_vectorized"]),
        (["grouprl_opo"], ["opo"]),
    ],
    ids=lambda given: given[0],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_healthy_groups_get_the_numbers_of_verl(mine, theirs, dtype):
    found, expected = (
        advantages_of(batch(dtype=dtype), f"algorithm.adv_estimator={name}", *more)
        for name, *more in (mine, theirs)
    )
    assert found.dtype == torch.float32
    assert found.shape == expected.shape == (9, 6)
    assert float((found - expected.float()).abs().max()) < 2e-6
    assert float(expected.abs().max()) > 0.5
    assert not found[torch.tensor(TURNS) == 0].any()


def test_opo_weighs_by_trained_tokens():
    """Baseline Σ l R / Σ l over tokens of the policy's own: for a's 3, 6 and 3 tokens (3·1 + 6·½ + 3·¼) / 12."""
    found = advantages_of(batch(), "algorithm.adv_estimator=grouprl_opo")
    assert found[0, 0].item() == pytest.approx(1.0 - 6.75 / 12, abs=1e-6)


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_reinforce_plus_plus_is_larger_by_the_documented_factor(name):
    """verl whitens with the sample std over trained tokens, grouprl with the population's (docs/conventions.md)."""
    rewards, mask = REWARDS, [[1, 1, 0]] * 4 + [[1, 0, 0]] * 5
    theirs = advantages_of(batch(rewards, UIDS, mask), f"algorithm.adv_estimator={name}")
    mine = advantages_of(batch(rewards, UIDS, mask), f"algorithm.adv_estimator=grouprl_{name}")
    tokens = 13
    trained = torch.tensor(mask) > 0
    ratio = (mine / theirs)[trained]
    assert ratio.tolist() == pytest.approx([(tokens / (tokens - 1)) ** 0.5] * tokens, rel=1e-4)


def test_groups_without_an_answer_get_zero_where_verl_gives_noise():
    """Equal rewards whose mean is another number in float32; a group of one; a reward that is missing."""
    rewards = [1000.1] * 7 + [5.0] + [1.0, float("nan"), 0.0]
    uids = ["equal"] * 7 + ["one"] + ["missing"] * 3
    mask = [[1, 1]] * 11
    theirs = advantages_of(batch(rewards, uids, mask), "algorithm.adv_estimator=grpo")
    mine = advantages_of(batch(rewards, uids, mask), "algorithm.adv_estimator=grouprl_grpo")
    assert float(theirs[:7].abs().min()) > 0.5  # docs/conventions.md: −0.912
    assert theirs[7, 0].item() == pytest.approx(5.0, abs=1e-4)
    assert theirs[8:].isnan().all()
    assert not mine[:8].any()
    assert mine[8:, 0].tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)


def test_rewards_on_several_tokens_are_summed_whatever_their_order():
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in float32; the group has one reward all the same."""
    data = batch([0.0] * 4, ["a"] * 4, [[1, 1, 1, 1]] * 4)
    parts = [1e7, 0.3, 0.3, -1e7]
    orders = [[0, 1, 2, 3], [0, 3, 1, 2], [1, 2, 0, 3], [3, 0, 2, 1]]
    data.batch["token_level_rewards"] = torch.tensor([[parts[i] for i in order] for order in orders])
    assert not advantages_of(data, "algorithm.adv_estimator=grouprl_grpo").any()


def test_rows_that_verl_adds_do_not_count():
    """Synthetic rows of one uid, reward 0 and no trained token: gpg counts groups, so it would notice."""
    padding = "pad" + "0" * 32
    plain = advantages_of(batch(), "algorithm.adv_estimator=grouprl_gpg")
    padded = advantages_of(
        batch([*REWARDS, 0.0, 0.0], [*UIDS, padding, padding], [*TURNS, [0] * 6, [0] * 6]),
        "algorithm.adv_estimator=grouprl_gpg",
    )
    assert padded[:9].equal(plain)
    assert not padded[9:].any()


def test_ids_may_be_integers():
    data = batch()
    data.non_tensor_batch["uid"] = np.array([ord(uid) * 10**12 for uid in UIDS])
    name = "algorithm.adv_estimator=grouprl_grpo"
    assert advantages_of(data, name).equal(advantages_of(batch(), name))


# ---- options, and what verl has not enough for ----


def test_options_come_from_the_configuration():
    name = "algorithm.adv_estimator=grouprl_ngrpo"
    found = advantages_of(batch(), name, "+algorithm.grouprl.max_reward=3.0")
    trained = torch.tensor(TURNS)
    expected = advantages.ngrpo(torch.tensor(REWARDS), UIDS, max_reward=3.0)[:, None] * trained
    assert found.equal(expected)
    with pytest.raises(ConfigError, match=r"max_reward.*give \+algorithm.grouprl.max_reward="):
        advantages_of(batch(), name)
    with pytest.raises(ConfigError, match="unknown option 'epss', did you mean 'eps'"):
        advantages_of(batch(), "algorithm.adv_estimator=grouprl_grpo", "+algorithm.grouprl.epss=1.0")
    with pytest.raises(ConfigError, match=r"algorithm.grouprl is 3, expected the estimator's options"):
        advantages_of(batch(), name, "+algorithm.grouprl=3")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("remax", "verl samples greedy completions for its own remax alone"),
        ("gdpo", "verl hands single rewards to its own gdpo alone"),
        ("spo", "verl's uid names a prompt in one batch alone"),
        ("gae", "looks at steps or tokens inside a completion"),
        ("gigpo", "looks at steps or tokens inside a completion"),
    ],
)
def test_what_cannot_run_says_why_and_what_can(name, why):
    with pytest.raises(ConfigError) as caught:
        advantages_of(batch(), f"algorithm.adv_estimator=grouprl_{name}")
    said = str(caught.value)
    assert said.startswith(f"verl: algorithm.adv_estimator=grouprl_{name}: ")
    assert why in said
    assert "choose one of grpo, dr_grpo, rloo" in said
    assert name not in said.partition("choose one of")[2].split(", ")


def test_a_flag_that_would_be_ignored_is_refused():
    off = "algorithm.norm_adv_by_std_in_grpo=False"
    with pytest.raises(ConfigError, match=r"norm_adv_by_std_in_grpo is False.*grouprl_dr_grpo"):
        advantages_of(batch(), "algorithm.adv_estimator=grouprl_grpo", off)


def test_a_batch_without_uid_or_of_other_shapes_is_refused():
    data = batch()
    del data.non_tensor_batch["uid"]
    with pytest.raises(EstimatorError, match="has no group ids, expected one for each of 9 rows"):
        advantages_of(data, "algorithm.adv_estimator=grouprl_grpo")
    estimator = core_algos.get_adv_estimator_fn("grouprl_grpo")
    with pytest.raises(EstimatorError, match=r"shape \(3, 2\) and response_mask \(3, 1\)"):
        estimator(torch.zeros(3, 2), torch.ones(3, 1), index=["a"] * 3)


# ---- verl 0.9's own trainer ----


def test_the_v1_trainer_treats_every_output_of_a_session_as_a_completion():
    """Its own grpo takes the last output of each session and spreads it; other estimators are given all rows."""
    keys = [f"{uid}_{i}_0" for i, uid in enumerate(UIDS)]
    config = algorithm("algorithm.adv_estimator=grouprl_rloo")
    found = compute_advantage_for_multi_trajectories(
        batch(), keys, adv_estimator=config.adv_estimator, config=config
    )
    theirs = compute_advantage_for_multi_trajectories(batch(), keys, adv_estimator="rloo", config=config)
    assert float((found.batch["advantages"] - theirs.batch["advantages"]).abs().max()) < 2e-6


# ---- a training run ----


def test_verls_trainer_trains_with_ours(tmp_path):
    """Its whole fit, twice: grouprl's GRPO at verl's settings and verl's own, from the same seed."""
    runs = {
        "ours": ["algorithm.adv_estimator=grouprl_grpo", "+algorithm.grouprl.convention=verl"],
        "theirs": ["algorithm.adv_estimator=grpo"],
    }
    script = Path(__file__).parent / "verl_cpu_trainer.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path, json.dumps(runs)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ours, theirs = (torch.load(tmp_path / name / "run.pt", weights_only=True) for name in runs)
    assert len(ours["steps"]) == 2
    for mine, step in zip(ours["steps"], theirs["steps"], strict=True):
        assert torch.equal(mine["rewards"], step["rewards"])
        expected = advantages.grpo(mine["rewards"], mine["uids"], convention="verl")
        assert torch.equal(mine["advantages"], expected[:, None] * mine["mask"])
        assert float((mine["advantages"] - step["advantages"]).abs().max()) < 2e-6
        dead, alive = mine["advantages"][4:], mine["advantages"][:4]
        assert dead.eq(0).all()
        assert alive.abs().max() > 0.5
    assert any(not torch.equal(ours["before"][name], after) for name, after in ours["after"].items())
    for name, after in ours["after"].items():
        assert float((after - theirs["after"][name]).abs().max()) < 1e-4, name


# ---- The configuration of docs/scaling.md ----


def test_the_documented_configuration_is_verls():
    """Hydra knows every name, verl's classes take the values, and its actor on 64 GPUs has no complaint."""
    overrides = documented.options("python -m verl.trainer.main_ppo")
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    actor.validate(gpus, config.data.train_batch_size, config.actor_rollout_ref.model)
    assert actor.engine.strategy == "fsdp2"
    assert gpus % config.actor_rollout_ref.rollout.tensor_model_parallel_size == 0
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n % gpus == 0
    assert isinstance(
        core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator), ours.AdvantageEstimator
    )
