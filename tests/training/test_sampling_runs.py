"""Whole runs of a tiny model with dynamic sampling, punishment, selection, a curriculum: records, weights, resuming."""

import json
import math
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch
from runs import StopAfter, Warnings, equal_runs, recomputed, same_weights, step_rows, timeless, weights

from grouprl import advantages
from grouprl.errors import ConfigError
from grouprl.policy import Policy
from grouprl.tasks import Task, make_rewards
from grouprl.training import resume, train
from grouprl.training.prompts import order_of_epoch
from grouprl.types import Prompt

EVERYTHING = {
    "max_sampling_rounds": 3,
    "train_group_size": 3,
    "overlong_buffer_tokens": 3,
    "overlong_penalty": 0.5,
    "skip_epochs": 1,
}


def mostly(completions, prompts):
    """By the prompt's first word: always 1, never, or 1 where the completion's letters say so (about half)."""
    rewards = []
    for prompt, text in zip(prompts, completions):
        word = prompt.split()[0]
        rewards.append({"easy": 1.0, "hard": 0.0}.get(word, float(sum(map(ord, text)) % 2)))
    return rewards


@pytest.fixture
def kinds(make):
    """A run over prompts of given kinds."""

    def run(name, words, *, listener=None, reward=mostly, **changes):
        prompts = [Prompt(f"p{i}", f"{word} {i}") for i, word in enumerate(words)]
        made = Task("kinds", prompts, [], make_rewards(reward))
        config = make(name, task="", reward=[], evaluation={"eval_prompts": 0}, **changes)
        return train(config, task=made, listener=listener)

    def again(path, words, *, reward=mostly, **options):
        prompts = [Prompt(f"p{i}", f"{word} {i}") for i, word in enumerate(words)]
        return resume(path, task=Task("kinds", prompts, [], make_rewards(reward)), **options)

    run.resume = again
    return run


MIXED = ["easy", "mixed", "hard", "mixed", "mixed", "hard", "easy"]


def test_what_was_sampled_and_dropped_is_counted_and_recorded(kinds):
    run = kinds("run", MIXED, sampling={"max_sampling_rounds": 4})
    order = [f"p{i}" for epoch in range(9) for i in order_of_epoch(len(MIXED), seed=0, epoch=epoch).tolist()]
    position = 0
    for metrics in run.metrics:
        rows = step_rows(run, metrics["step"])
        drawn = rows["prompt_id"].to_list()[::4]
        assert drawn == order[position : position + len(drawn)]
        position += len(drawn)
        assert metrics["epochs"] == position / len(MIXED)
        assert metrics["groups"] == len(drawn) == rows["group_id"].n_unique()
        by_group = rows.group_by("group_id", maintain_order=True).agg(
            pl.col("reward").min().alias("low"),
            pl.col("reward").max().alias("high"),
            pl.col("used").all(),
            pl.col("dropped_reason").first(),
            pl.col("used").n_unique().alias("kinds"),
        )
        assert (by_group["kinds"] == 1).all()
        for low, high, used, reason in by_group.select("low", "high", "used", "dropped_reason").rows():
            assert used == (low != high)
            assert reason == (None if low != high else "all_high" if low == 1 else "all_low")
        used, dropped = rows.filter("used"), rows.filter(~pl.col("used"))
        assert metrics["groups_used"] == used["group_id"].n_unique() >= 3
        assert metrics["completions_used"] == len(used)
        assert metrics["tokens_dropped"] == dropped["completion_tokens"].sum()
        for reason in ("all_high", "all_low"):
            assert (
                metrics[f"groups_dropped_{reason}"]
                == dropped.filter(dropped_reason=reason)["group_id"].n_unique()
            )
        assert metrics["reward_mean"] == pytest.approx(rows["reward"].mean())
        assert metrics["correct_share"] == pytest.approx(rows["reward"].mean())
        assert metrics["used_reward_mean"] == pytest.approx(used["reward"].mean())
        assert dropped["advantage"].null_count() == len(dropped)
        assert dropped["logprob_mean_trainer"].null_count() == len(dropped)
        assert used["advantage"].null_count() == 0
        assert metrics["groups_with_advantage_share"] == metrics["groups_used"] / metrics["groups"]
    assert any(m["sampling_rounds"] > 1 and m["seconds_resampling"] > 0 for m in run.metrics)


