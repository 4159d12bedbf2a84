"""Whole runs of a tiny model: what they leave on disk, and that a resumed one is the uninterrupted one."""

import json
import math
import random
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
import tiny
import torch
from runs import StopAfter, same_weights, timeless, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

import grouprl
from grouprl.errors import ConfigError, ModelError, RewardError, RunError, TaskError
from grouprl.tasks import Task, make_rewards
from grouprl.training import Listener, resume, train
from grouprl.training.checkpoint import DamagedCheckpoint, read_state
from grouprl.types import Prompt


def test_a_run_leaves_what_the_design_says(make):
    run = grouprl.train(make())
    assert [m["step"] for m in run.metrics] == [1, 2, 3, 4]
    assert [e["step"] for e in run.evaluations] == [0, 4]
    names = {p.name for p in run.path.iterdir()}
    assert {"config.toml", "metrics.jsonl", "evaluations.jsonl", "rollouts", "checkpoints", "model"} <= names
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["step_00002", "step_00004"]
    frame = pl.read_parquet(run.path / "rollouts" / "*.parquet")
    assert len(frame) == 4 * 3 * 4
    assert frame["group_id"].n_unique() == 4 * 3
    first = run.metrics[0]
    for name in (
        *("reward_mean", "reward_std", "reward_group_std", "unscored_share", "truncated_share"),
        *("groups_all_high_share", "groups_all_low_share", "groups_single_share", "completion_tokens_mean"),
        *(
            "entropy",
            "clip_low_share",
            "clip_high_share",
            "kl_sampler_trainer",
            "grad_norm",
            "peak_memory_gib",
        ),
        *("rollout_tokens_per_s", "train_tokens_per_s", "seconds_rollout", "seconds_reward", "seconds_train"),
        "seconds_step",
    ):
        assert isinstance(first[name], float), name
    assert first["kl_sampler_trainer"] == pytest.approx(0, abs=1e-6)


def test_every_metric_is_documented(make):
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    (first, *_) = train(make(objective={"beta": 0.1})).metrics
    named = {name.replace("<name>", "lowercase") for name in re.findall(r"`(\w+(?:<name>)?\w*)`", page)}
    assert set(first) <= named


def test_advantages_on_disk_are_those_of_the_rewards_on_disk(make):
    run = train(make())
    frame = pl.read_parquet(run.path / "rollouts" / "step_00001.parquet")
    for _, group in frame.group_by("group_id"):
        rewards = group["reward"].to_list()
        mean = math.fsum(rewards) / 4
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / 4)
        expected = [(r - mean) / (std + 1e-6) if std else 0.0 for r in rewards]
        assert group["advantage"].to_list() == pytest.approx(expected, abs=1e-5)


def test_the_final_model_loads_and_answers(make):
    run = train(make())
    model = AutoModelForCausalLM.from_pretrained(run.model_dir)
    tokenizer = AutoTokenizer.from_pretrained(run.model_dir)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    assert model.generate(**ids, do_sample=False, max_new_tokens=3).shape[1] > ids["input_ids"].shape[1]
    assert not same_weights(run.model_dir, tiny_of(run))


def tiny_of(run):
    return Path(run.config.model)


def test_two_runs_in_one_process_are_equal(make):
    """No counter of the first leaks into the second."""
    first, second = train(make("a")), train(make("b"))
    assert timeless(first.metrics) == timeless(second.metrics)
    assert same_weights(first.model_dir, second.model_dir)


def test_another_seed_is_another_run(make):
    assert timeless(train(make("a")).metrics) != timeless(train(make("b", seed=1)).metrics)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(make, stop):
    """Metrics, rollouts, evaluations, weights and optimizer are those of a run that never stopped."""
    whole = train(make("whole", rollout={"prompts_per_step": 7}, objective={"beta": 0.05}))
    with pytest.raises(KeyboardInterrupt):
        train(
            make("cut", rollout={"prompts_per_step": 7}, objective={"beta": 0.05}), listener=StopAfter(stop)
        )
    cut = resume(whole.path.parent / "cut")
    assert timeless(cut.metrics) == timeless(whole.metrics)
    assert [timeless([e]) for e in cut.evaluations] == [timeless([e]) for e in whole.evaluations]
    assert same_weights(cut.model_dir, whole.model_dir)
    for step in range(1, 5):
        name = f"rollouts/step_{step:05d}.parquet"
        assert pl.read_parquet(cut.path / name).equals(pl.read_parquet(whole.path / name))
    mine, theirs = (
        torch.load(r.path / "checkpoints/step_00004/optimizer.pt", weights_only=True)["state"]
        for r in (cut, whole)
    )
    for key, state in mine.items():
        assert all(torch.equal(state[k], theirs[key][k]) for k in state)


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_cuts_the_logs(make):
    """What a kill in step 4 leaves: a checkpoint of step 2, records of step 3, a torn line, half-written files."""
    whole = train(make("whole"))
    killed = shutil.copytree(whole.path, whole.path.parent / "killed")
    shutil.rmtree(killed / "model")
    shutil.rmtree(killed / "checkpoints" / "step_00004")
    (killed / "rollouts" / "step_00004.parquet").unlink()
    lines = (killed / "metrics.jsonl").read_text().splitlines(keepends=True)
    (killed / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:40])
    (killed / "checkpoints" / "step_00004.tmp-1").mkdir()
    again = resume(killed)
    assert timeless(again.metrics) == timeless(whole.metrics)
    assert same_weights(again.model_dir, whole.model_dir)
    assert not list(killed.rglob("*.tmp-*"))


