"""Advantages that contradict their rewards: each fault made as the framework that had it made it."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from grouprl import advantages
from grouprl.report.findings import Severity

UNNAMED = {"estimator": None, "options": None}


def binary(seed=0, shape=(16, 8, 8), rate=0.5):
    return (np.random.default_rng(seed).random(shape) < rate).astype(float)


def textbook(rewards, eps=1e-6, ddof=0):
    """The four lines, in float32: what equal rewards leave is not 0."""
    r = rewards.astype(np.float32)
    with np.errstate(invalid="ignore"):
        return (r - r.mean(-1, keepdims=True)) / (r.std(-1, ddof=ddof, keepdims=True) + np.float32(eps))


def named(found):
    return {name for name in found if name.startswith(("advantages", "groups"))}


@pytest.mark.parametrize("keywords", [{}, UNNAMED], ids=["named", "unnamed"])
def test_residue_on_equal_rewards(keywords, rows, look, evidence):
    """Seven equal rewards between ±1000 in three groups of eight: in float32 their mean is another number."""
    rewards = binary(shape=(16, 8, 7))
    rng = np.random.default_rng(1)
    rewards[:, :3] = rng.uniform(-1000, 1000, (16, 3, 1))
    residue = textbook(rewards)
    worst = np.abs(residue[:, :3]).max()
    assert worst > 0.1
    found = look(rows(rewards=rewards.astype(np.float32), advantages=residue, size=7, **keywords))
    assert named(found) == {"advantages_residue"}
    seen = evidence(found["advantages_residue"])
    assert seen["largest |A| without spread"] == pytest.approx(worst)
    assert seen["groups that contradict"] == (np.abs(residue[:, :3]).max(-1) > 1e-3).sum()


def test_exact_zeros_are_no_residue(rows, look):
    rewards = binary()
    rewards[:, :3] = np.random.default_rng(1).uniform(-1000, 1000, (16, 3, 1))
    assert named(look(rows(rewards=rewards))) == set()


def test_sample_std_where_the_population_s_is_named(rows, look):
    rewards = binary()
    found = look(rows(rewards=rewards, advantages=np.nan_to_num(textbook(rewards, ddof=1))))
    assert named(found) == {"advantages_scale"}
    assert "ddof 1" in found["advantages_scale"].title
    said = look(
        rows(
            rewards=rewards,
            advantages=np.nan_to_num(textbook(rewards, ddof=1)),
            options='{"ddof": 1, "eps": 1e-6}',
        )
    )
    assert named(said) == set()


def centred(rewards):
    return rewards - rewards.mean(-1, keepdims=True)


def test_batch_std_for_group_std(rows, look):
    rewards = binary()
    std = rewards.reshape(16, 64).std(-1, ddof=1)[:, None, None]
    frame = rows(rewards=rewards, advantages=centred(rewards) / (std + 1e-4))
    found = look(frame)
    assert named(found) == {"advantages_batch"}
    assert found["advantages_batch"].severity is Severity.WARNING
    unnamed = look(rows(rewards=rewards, advantages=centred(rewards) / (std + 1e-4), **UNNAMED))
    assert unnamed["advantages_batch"].severity is Severity.INFO


@pytest.mark.parametrize("keywords", [{}, UNNAMED], ids=["named", "unnamed"])
def test_normalised_over_the_whole_batch(keywords, rows, look):
    """Groups [1, 1] and [0, 0] get ±0.866: (1 − 0.5) / 0.577."""
    rewards = np.tile([[[1.0, 1.0], [0.0, 0.0]]], (16, 1, 1))
    flat = rewards.reshape(16, 4)
    whole = (flat - 0.5) / flat.std(-1, ddof=1, keepdims=True)
    assert whole[0] == pytest.approx([0.8660254, 0.8660254, -0.8660254, -0.8660254])
    found = look(rows(rewards=rewards, advantages=whole.reshape(16, 2, 2), prompts=2, size=2, **keywords))
    assert named(found) == {"advantages_batch"}
    mixed = binary()
    flat = mixed.reshape(16, 64)
    whole = ((flat - flat.mean(-1, keepdims=True)) / flat.std(-1, ddof=1, keepdims=True)).reshape(16, 8, 8)
    assert named(look(rows(rewards=mixed, advantages=whole))) == {"advantages_batch"}
    assert named(look(rows(rewards=mixed, advantages=whole, **UNNAMED))) == {"advantages_batch"}


def test_an_estimator_over_the_batch_is_recomputed_over_its_step(rows, look):
    rewards = binary()
    made = np.stack([advantages.get("batch_std")(step).numpy() for step in map(np_tensor, rewards)])
    options = json.dumps({"eps": 1e-6, "ddof": 0})
    assert (
        named(look(rows(rewards=rewards, advantages=made, estimator="batch_std", options=options))) == set()
    )


def np_tensor(step):
    import torch

    return torch.tensor(step)


def interleaved(frame):
    """P1 P2 P1 P2 …: the prompts repeated as a whole, not each in place."""
    return frame.sort("step", "sample_index", maintain_order=True)


@pytest.mark.parametrize("keywords", [{}, UNNAMED], ids=["named", "unnamed"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_positional_mix_up_of_prompts(ddof, keywords, rows, look):
    """P1 always right, P2 always wrong, stored P1 P2 P1 P2: reshape(-1, 2) gives ±0.7071 where all is 0."""
    rewards = np.tile([[[1.0, 1.0], [0.0, 0.0]]], (16, 1, 1))
    frame = interleaved(rows(rewards=rewards, prompts=2, size=2, **keywords))
    stored = frame["reward"].to_numpy().reshape(-1, 2)
    assert stored[0].tolist() == [1.0, 0.0]
    wrong = textbook(stored, ddof=ddof)
    assert wrong[0] == pytest.approx([1 / (1 + ddof) ** 0.5, -1 / (1 + ddof) ** 0.5], rel=1e-5)
    found = look(frame.with_columns(advantage=pl.Series(wrong.ravel(), dtype=pl.Float64)))
    # One right and one wrong in every mixed group: with the population's std that is the whole batch's, too.
    assert named(found) == {"advantages_mixed" if ddof == 1 else "advantages_batch"}


@pytest.mark.parametrize("keywords", [{}, UNNAMED], ids=["named", "unnamed"])
def test_a_positional_mix_up_of_ordinary_groups(keywords, rows, look):
    rates = np.linspace(0.1, 0.9, 8) * np.ones((16, 1))
    frame = interleaved(rows(rates=rates, **keywords))
    wrong = np.nan_to_num(textbook(frame["reward"].to_numpy().reshape(-1, 8)))
    found = look(frame.with_columns(advantage=pl.Series(wrong.ravel(), dtype=pl.Float64)))
    assert named(found) == {"advantages_mixed"}
    assert found["advantages_mixed"].severity is Severity.ERROR
    assert found["advantages_mixed"].steps == ((1, 16),)


def test_rows_in_any_order_are_not_mixed_where_ids_were_used(rows, look):
    assert named(look(interleaved(rows()))) == set()
    assert named(look(rows().sample(fraction=1.0, shuffle=True, seed=0))) == set()


def test_groups_torn_between_workers(rows, look):
    rewards = binary()
    halves = np.nan_to_num(textbook(rewards.reshape(16, 16, 4))).reshape(16, 8, 8)
    found = look(rows(rewards=rewards, advantages=halves))
    assert named(found) == {"advantages_torn"}
    assert found["advantages_torn"].severity is Severity.ERROR


@pytest.mark.parametrize("by", [1, 8])
def test_advantages_that_moved_to_their_neighbours(by, rows, look):
    frame = rows(rewards=binary())
    moved = np.roll(frame["advantage"].to_numpy().reshape(16, 64), by, axis=1).ravel()
    found = look(frame.with_columns(advantage=pl.Series(moved)))
    assert named(found) == {"advantages_misaligned"}
    assert "other completions' rewards" in found["advantages_misaligned"].title


def test_an_order_against_the_rewards(rows, look):
    frame = rows(rewards=np.random.default_rng(0).random((16, 8, 8)), **UNNAMED)
    rng = np.random.default_rng(2)
    shuffled = frame["advantage"].to_numpy()[rng.permutation(1024)]
    found = look(frame.with_columns(advantage=pl.Series(shuffled)))
    assert found["advantages_misaligned"].severity is Severity.WARNING


def test_a_monotone_advantage_of_another_make_is_no_finding(rows, look):
    """Where no estimator is named, any that rises with the reward may be meant: ranks, say."""
    rewards = np.random.default_rng(0).random((16, 8, 8))
    ranks = rewards.argsort(-1).argsort(-1) - 3.5
    assert named(look(rows(rewards=rewards, advantages=ranks, **UNNAMED))) == set()


def test_a_reward_that_is_not_the_one_advantages_came_from(rows, look):
    """Shaped before the advantage, recorded before the shaping."""
    rewards = np.random.default_rng(0).random((16, 8, 8))
    shaped = rewards + np.random.default_rng(1).random((16, 8, 8)) ** 3
    found = look(rows(rewards=rewards, advantages=np.nan_to_num(textbook(shaped))))
    assert named(found) <= {"advantages_unexplained", "advantages_misaligned"}
    assert "advantages_unexplained" in found


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_advantages_that_are_not_finite(lost, rows, look, evidence):
    """[1, None, None, None] under the sample's std: 0/0 for the one that was scored."""
    frame = rows().with_columns(
        advantage=pl.when(pl.col("group_id") == "train/3/1").then(pl.lit(lost)).otherwise(pl.col("advantage"))
    )
    found = look(frame)["advantages_missing"]
    assert found.severity is Severity.ERROR
    assert found.steps == ((3, 3),)
    assert evidence(found)["advantages that are not finite"] == 8