def test_a_filled_batch_trains_as_if_it_had_been_drawn(kinds):
    """The denominator is the size of what is trained on: the weights of a run over the two mixed prompts alone."""
    shape = {"steps": 1, "rollout": {"prompts_per_step": 2}}
    filled = kinds("filled", ["mixed", "mixed", "hard", "easy"], sampling={"max_sampling_rounds": 4}, **shape)
    plain = kinds("plain", ["mixed", "mixed"], **shape)
    assert filled.metrics[0]["groups"] > 2
    assert filled.metrics[0]["groups_used"] == 2
    used = step_rows(filled, 1).filter("used").sort("prompt_id", "sample_index")
    alone = step_rows(plain, 1).sort("prompt_id", "sample_index")
    assert used["completion"].equals(alone["completion"])
    assert used["advantage"].to_list() == pytest.approx(alone["advantage"].to_list(), abs=1e-6)
    assert filled.metrics[0]["grad_norm"] == pytest.approx(plain.metrics[0]["grad_norm"], rel=1e-4)
    assert filled.metrics[0]["loss"] == pytest.approx(plain.metrics[0]["loss"], abs=1e-6)


def test_a_batch_that_is_not_full_is_said_and_an_empty_one_is_skipped(kinds):
    heard = Warnings()
    run = kinds(
        "run", ["hard"] * 10 + ["mixed"], sampling={"max_sampling_rounds": 2}, listener=heard, steps=3
    )
    sizes = [m["groups_used"] for m in run.metrics]
    assert set(sizes) == {0, 1}
    said = [m for m in heard.messages if "dynamic sampling" in m]
    assert len(said) == 3
    for size, message, metrics in zip(sizes, said, run.metrics):
        assert f"{size} of 3 groups with spread after 2 rounds, of 6 sampled" in message
        assert message.endswith("trained on 1" if size else "no update was made")
        assert metrics["updates"] == size
        assert metrics["groups"] == 6
        if not size:
            assert metrics["loss"] is None
            assert metrics["used_reward_mean"] is None
            assert metrics["advantage_mean_abs"] is None
            assert metrics["groups_with_advantage_share"] == 0


def test_nothing_but_dead_groups_changes_no_weight(kinds):
    run = kinds("run", ["hard", "easy"], sampling={"max_sampling_rounds": 2})
    assert same_weights(run.model_dir, Path(run.config.model))
    assert [m["updates"] for m in run.metrics] == [0] * 4
    assert step_rows(run, 4)["advantage"].null_count() == 6 * 4


def test_punishment_is_a_component_and_advantages_are_made_of_it(kinds):
    run = kinds("run", MIXED, sampling={"overlong_buffer_tokens": 4, "overlong_penalty": 0.5}, steps=2)
    frame = pl.concat([step_rows(run, s) for s in (1, 2)])
    for tokens, penalty in frame.select("completion_tokens", "reward_overlong").rows():
        assert penalty == 0.5 * min(0, max(-1, (6 - 4 - tokens) / 4))
    assert (frame["reward"] == frame["correctness"] + frame["reward_overlong"]).all()
    assert set(frame["correctness"].to_list()) == {0.0, 1.0}
    assert (frame["reward_mostly"] == frame["correctness"]).all()
    assert frame["used"].all()
    for _, group in frame.group_by("group_id"):
        rewards = group["reward"].to_list()
        mean = math.fsum(rewards) / 4
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / 4)
        expected = [(r - mean) / (std + 1e-6) if std else 0.0 for r in rewards]
        assert group["advantage"].to_list() == pytest.approx(expected, abs=1e-5)
    first, rows = run.metrics[0], step_rows(run, 1)
    assert first["reward_mean"] == pytest.approx(rows["reward"].mean())
    assert first["correct_share"] == pytest.approx(rows["correctness"].mean())
    assert first["reward_overlong_mean"] == pytest.approx(rows["reward_overlong"].mean())
    spread = rows.group_by("group_id").agg(pl.col("correctness").n_unique() > 1)["correctness"]
    assert first["groups_informative_share"] == pytest.approx(spread.mean())


def test_every_metric_and_column_is_documented(kinds):
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    run = kinds("run", MIXED, sampling=EVERYTHING, advantage={"estimator": "remax"}, steps=1)
    named = {
        name.replace("<name>", part)
        for name in re.findall(r"`(\w+(?:<name>)?\w*)`", page)
        for part in ("mostly", "overlong")
    }
    assert set(run.metrics[0]) <= named
    assert set(step_rows(run, 1).columns) <= named