def test_a_run_without_a_checkpoint_starts_again(make):
    with pytest.raises(KeyboardInterrupt):
        train(make("whole", checkpoint={"checkpoint_every": 0}), listener=StopAfter(1))
    path = tiny_path(make)
    shutil.rmtree(path / "checkpoints")
    assert timeless(resume(path).metrics) == timeless(train(make("fresh")).metrics)


def tiny_path(make):
    return Path(make("whole")["output_dir"])


def test_resuming_a_finished_run_is_an_error_and_more_steps_are_more_steps(make):
    run = train(make())
    with pytest.raises(RunError, match="all 4 steps are done; give --steps"):
        resume(run.path)
    longer = resume(run.path, overrides={"steps": 6})
    assert [m["step"] for m in longer.metrics] == [1, 2, 3, 4, 5, 6]
    assert timeless(longer.metrics) == timeless(train(make("six", steps=6)).metrics)


def test_another_task_or_seed_cannot_be_resumed(make):
    with pytest.raises(KeyboardInterrupt):
        train(make(), listener=StopAfter(2))
    path = make()["output_dir"]
    for change in ({"seed": 1}, {"task": "other"}, {"model": "other"}, {"rollout": {"group_size": 8}}):
        with pytest.raises(ConfigError, match="start a new run to change it"):
            resume(path, overrides=change)
    text = Path(path, "config.toml").read_text()
    assert resume(path, overrides={"evaluation": {"eval_every": 1}}).evaluations[-1]["step"] == 4
    assert Path(path, "config.toml").read_text() == text.replace("eval_every = 0", "eval_every = 1")


def test_changed_prompts_cannot_be_resumed(make, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"q{i}"}) + "\n" for i in range(9)))
    with pytest.raises(KeyboardInterrupt):
        train(make(task=str(prompts)), listener=StopAfter(2))
    prompts.write_text(prompts.read_text() + '{"prompt": "one more"}\n')
    with pytest.raises(RunError, match="are not those it was trained on"):
        resume(make()["output_dir"])


def test_a_damaged_checkpoint_is_passed_over_and_said(make):
    class Notes(Listener):
        def started(self, config, path, *, machine, step, notes):
            self.notes, self.step = notes, step

    with pytest.raises(KeyboardInterrupt):
        train(make(checkpoint={"checkpoint_every": 1}), listener=StopAfter(3))
    path = tiny_path(lambda _: make())
    newest = path / "checkpoints" / "step_00003" / "optimizer.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    notes = Notes()
    run = resume(path, listener=notes)
    assert notes.step == 2
    assert "optimizer.pt is damaged" in notes.notes[0]
    assert timeless(run.metrics) == timeless(train(make("whole")).metrics)


@pytest.mark.parametrize(
    "change", [('"position": 9', '"position": 8'), ('"step": 3', '"step": 2'), ('"step": 3', '"step": "3"')]
)
def test_a_state_that_was_changed_is_damage(make, change):
    with pytest.raises(KeyboardInterrupt):
        train(make(checkpoint={"checkpoint_every": 1}), listener=StopAfter(3))
    state = Path(make()["output_dir"]) / "checkpoints" / "step_00003" / "state.json"
    text = state.read_text()
    assert change[0] in text
    state.write_text(text.replace(*change))
    with pytest.raises(DamagedCheckpoint, match=r"state\.json is damaged"):
        read_state(state.parent)
    assert timeless(resume(make()["output_dir"]).metrics) == timeless(train(make("whole")).metrics)


