"""grouprl inside SkyRL: its registry, its configuration's check, and its trainer's own path to the advantages."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import documented
import pytest
import torch

from grouprl.errors import ConfigError
from grouprl.integrations import versions

if versions.installed("skyrl") is None:
    pytest.skip(
        "skyrl is not installed here (it needs Python 3.12); `make integrations` runs these tests in an environment "
        "that has it",
        allow_module_level=True,
    )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what SkyRL's imports say of each other
    import cloudpickle
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
    from skyrl.train.config.config import SkyRLTrainConfig
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils.utils import validate_batch_sizes

    from grouprl.integrations import skyrl as ours

from grouprl import advantages

pytestmark = [
    # SkyRL, ray and torch say these of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
REWARDS = [1.0, 0.0, 0.5, 2.0, 1.5, 0.25]
UIDS = ["a", "b", "a", "b", "b", "a"]
TURNS = [[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 1, 0]]


def batch(rewards=REWARDS, uids=UIDS, mask=TURNS, **metadata) -> TrainingInputBatch:
    mask = torch.tensor(mask)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(rewards)), last] = torch.tensor(rewards)
    data = TrainingInputBatch(
        {
            "rewards": scores,
            "response_mask": mask,
            "loss_mask": mask.float(),
            "values": torch.zeros(mask.shape),
            "sequences": mask.clone(),
        }
    )
    data.metadata = {"uids": list(uids), "avg_response_length": 3.0, **metadata}
    return data


def advantages_of(data: TrainingInputBatch, *overrides: str) -> torch.Tensor:
    """Through the method of SkyRL's trainer, with its configuration as a command line gives it."""
    cfg = SkyRLTrainConfig.from_cli_overrides(list(overrides))
    trainer = SimpleNamespace(cfg=cfg, all_metrics={})
    found = RayPPOTrainer.compute_advantages_and_returns(trainer, data)
    assert "loss/avg_raw_advantages" in trainer.all_metrics
    return found["advantages"]


def choose(name: str) -> str:
    return f"trainer.algorithm.advantage_estimator={name}"


# ---- the registry ----