@pytest.mark.parametrize("estimator", ["grpo", "remax", "gdpo", "opo", "jspo", "spo"])
def test_all_of_it_with_every_kind_of_estimator(kinds, estimator):
    """The rows that were used say what the advantages were computed from, and a resumed run is the same run."""
    words = [*MIXED, "mixed", "mixed", "mixed"]
    changes = {"advantage": {"estimator": estimator}, "sampling": EVERYTHING}
    whole = kinds("whole", words, **changes)
    found = advantages.get(estimator)
    call = None
    for metrics in whole.metrics:
        rows = step_rows(whole, metrics["step"])
        used = rows.filter("used")
        if call is None:
            call = found.start(**json.loads(used["advantage_options"][0]))
        assert used["advantage"].to_list() == pytest.approx(recomputed(used, call, found).tolist(), abs=1e-5)
        assert used.group_by("group_id").len()["len"].to_list() == [3] * metrics["groups_used"]
        assert metrics["completions_down_sampled"] == metrics["groups_used"]
        assert rows.filter(dropped_reason="down_sampled")["group_id"].n_unique() == metrics["groups_used"]
        if estimator == "remax":
            assert rows["greedy_reward"].null_count() == len(rows) - len(used)
    assert any(m["prompts_skipped_solved"] for m in whole.metrics)
    assert any(m["prompts_skipped_unsolved"] for m in whole.metrics)
    stop = {"grpo": 1, "remax": 2, "gdpo": 3}.get(estimator, 2)
    with pytest.raises(KeyboardInterrupt):
        kinds("cut", words, listener=StopAfter(stop), **changes)
    cut = kinds.resume(whole.path.parent / "cut", words)
    equal_runs(cut, whole)
    left, right = (r.path / "checkpoints/step_00004/curriculum.json" for r in (cut, whole))
    assert left.read_bytes() == right.read_bytes()
    assert json.loads(left.read_text())


def test_a_killed_run_goes_on_from_an_earlier_checkpoint(kinds):
    """A kill in step 4 leaves a checkpoint of step 2 and records of step 3: prompts and pass rates go back with it."""
    whole = kinds("whole", MIXED, sampling=EVERYTHING)
    killed = Path(shutil.copytree(whole.path, whole.path.parent / "killed"))
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "checkpoints" / "step_00004")
    equal_runs(kinds.resume(killed, MIXED), whole)


def test_the_curriculum_passes_over_and_comes_back(kinds):
    """Every epoch accounts for each prompt once: drawn, or passed over as the rewards of its last epochs say."""
    words = ["easy", "hard", "mixed", "mixed"]
    run = kinds("run", words, rollout={"prompts_per_step": 2}, sampling={"skip_epochs": 1}, steps=7)
    sampled = [p for m in run.metrics for p in step_rows(run, m["step"])["prompt_id"].to_list()[::4]]
    visits = [f"p{i}" for epoch in range(5) for i in order_of_epoch(4, seed=0, epoch=epoch).tolist()]
    expected, skipped, last = [], 0, {}
    rewards = {
        (p, s): r
        for s in range(1, 8)
        for p, r in step_rows(run, s).group_by("prompt_id").agg("reward").rows()
    }
    position = 0
    while len(expected) < len(sampled):
        prompt, epoch = visits[position], position // 4
        position += 1
        before = last.get(prompt)
        if before and epoch - before[0] <= 1 and not 0 < before[1] < 0.9:
            skipped += 1
            continue
        step = len(expected) // 2 + 1
        rate = sum(rewards[prompt, step]) / 4
        earlier = before[2] if before else []
        both = [*earlier, rate][-2:]
        last[prompt] = (epoch, sum(both) / len(both), both)
        expected.append(prompt)
    assert sampled == expected
    assert (
        skipped == sum(m["prompts_skipped_solved"] + m["prompts_skipped_unsolved"] for m in run.metrics) > 0
    )
    assert {"p0", "p1"} <= set(sampled[8:])  # looked at again


def test_shared_prompts_and_plain_sequences_give_the_same_weights(kinds, monkeypatch):
    """Groups of which a part is trained on, packed behind their prompt, against each completion on its own."""
    options = {"steps": 1, "sampling": {"max_sampling_rounds": 3, "train_group_size": 3}}
    shared = kinds("shared", MIXED, **options)
    monkeypatch.setattr(Policy, "can_share", lambda self, longest: False)
    plain = kinds("plain", MIXED, **options)
    assert step_rows(shared, 1)["completion"].equals(step_rows(plain, 1)["completion"])
    assert shared.metrics[0]["grad_norm"] == pytest.approx(plain.metrics[0]["grad_norm"], rel=1e-4)
    left, right = weights(shared.model_dir), weights(plain.model_dir)
    close = [
        (left[k] - right[k]).abs().lt(2e-4).float().mean() for k in left
    ]  # Adam's first step is a sign: 1e-3
    assert torch.stack(close).mean() > 0.99