def test_a_checkpoint_of_another_version_is_kept(make, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        train(make(), listener=StopAfter(3))
    path = Path(make()["output_dir"])
    before = (path / "checkpoints/step_00003/state.json").read_bytes()
    monkeypatch.setattr("grouprl.training.checkpoint.STATE_VERSION", 2)
    with pytest.raises(RunError, match="a checkpoint of version 1, expected 2"):
        resume(path)
    assert (path / "checkpoints/step_00003/state.json").read_bytes() == before


def test_rewards_as_large_as_they_come(make):
    def huge(completions):
        return [1.7e308 if i % 2 else -1.7e308 for i in range(len(completions))]

    run = train(make(reward=[], steps=1), reward=huge)
    assert run.metrics[0]["reward_mean"] == 0
    assert run.metrics[0]["reward_std"] == pytest.approx(1.7e308)


def test_a_folder_with_a_run_is_refused_and_left_as_it_was(make):
    run = train(make())
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != "run.lock"}
    with pytest.raises(RunError, match="holds a run already"):
        train(make())
    assert {p: p.read_bytes() for p in before} == before


def test_a_run_that_failed_before_its_first_record_leaves_its_folder_free(make):
    """A reward with a slip, mended, and the same command again."""
    with pytest.raises(RewardError) as caught:
        train(make(reward=[]), reward=lambda completions: 1 / 0)
    assert "no step is saved yet: go on with grouprl train --resume" in caught.value.__notes__[-1]
    with pytest.raises(ModelError):
        train(make(model="./nowhere"))
    assert len(train(make()).metrics) == 4


def test_unscored_completions_are_not_right(make):
    """Half of them unscored, the others right: accuracy is the share of all, not 1."""

    def half(completions):
        return [1.0 if i % 2 else None for i in range(len(completions))]

    run = train(make(reward=[], steps=1), reward=half)
    assert run.evaluations[0]["accuracy"] == 0.5
    assert run.evaluations[0]["unscored_share"] == 0.5
    assert run.evaluations[0]["reward_mean"] == 1.0


@pytest.mark.parametrize("task", [[{"prompt": "a"}], 3, {"prompt": "a"}])
def test_a_task_of_another_type_is_refused(make, task):
    with pytest.raises(TaskError, match=f"task is a {type(task).__name__}, expected a Task"):
        train(make(), task=task)


def test_files_of_a_model_take_the_umask(make):
    run = train(make(steps=1))
    modes = {p.stat().st_mode & 0o777 for p in run.model_dir.iterdir() if p.name != "grouprl.json"}
    assert len(modes) == 1


def test_nothing_is_left_where_nothing_could_start(make, tmp_path):
    for change, error in (
        ({"model": str(tmp_path / "nope")}, ModelError),
        ({"task": "nope.jsonl"}, TaskError),
        ({"rollout": {"max_new_tokens": 1000}}, ModelError),
    ):
        with pytest.raises(error):
            train(make(**change))
        assert not (tmp_path / "run").exists()


def test_a_reward_that_raises_stops_the_run_with_the_last_step_saved(make, tmp_path):
    calls = []

    def fragile(completions):
        calls.append(len(completions))
        if len(calls) > 4:  # evaluation: two calls; then two steps
            raise ValueError("no more")
        return [float(len(c)) for c in completions]

    with pytest.raises(RewardError, match="fragile"):
        train(make(reward=[]), reward=fragile)
    saved = tmp_path / "run" / "checkpoints"
    assert [p.name for p in saved.iterdir()] == ["step_00002"]
    run = resume(tmp_path / "run", reward=lambda completions: [float(len(c)) for c in completions])
    assert len(run.metrics) == 4


def test_abstaining_rewards_are_counted_and_train_goes_on(make):
    def picky(completions):
        if any("e" in c for c in completions):
            raise ValueError("an e")
        return [float(len(c) % 3) for c in completions]

    run = train(make(on_reward_error="abstain"), reward=picky)
    frame = pl.read_parquet(run.path / "rollouts" / "*.parquet")
    unscored = frame.filter(~pl.col("scored"))
    assert sum(m["reward_errors"] for m in run.metrics) == len(unscored) > 0
    assert unscored["completion"].str.contains("e").all()
    assert unscored["advantage"].to_list() == [0.0] * len(unscored)
    assert unscored["reward"].is_null().all()


def test_rewards_that_draw_random_numbers_resume_to_the_bit(make):
    def noisy(completions):
        return [random.random() for _ in completions]

    whole = train(make("whole", reward=[]), reward=noisy)
    with pytest.raises(KeyboardInterrupt):
        train(make("cut", reward=[]), reward=noisy, listener=StopAfter(2))
    cut = resume(whole.path.parent / "cut", reward=noisy)
    assert timeless(cut.metrics) == timeless(whole.metrics)