def test_what_runs_without_options_is_registered_by_the_import():
    names = set(AdvantageEstimatorRegistry.list_available())
    assert {
        f"grouprl_{n}" for n in ("grpo", "dr_grpo", "rloo", "opo", "reinforce_plus_plus", "maxrl")
    } <= names
    assert not {f"grouprl_{n}" for n in ("remax", "gdpo", "spo", "gae", "gigpo", "ngrpo")} & names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("remax", "SkyRL samples no greedy completion"),
        ("gdpo", "SkyRL hands over their sum alone"),
        ("spo", "SkyRL's checkpoints have no place for it"),
        ("ngrpo", r"give grouprl.integrations.skyrl.register\('ngrpo', max_reward=…\)"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_registered(name, why):
    with pytest.raises(ConfigError, match=why):
        ours.register(name)


def test_skyrl_pickles_them_for_its_processes_with_their_options():
    """There they are read without SkyRL, and register nothing, which would put others in their place."""
    ours.register("ngrpo", max_reward=3.0)
    pickled = cloudpickle.dumps(AdvantageEstimatorRegistry.get("grouprl_ngrpo"))
    AdvantageEstimatorRegistry.unregister("grouprl_ngrpo")
    script = (
        "import pickle, sys, torch\n"
        f"made = pickle.loads({pickled!r})\n"
        "found, _ = made(token_level_rewards=torch.tensor([[1.0], [0.0]]), response_mask=torch.ones(2, 1),"
        " index=['a', 'a'], values=None, grpo_norm_by_std=True, gamma=1.0, lambd=1.0, config=None)\n"
        "print(found.flatten().tolist(), 'grouprl.integrations.skyrl' in sys.modules, 'skyrl' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, timeout=240
    )
    expected = advantages.ngrpo([1.0, 0.0], max_reward=3.0).tolist()
    assert done.stdout.strip() == f"{expected} False False", done.stderr
    assert pickle.loads(pickled).options == {"max_reward": 3.0}


# ---- the numbers, beside SkyRL's own ----


@pytest.mark.parametrize(
    ("mine", "options", "theirs"),
    [
        ("grpo", {"convention": "skyrl"}, [choose("grpo")]),
        ("dr_grpo", {}, [choose("grpo"), "trainer.algorithm.grpo_norm_by_std=false"]),
        ("rloo", {}, [choose("rloo")]),
        ("maxrl", {}, [choose("maxrl")]),
    ],
)
@pytest.mark.parametrize("step_wise", [False, True])
def test_healthy_groups_get_the_numbers_of_skyrl(mine, options, theirs, step_wise):
    """Step-wise: rows are steps, the last of a trajectory is rewarded, and all of its steps get its advantage."""
    rewards = [*REWARDS[:5], 0.25]
    more = {"is_last_step": [False, True, True, True, True, True]} if step_wise else {}
    uids = ["b", "b", "a", "b", "b", "a"] if step_wise else UIDS
    flag = f"generator.step_wise_trajectories={str(step_wise).lower()}"
    ours.register(mine, **options)
    found = advantages_of(batch(rewards, uids, **more), choose(f"grouprl_{mine}"), flag)
    ours.register(mine)
    expected = advantages_of(batch(rewards, uids, **more), *theirs, flag)
    assert float((found - expected).abs().max()) < 2e-6
    assert float(expected.abs().max()) > 0.4
    assert not found[torch.tensor(TURNS) == 0].any()


def test_groups_without_an_answer_get_zero_where_skyrl_gives_noise():
    rewards, uids = [1000.1] * 7 + [5.0] + [1.0, float("nan"), 0.0], ["e"] * 7 + ["one"] + ["m"] * 3
    theirs = advantages_of(batch(rewards, uids, [[1, 1]] * 11), choose("grpo"))
    mine = advantages_of(batch(rewards, uids, [[1, 1]] * 11), choose("grouprl_grpo"))
    assert float(theirs[:7].abs().min()) > 0.5
    assert theirs[7, 0].item() == pytest.approx(5.0, abs=1e-4)
    assert theirs[8:].isnan().all()
    assert not mine[:8].any()
    assert mine[8:, 0].tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)


def test_rows_that_skyrl_adds_do_not_count():
    """Copies of the first row, each under a uid of its own; gpg counts groups, so it would notice."""
    plain = advantages_of(batch(), choose("grouprl_gpg"))
    padded = pad_training_input_batch(batch(), 2)
    assert padded.metadata["uids"][-2:] == ["pad0", "pad1"]
    found = advantages_of(padded, choose("grouprl_gpg"))
    assert found[:6].equal(plain)
    assert not found[6:].any()


def test_a_flag_that_would_be_ignored_is_refused():
    with pytest.raises(ConfigError, match=r"grpo_norm_by_std is False.*grouprl_dr_grpo"):
        advantages_of(batch(), choose("grouprl_grpo"), "trainer.algorithm.grpo_norm_by_std=false")


def test_skyrls_own_are_as_they_were():
    ppo_utils.repopulate_all_registries()
    assert {"grpo", "gae", "rloo", "reinforce++", "maxrl"} <= set(AdvantageEstimatorRegistry.list_available())


def test_the_documented_configuration_is_skyrls():
    """Of docs/scaling.md: its parser knows every name and takes the values, and its batches divide among the GPUs."""
    cfg = SkyRLTrainConfig.from_cli_overrides(documented.options("python train.py"))
    validate_batch_sizes(cfg)
    placement, engine = cfg.trainer.placement, cfg.generator.inference_engine
    gpus = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    assert engine.num_engines * engine.tensor_parallel_size == gpus
    assert cfg.trainer.algorithm.advantage_estimator in AdvantageEstimatorRegistry.list_available()