def test_unscored_groups_are_replaced_and_errors_counted_over_all_rounds(kinds):
    def fragile(completions, prompts):
        if any(p.startswith("hard") for p in prompts):
            raise ValueError("too hard")
        return mostly(completions, prompts)

    heard = Warnings()
    run = kinds(
        "run",
        MIXED,
        reward=fragile,
        on_reward_error="abstain",
        sampling={"max_sampling_rounds": 4, "train_group_size": 2},
        listener=heard,
    )
    for metrics in run.metrics:
        rows = step_rows(run, metrics["step"])
        unscored = rows.filter(~pl.col("scored"))
        assert metrics["groups_dropped_unscored"] * 4 == metrics["reward_errors"] == len(unscored)
        assert set(unscored["dropped_reason"].to_list()) <= {"unscored"}
        assert unscored["correctness"].null_count() == len(unscored)
    assert sum(m["groups_dropped_unscored"] for m in run.metrics) > 0
    assert any("unscored because a reward raised" in message for message in heard.messages)


def test_with_everything_off_nothing_is_dropped(kinds):
    """The defaults, and one round, are the run without [sampling]."""
    plain = kinds("plain", MIXED)
    one = kinds("one", MIXED, sampling={"max_sampling_rounds": 1, "train_group_size": 4})
    assert timeless(plain.metrics) == timeless(one.metrics)
    assert same_weights(plain.model_dir, one.model_dir)
    first = plain.metrics[0]
    assert (first["sampling_rounds"], first["groups_used"], first["completions_used"]) == (1, 3, 12)
    assert first["tokens_dropped"] == first["seconds_resampling"] == 0
    rows = step_rows(plain, 1)
    assert rows["used"].all()
    assert rows["dropped_reason"].null_count() == len(rows)
    assert rows["correctness"].equals(rows["reward"])
    assert not (plain.path / "checkpoints/step_00004/curriculum.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sampling": {"train_group_size": 1}},
            "train_group_size is 1, expected 2 to rollout.group_size = 4",
        ),
        (
            {"sampling": {"train_group_size": 5}},
            "train_group_size is 5, expected 2 to rollout.group_size = 4",
        ),
        ({"sampling": {"overlong_buffer_tokens": 7}}, "overlong_buffer_tokens is 7, expected at most"),
        (
            {
                "sampling": {"max_sampling_rounds": 2},
                "rollout": {"group_size": 1},
                "advantage": {"estimator": "spo"},
            },
            "max_sampling_rounds is 2 with rollout.group_size 1",
        ),
        ({"sampling": {"skip_solved": 0.0}}, "sampling.skip_solved is 0.0"),
        ({"sampling": {"max_rounds": 2}}, "did you mean sampling.max_sampling_rounds"),
        (
            {"sampling": {"overlong_buffer_tokens": 2}, "advantage": {"estimator": "maxrl"}},
            "negative",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(make, changes, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train(make(**changes))
    assert not (tmp_path / "run").exists()


def test_a_reward_of_the_punishments_name_is_refused(kinds):
    def overlong(completions):
        return [0.0] * len(completions)

    with pytest.raises(ConfigError, match="with a reward named 'overlong'"):
        kinds("run", MIXED, reward=overlong, sampling={"overlong_buffer_tokens": 2})


def test_a_kl_in_the_reward_is_taken_from_what_is_trained_on(kinds):
    """Selection and dynamic sampling look at the rewards before it; advantages are made of what is left of them."""
    run = kinds(
        "run",
        MIXED,
        sampling={"max_sampling_rounds": 3, "train_group_size": 3},
        objective={"beta": 0.05, "kl_in": "reward", "mini_batches": 2, "updates_per_rollout": 2},
        steps=3,
    )
    for metrics in run.metrics:
        rows = step_rows(run, metrics["step"])
        used, dropped = rows.filter("used"), rows.filter(~pl.col("used"))
        assert used["reward"].to_list() == pytest.approx((used["correctness"] - used["kl_penalty"]).to_list())
        assert dropped["reward"].equals(dropped["correctness"])
        assert dropped["kl_penalty"].null_count() == len(dropped)
        found = advantages.grpo(torch.tensor(used["reward"].to_list()), used["group_id"].to_list())
        assert used["advantage"].to_list() == pytest.approx(found.tolist(), abs=1e-4)
        assert metrics["reward_mean"] == pytest.approx(rows["correctness"].mean())
    assert step_rows(run, 3)["kl_penalty"].abs().max() > 0