def test_a_task_of_ones_own(make):
    prompts = [Prompt(f"p{i}", f"say {i}", {"answer": str(i)}) for i in range(6)]

    def right(completions, answer):
        return [float(a in c) for c, a in zip(completions, answer)]

    task = Task("mine", prompts[:5], prompts[5:], make_rewards([right]))
    run = train(make(reward=[]), task=task)
    assert run.config.task == "<mine>"
    assert len(run.metrics) == 4
    with pytest.raises(RunError, match="task <mine> was given from Python"):
        resume(run.path)


def test_several_rewards_are_weighted_and_recorded(make, rewards_file):
    run = train(
        make(reward=[f"{rewards_file}:lowercase", f"{rewards_file}:parity"], reward_weights=[0.5, 2.0])
    )
    row = pl.read_parquet(run.path / "rollouts" / "step_00001.parquet").row(0, named=True)
    assert row["reward"] == pytest.approx(0.5 * row["reward_lowercase"] + 2.0 * row["reward_parity"])


def test_dead_groups_and_truncation_are_said(make):
    class Warned(Listener):
        messages: list

        def __init__(self):
            self.messages = []

        def warned(self, message):
            self.messages.append(message)

    heard = Warned()
    run = train(
        make(rollout={"max_new_tokens": 1}, reward=[]),
        reward=lambda completions: [0.0] * len(completions),
        listener=heard,
    )
    assert any("no group had spread for 3 steps (mostly all wrong)" in m for m in heard.messages)
    assert all(
        m["groups_all_low_share"] == 1 and m["trained_completions"] == 0 and m["updates"] == 1
        for m in run.metrics
    )
    assert same_weights(run.model_dir, tiny_of(run))
    cut = [m for m in run.metrics if m["truncated_share"] == 1]
    assert len([m for m in heard.messages if "every completion was cut off" in m]) == len(cut)


def test_nothing_scored_skips_the_update_and_says_so(make):
    heard = []

    class Warned(Listener):
        def warned(self, message):
            heard.append(message)

    run = train(make(), reward=lambda completions: [None] * len(completions), listener=Warned())
    assert any("no group had spread for 3 steps (mostly unscored)" in m for m in heard)
    assert [m["updates"] for m in run.metrics] == [0] * 4
    assert run.metrics[0]["reward_mean"] is None
    assert run.metrics[0]["groups_unscored_share"] == 1
    assert run.evaluations[0]["accuracy"] is None


def test_several_updates_a_rollout_and_token_mean(make):
    run = train(
        make(objective={"updates_per_rollout": 2, "aggregation": "token_mean"}, optimizer={"lr": 0.02})
    )
    assert any(m["clip_low_share"] + m["clip_high_share"] > 0 for m in run.metrics)


def test_micro_batches_do_not_change_the_run(make):
    big, small = train(make("a")), train(make("b", micro_batch_tokens=1))
    for name, value in weights(big.model_dir).items():
        torch.testing.assert_close(value, weights(small.model_dir)[name], atol=2e-5, rtol=1e-3)


def test_record_tokens(make):
    run = train(make(record_tokens=True))
    frame = pl.read_parquet(run.path / "rollouts" / "step_00001.parquet")
    row = frame.row(0, named=True)
    assert (
        len(row["token_ids"])
        == len(row["logprobs_sampler"])
        == len(row["loss_mask"])
        == row["completion_tokens"]
    )


def test_a_given_task_takes_the_configured_rewards_and_threshold(make, rewards_file):
    task = Task(
        "mine",
        [Prompt(f"p{i}", f"say {i}") for i in range(6)],
        [],
        make_rewards([lambda completions: [9.0] * len(completions)]),
    )
    run = train(make(reward=[f"{rewards_file}:parity"], reward_weights=[0.5], success_reward=0.5), task=task)
    assert {m["reward_parity_count"] for m in run.metrics} == {12}
    assert max(m["reward_mean"] for m in run.metrics) <= 0.5
    with pytest.raises(TaskError, match="2 for 1 rewards"):
        train(make("other", reward_weights=[1.0, 2.0]))


def test_a_family_that_cannot_share_a_prefix_trains_and_says_so(make, tmp_path):
    class Notes(Listener):
        def started(self, config, path, *, machine, step, notes):
            self.notes = list(notes)

    folder, notes = tiny.save(tmp_path / "lfm2", family="lfm2"), Notes()
    run = train(make(model=str(folder)), listener=notes)
    assert "prompts are run once a completion, not once a group: it has conv layers" in notes.notes
    assert len(run.metrics) == 4
