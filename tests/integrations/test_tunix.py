"""grouprl inside tunix: its registry, arrays of its kinds, and a real GRPOLearner on a toy transformer."""

from __future__ import annotations

import math
import warnings

import pytest

from grouprl.errors import ConfigError, EstimatorError, InputError
from grouprl.integrations import versions

if versions.installed("google-tunix") is None:
    pytest.skip(
        "google-tunix is not installed here; `make integrations` runs these tests in an environment that has it",
        allow_module_level=True,
    )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what tunix's imports say of each other
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    import tunix
    from flax import nnx
    from tunix.rl import algo_core, function_registry
    from tunix.tests import test_common

    from grouprl.integrations import tunix as ours

import grouprl
from grouprl import advantages

pytestmark = [
    # jax, flax and tunix say these of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
REWARDS = [1.0, 0.0, 0.5, 2.0, -1.0, 0.25, 3.0, 0.75]
KINDS = {"numpy": np.asarray, "jax": jnp.asarray}


def estimator(name):
    return function_registry.get_advantage_estimator(name)


# ---- the registry ----


def test_what_runs_without_options_is_registered_by_the_import():
    names = {
        name.removeprefix("grouprl_")
        for name in function_registry.default_registry.list_functions("advantage_estimator")
        if name.startswith("grouprl_")
    }
    assert {"grpo", "dr_grpo", "rloo", "maxrl", "gpg"} <= names
    assert not names & {"opo", "reinforce_plus_plus", "remax", "gdpo", "spo", "gae", "gigpo", "ngrpo"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("opo", "needs lengths, and tunix hands over rewards alone"),
        ("remax", "tunix samples no greedy completion"),
        ("gdpo", "tunix hands over their sum alone"),
        ("spo", "tunix hands over no prompts"),
        ("ngrpo", r"give grouprl.integrations.tunix.register\('ngrpo', max_reward=…\)"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_registered(name, why):
    with pytest.raises(ConfigError, match=why):
        ours.register(name)


def test_options_are_given_when_it_is_registered():
    ours.register("ngrpo", max_reward=3.0)
    found = estimator("grouprl_ngrpo")(rewards=np.array(REWARDS, np.float32), num_generations=4)
    expected = advantages.ngrpo(np.array(REWARDS, np.float32).reshape(-1, 4), max_reward=3.0).ravel()
    assert np.array_equal(found, expected)


# ---- the numbers, beside tunix's own functions ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mine", "options", "theirs"),
    [
        ("grpo", {"convention": "tunix"}, algo_core.compute_advantages),
        ("dr_grpo", {}, algo_core.compute_drgrpo_advantages),
        ("rloo", {}, algo_core.compute_rloo_advantages),
    ],
)
def test_healthy_groups_get_the_numbers_of_tunix(kind, mine, options, theirs):
    rewards = KINDS[kind](np.array(REWARDS, np.float32))
    ours.register(mine, **options)
    found = estimator(f"grouprl_{mine}")(rewards=rewards, num_generations=4)
    ours.register(mine)
    expected = np.asarray(theirs(rewards, 4))
    assert isinstance(found, type(rewards))
    assert found.dtype == np.float32
    assert np.abs(np.asarray(found) - expected).max() < 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_groups_without_an_answer_get_zero_where_tunix_gives_noise(kind):
    rewards = KINDS[kind](np.array([1000.1] * 7 + [1.0, np.nan, 0.0, 2.0, 3.0, 1.0, 0.0], np.float32))
    theirs = np.asarray(algo_core.compute_advantages(rewards, 7))
    mine = np.asarray(estimator("grouprl_grpo")(rewards=rewards, num_generations=7))
    assert kind == "jax" or abs(theirs[:7]).min() > 0.5
    assert np.isnan(theirs[7:]).all()
    assert not mine[:7].any()
    assert mine[8] == 0.0
    scored = np.delete(mine[7:], 1)
    assert scored.sum() == pytest.approx(0.0, abs=1e-5)
    assert np.square(scored).mean() == pytest.approx(1.0, abs=1e-4)


def test_groups_must_add_up():
    with pytest.raises(
        EstimatorError, match=r"shape \(8,\), expected one axis, of a multiple of num_generations=3"
    ):
        estimator("grouprl_grpo")(rewards=np.array(REWARDS), num_generations=3)


# ---- JAX arrays in grouprl's own functions ----


def test_jax_arrays_in_give_jax_arrays_out_without_a_copy():
    rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    found = grouprl.grpo_group_advantages(rewards)
    assert isinstance(found, jax.Array)
    assert found.device == rewards.device
    expected = [math.sqrt(3), *[-1 / math.sqrt(3)] * 3]
    assert found[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert found[1].tolist() == [0.0] * 4
    import torch

    assert torch.from_dlpack(rewards).data_ptr() == rewards.unsafe_buffer_pointer()  # what the core reads


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool"])
def test_types_ids_masks_and_lengths_may_be_jax_arrays(dtype):
    rewards = jnp.array([1, 0, 1, 1, 0]).astype(dtype)
    ids, valid = jnp.array([7, 7, -3, -3, -3]), jnp.array([True, True, True, False, True])
    found = grouprl.group_advantages(rewards, ids, valid=valid)
    assert isinstance(found, jax.Array)
    assert found.dtype == jnp.float32
    assert found.tolist() == pytest.approx([1.0, -1.0, 1.0, 0.0, -1.0], abs=1e-5)
    weighed = advantages.opo(rewards, ids, lengths=jnp.array([1, 3, 1, 1, 2]))
    assert weighed[0].item() == pytest.approx(0.75)
    assert grouprl.group_stats(rewards, ids).has_spread.tolist() == [True] * 5


def test_what_is_traced_by_a_compiler_is_refused():
    with pytest.raises(InputError, match="outside a compiled function"):
        jax.jit(grouprl.grpo_group_advantages)(jnp.ones((2, 4)))


# ---- a real learner ----


def right(prompts, completions, **_):
    """Words with a T, of all words: some groups have spread, some have none."""
    return [float("T" in text) + 0.25 * float("hello" in text) for text in completions]


def trained(name, tmp_path):
    """Two steps of tunix's own GRPOLearner with its own sampler; the advantages that it trained with."""
    vocabulary = test_common.MockVocab()
    config = test_common.ModelConfig(vocab_size=vocabulary.GetPieceSize(), num_layers=2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    actor, reference = (test_common.ToyTransformer(config, rngs=nnx.Rngs(0)) for _ in range(2))
    before = jax.tree.map(jnp.copy, nnx.state(actor, nnx.Param))
    cluster = tunix.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=vocabulary,
        cluster_config=tunix.ClusterConfig(
            role_to_mesh=dict.fromkeys((tunix.Role.ACTOR, tunix.Role.REFERENCE, tunix.Role.ROLLOUT), mesh),
            rollout_engine="vanilla",
            training_config=tunix.RLTrainingConfig(
                actor_optimizer=optax.sgd(1e-1), eval_every_n_steps=100, max_steps=2
            ),
            rollout_config=tunix.RolloutConfig(
                max_tokens_to_generate=6,
                max_prompt_length=4,
                kv_cache_size=16,
                temperature=1.0,
            ),
        ),
    )
    seen = []
    own = estimator(name)

    @function_registry.register_advantage_estimator(f"seen_{name}")
    def seeing(rewards, num_generations):
        found = own(rewards=rewards, num_generations=num_generations)
        seen.append((np.asarray(rewards), np.asarray(found)))
        return found

    learner = tunix.GRPOLearner(
        rl_cluster=cluster,
        algo_config=tunix.GRPOConfig(advantage_estimator=f"seen_{name}", num_generations=4, beta=0.0),
        reward_fns=right,
    )
    data = [{"prompts": np.array(["input string", "hello world"])} for _ in range(2)]
    learner.train(data)
    after = nnx.state(cluster.actor_trainer.model, nnx.Param)
    moved = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, after)))
    return seen, moved


def test_a_real_learner_trains_with_it(tmp_path):
    """At tunix's convention it gets the advantages of tunix's own, step by step, from the same seed."""
    ours.register("grpo", convention="tunix")
    mine, moved = trained("grouprl_grpo", tmp_path)
    ours.register("grpo")
    theirs, _ = trained("grpo", tmp_path)
    assert len(mine) == len(theirs) == 2
    assert moved > 1e-4
    spread = 0
    for (rewards, found), (their_rewards, expected) in zip(mine, theirs, strict=True):
        assert rewards.tolist() == their_rewards.tolist()
        assert np.abs(found - expected).max() < 1e-5
        spread += np.ptp(rewards.reshape(-1, 4), axis=1).astype(bool).sum()
    assert spread > 0