def test_unscored_completions_need_no_advantage(rows, look):
    frame = rows().with_columns(reward=pl.when(pl.int_range(pl.len()) != 3).then(pl.col("reward")))
    first = frame.filter(pl.col("group_id") == "train/1/0")
    scored = first["reward"].drop_nulls().to_numpy()
    again = np.zeros(8)
    again[np.arange(8) != 3] = np.nan_to_num(textbook(scored))
    frame = frame.with_columns(
        advantage=pl.Series(np.concatenate([again, frame["advantage"].to_numpy()[8:]]))
    )
    assert named(look(frame)) == set()


def test_an_estimator_that_is_not_known_here_is_left_alone(rows, look):
    frame = rows(rewards=binary(), advantages=np.ones((16, 8, 8)), estimator="my_own")
    assert named(look(frame)) == set()


@pytest.mark.parametrize(
    "name",
    [n for n in advantages.names() if advantages.get(n).scope == "group" and not advantages.get(n).needs],
)
def test_every_group_estimator_is_recomputed_from_its_rows(name, rows, look):
    """Recorded as it is: nothing. Recorded with the sign turned: a contradiction."""
    estimator = advantages.get(name)
    rewards = binary()
    if name == "pass_at_k":
        options = {"k": 2}
    else:
        options = {}
    made = np.asarray(estimator(np_tensor(rewards.reshape(128, 8)), **options)).reshape(16, 8, 8)
    keywords = {"rewards": rewards, "estimator": name, "options": json.dumps(options)}
    assert named(look(rows(advantages=made, **keywords))) == set()
    assert named(look(rows(advantages=-made, **keywords)))


@pytest.mark.parametrize("raises", [False, True])
def test_one_s_own_estimator_gets_tensors_as_in_a_run_and_may_fail(raises, rows, look):
    """`above.sign()` is what a tensor has and an array has not; what it raises must not end the report."""
    import torch

    @advantages.register("own_signs", laws={"finite"})
    def own_signs(rewards, group_ids=None, *, valid=None):
        """Signs of what dr_grpo gives."""
        if raises:
            raise RuntimeError("no")
        return advantages.dr_grpo(rewards, group_ids, valid=valid).sign()

    try:
        rewards = binary()
        made = torch.tensor(textbook(rewards)).sign().numpy()
        keywords = {"rewards": rewards, "estimator": "own_signs", "options": "{}"}
        assert named(look(rows(advantages=made, **keywords))) == set()
        assert bool(named(look(rows(advantages=-made, **keywords)))) is not raises
    finally:
        advantages.unregister("own_signs")
