"""Runs that draw the next step's completions while this one trains: which weights draw, what the loss makes of it, and
that stopping and going on changes nothing."""

import math
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from runs import StopAfter, Warnings, equal_runs, same_weights, step_rows, timeless
from transformers import AutoModelForCausalLM

from grouprl.errors import ConfigError, RewardError
from grouprl.policy import EncodedPrompt
from grouprl.tasks import Scores
from grouprl.training import Listener, config_from_dict, overlap, resume, train
from grouprl.training.checkpoint import DamagedCheckpoint, read_state
from grouprl.training.collected import Collected
from grouprl.training.interrupts import Interrupted, Interrupts
from grouprl.training.objective import correction_of
from grouprl.training.overlap import Ahead, Endable, GivenUp, Work, cpu_threads, share_of_threads
from grouprl.training.sampled import Sampled
from grouprl.training.staleness import check_ranks
from grouprl.types import Completion, Group, Prompt

STALE = {"max_staleness": 1}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t for t in threading.enumerate() if isinstance(t, Work)] == []


@pytest.fixture
def ahead(make):
    """Configurations of runs that draw ahead."""

    def config(name="run", **changes):
        rollout = {**STALE, **changes.pop("rollout", {})}
        return make(name, rollout=rollout, **changes)

    return config


def logprobs(folder, row):
    """Of a recorded completion's tokens, by a plain forward of a checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt, tokens = row["prompt_token_ids"], row["token_ids"]
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[
        0, len(prompt) - 1 : -1
    ]
    found = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return found, model


# Which weights draw, and what the loss makes of it


def test_a_step_trains_on_what_the_weights_of_two_steps_before_drew(ahead):
    run = train(ahead(record_tokens=True, checkpoint={"checkpoint_every": 1, "checkpoint_keep": 4}))
    assert [m["staleness"] for m in run.metrics] == [0, 1, 1, 1]
    for step in (3, 4):
        drew, trained = (run.path / f"checkpoints/step_{step - n:05d}/model" for n in (2, 1))
        nats = []
        for row in step_rows(run, step).rows(named=True):
            sampler, (theirs, _), (mine, _) = (
                row["logprobs_sampler"],
                logprobs(drew, row),
                logprobs(trained, row),
            )
            assert theirs.tolist() == pytest.approx(sampler, abs=1e-5)
            mine = mine.detach()
            if row["advantage"] != 0:
                assert row["logprob_mean_trainer"] == pytest.approx(float(mine.mean()), abs=1e-5)
                d = torch.tensor(sampler) - mine
                nats += ((-d).exp() - 1 + d).tolist()  # k3 of KL(sampler ‖ trainer)
        assert run.metrics[step - 1]["kl_sampler_trainer"] == pytest.approx(sum(nats) / len(nats), rel=1e-3)
        assert sum(nats) / len(nats) > 1e-4  # the weights had moved


def test_the_gradient_weighs_each_token_by_how_likely_it_has_become(ahead):
    """−1/B Σ_i 1/|o_i| Σ_t min(π / π_sampler, 2) A_i ∇ log π, of plain forwards, has the recorded norm; unweighted it
    has another."""
    run = train(
        ahead(
            steps=2,
            record_tokens=True,
            checkpoint={"checkpoint_every": 1},
            optimizer={"lr": 0.02, "max_grad_norm": 0},
        )
    )
    norms = {}
    for weighted in (True, False):
        total = None
        rows = step_rows(run, 2).rows(named=True)
        for row in rows:
            if row["advantage"] == 0:
                continue
            mine, model = logprobs(run.path / "checkpoints/step_00001/model", row)
            weight = (mine.detach() - torch.tensor(row["logprobs_sampler"])).exp().clamp(max=2)
            loss = -(row["advantage"] / len(rows)) * ((weight if weighted else 1) * mine).mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            total = grads if total is None else [a + b for a, b in zip(total, grads)]
        norms[weighted] = math.sqrt(sum(float(g.double().square().sum()) for g in total))
    assert run.metrics[1]["grad_norm"] == pytest.approx(norms[True], rel=1e-3)
    assert norms[False] != pytest.approx(norms[True], rel=0.02)
    assert run.metrics[1]["sampler_corrected_share"] > 0


def test_weights_that_do_not_move_draw_what_a_run_that_takes_turns_draws(make, ahead):
    still = {"optimizer": {"lr": 0.0}, "steps": 3}
    one, other = train(make("turns", **still)), train(ahead("ahead", **still))
    for step in (1, 2, 3):
        mine, theirs = (step_rows(run, step).drop("logprob_mean_sampler") for run in (one, other))
        assert mine.equals(theirs)
    assert [m["reward_mean"] for m in one.metrics] == [m["reward_mean"] for m in other.metrics]
    assert all(m["sampler_weight_mean"] == pytest.approx(1, abs=1e-5) for m in other.metrics)
    assert [m["staleness"] for m in one.metrics] == [0, 0, 0]


def test_evaluating_and_saving_between_steps_changes_no_step(ahead):
    often = {"evaluation": {"eval_every": 1}, "checkpoint": {"checkpoint_every": 1}}
    seldom = {"evaluation": {"eval_prompts": 0}, "checkpoint": {"checkpoint_every": 0}}
    one, other = train(ahead("often", **often)), train(ahead("seldom", **seldom))
    assert timeless(one.metrics) == timeless(other.metrics)
    assert same_weights(one.model_dir, other.model_dir)
    assert [e["step"] for e in one.evaluations] == [0, 1, 2, 3, 4]


def test_an_evaluation_is_of_the_weights_of_its_step(make, ahead):
    """As those of a run that takes turns, where the weights are the same: before the run and after its first step."""
    often = {"evaluation": {"eval_every": 1}, "steps": 2, "objective": {"correction": "truncated"}}
    one, other = train(make("turns", **often)), train(ahead("ahead", **often))
    mine, theirs = (
        [{k: v for k, v in e.items() if k != "seconds"} for e in run.evaluations] for run in (one, other)
    )
    assert mine[:2] == theirs[:2]


def test_a_kl_in_the_reward_is_that_of_the_policy_that_is_trained(ahead):
    """beta · Σ_t (log π − log π_ref) with the weights of the step before, not of those that drew."""
    run = train(
        ahead(
            record_tokens=True,
            objective={"beta": 0.5, "kl_in": "reward"},
            optimizer={"lr": 0.01},
            checkpoint={"checkpoint_every": 1, "checkpoint_keep": 4},
        )
    )
    for row in step_rows(run, 3).rows(named=True):
        mine, _ = logprobs(run.path / "checkpoints/step_00002/model", row)
        start, _ = logprobs(Path(run.config.model), row)
        mine, start = mine.detach(), start.detach()
        assert row["kl_penalty"] == pytest.approx(0.5 * float((mine - start).sum()), abs=2e-4)
        drawn = 0.5 * (sum(row["logprobs_sampler"]) - float(start.sum()))
        assert row["kl_penalty"] != pytest.approx(drawn, abs=2e-4)


def test_auto_corrects_what_may_be_stale(make):
    assert correction_of(config_from_dict(make())) == "off"
    assert correction_of(config_from_dict(make(rollout=STALE))) == "truncated"
    assert (
        correction_of(config_from_dict(make(rollout=STALE, objective={"correction": "masked"}))) == "masked"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout": {"max_staleness": 2}}, "rollout.max_staleness is 2, expected less than or equal to 1"),
        (
            {"rollout": STALE, "objective": {"correction": "off"}},
            "max_staleness is 1 with objective.correction 'off'",
        ),
        (
            {"rollout": STALE, "lora": {"lora_rank": 2, "quantize": "nf4"}},
            "max_staleness is 1 with lora.quantize 'nf4'",
        ),
        ({"rollout": {"sampler_threads": 2}}, "sampler_threads is 2 with max_staleness 0"),
    ],
)
def test_what_cannot_be_combined_is_refused(make, changes, said):
    with pytest.raises(ConfigError, match=said):
        config_from_dict(make(**changes))


def test_several_ranks_are_refused(make):
    check_ranks(config_from_dict(make()), 2)
    check_ranks(config_from_dict(make(rollout=STALE)), 1)
    with pytest.raises(ConfigError, match="max_staleness is 1 on 2 ranks, expected one process"):
        check_ranks(config_from_dict(make(rollout=STALE)), 2)


def test_a_policy_that_moves_far_between_drawing_and_training_is_said(ahead):
    heard = Warnings()
    train(ahead(optimizer={"lr": 0.1}), listener=heard)
    assert any("nats a token since the completions were drawn" in m for m in heard.messages)
    assert not any("use --dtype float32" in m for m in heard.messages)
    assert any(
        "drawn while the step before trains, by weights one update old" in note for note in heard.notes
    )


# Going on


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"beta": 0.05, "updates_per_rollout": 2, "mini_batches": 2}},
        {"advantage": {"estimator": "remax"}, "rollout": {"sampler_dtype": "bfloat16"}},
    ],
    ids=["several updates", "greedy"],
)
def test_a_resumed_run_is_the_uninterrupted_one(ahead, changes, stop):
    whole = train(ahead("whole", **changes))
    with pytest.raises(KeyboardInterrupt):
        train(ahead("cut", **changes), listener=StopAfter(stop))
    equal_runs(resume(whole.path.parent / "cut"), whole)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_memories_and_curricula_go_on_as_if_nothing_had_stopped(few, stop):
    """Prompts come again, are passed over, drawn in rounds, punished and picked from, and scored in part."""
    changes = {
        "rollout": {**STALE, "prompts_per_step": 2},
        "advantage": {"estimator": "spo", "options": {"high": 2.5}},
        "sampling": {
            "max_sampling_rounds": 3,
            "skip_epochs": 1,
            "skip_solved": 0.5,
            "train_group_size": 3,
            "overlong_buffer_tokens": 2,
        },
        "success_reward": 0.2,
    }
    whole = train(few("whole", **changes))
    assert sum(m["prompts_skipped_solved"] + m["prompts_skipped_unsolved"] for m in whole.metrics) > 0
    assert max(m["sampling_rounds"] for m in whole.metrics) > 1
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", **changes), listener=StopAfter(stop))
    cut = resume(whole.path.parent / "cut")
    equal_runs(cut, whole)
    states = [(run.path / "checkpoints/step_00004/curriculum.json").read_bytes() for run in (cut, whole)]
    assert states[0] == states[1]


@pytest.mark.parametrize("backbone", ["shared", "own"])
def test_a_critic_goes_on_as_if_nothing_had_stopped(ahead, backbone):
    changes = {"advantage": {"estimator": "gae"}, "critic": {"critic_backbone": backbone}}
    whole = train(ahead("whole", **changes))
    with pytest.raises(KeyboardInterrupt):
        train(ahead("cut", **changes), listener=StopAfter(2))
    equal_runs(resume(whole.path.parent / "cut"), whole)


def test_rewards_and_estimators_that_draw_random_numbers_resume_to_the_bit(ahead, tmp_path, forget):
    """Evaluations in between, whose rewards draw, too, are not repeated."""
    (tmp_path / "my_estimators_noisy.py").write_text(
        "import torch\nfrom grouprl import advantages\n\n"
        "@advantages.register('noisy', laws={'finite'})\n"
        "def noisy(rewards, group_ids=None, *, valid=None):\n"
        "    return torch.where(rewards.isnan(), 0.0, torch.randn(len(rewards), dtype=torch.float64))\n"
    )

    def noise(completions):
        return [random.random() for _ in completions]

    changes = {
        "advantage": {"estimator": f"{tmp_path}/my_estimators_noisy.py:noisy"},
        "evaluation": {"eval_every": 1},
        "reward": [],
    }
    whole = train(ahead("whole", **changes), reward=noise)
    with pytest.raises(KeyboardInterrupt):
        train(ahead("cut", **changes), reward=noise, listener=StopAfter(2))
    equal_runs(resume(whole.path.parent / "cut", reward=noise), whole)


class Interrupting(Listener):
    """Send SIGINT to this process at the nth telling of an event, from whichever thread tells it."""

    def __init__(self, name, nth):
        self.name, self.left = name, nth

    def _count(self, name):
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)

    def stage(self, name, done, total):
        self._count(name)

    def stepped(self, metrics, rows):
        self._count("stepped")

    def evaluated(self, evaluation):
        self._count("evaluated")

    def checkpointed(self, step, path):
        self._count("checkpointed")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(SHORT | {"model": str(tiny_model), "output_dir": str(folder / "run")}, reward=lowercase)


SHORT = {
    "steps": 4,
    "device": "cpu",
    "micro_batch_tokens": 1,  # one row a micro-batch: several tellings of training in each step
    "rollout": {"group_size": 4, "prompts_per_step": 2, "max_new_tokens": 4, **STALE},
    "optimizer": {"lr": 1e-3},
    "evaluation": {"eval_prompts": 2, "eval_samples": 2, "eval_every": 2},
    "checkpoint": {"checkpoint_every": 2, "checkpoint_keep": 9},
}


def lowercase(completions):
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]


@pytest.mark.parametrize(
    ("event", "nth"),
    [
        *(("rollout", n) for n in (1, 5, 8, 13, 17, 20)),
        *(("reward", n) for n in (1, 2, 3, 4)),
        *(("train", n) for n in (1, 2, 3, 4, 6, 8)),
        *(("evaluation", n) for n in (2, 12, 20, 28)),
        *(("stepped", n) for n in (1, 2, 3, 4)),
        *(("evaluated", n) for n in (1, 2)),
        ("checkpointed", 1),
        ("checkpoint", 1),
    ],
)
def test_an_interrupt_anywhere_loses_nothing(uninterrupted, tmp_path, event, nth):
    config = SHORT | {"model": uninterrupted.config.model, "output_dir": str(tmp_path / "cut")}
    interrupting = Interrupting(event, nth)
    with pytest.raises(Interrupted):
        train(config, reward=lowercase, listener=interrupting)
    assert interrupting.left <= 0
    equal_runs(resume(tmp_path / "cut", reward=lowercase), uninterrupted)


def test_a_killed_run_goes_on_from_its_last_checkpoint(uninterrupted, tmp_path):
    """What a kill leaves: the folder in the middle of step 4, with a batch of step 3 in the checkpoint of step 2."""
    config = SHORT | {"model": uninterrupted.config.model, "output_dir": str(tmp_path / "run")}

    class Copy(Listener):
        steps = 0

        def stepped(self, metrics, rows):
            self.steps = metrics["step"]

        def stage(self, name, done, total):
            if name == "train" and self.steps == 3:
                shutil.copytree(tmp_path / "run", tmp_path / "killed", dirs_exist_ok=True)

    train(config, reward=lowercase, listener=Copy())
    assert (tmp_path / "killed/rollouts/step_00003.parquet").exists()
    assert (tmp_path / "killed/checkpoints/step_00002/in_flight.json").exists()
    assert not (tmp_path / "killed/checkpoints/step_00004").exists()
    equal_runs(resume(tmp_path / "killed", reward=lowercase), uninterrupted)


def test_more_steps_go_on_with_completions_of_the_final_weights(uninterrupted, tmp_path):
    config = SHORT | {"model": uninterrupted.config.model, "output_dir": str(tmp_path / "run"), "steps": 2}
    train(config, reward=lowercase)
    run = resume(tmp_path / "run", overrides={"steps": 3}, reward=lowercase)
    assert [m["staleness"] for m in run.metrics] == [0, 1, 0]


def test_a_batch_that_was_changed_is_damage(uninterrupted, tmp_path):
    config = SHORT | {"model": uninterrupted.config.model, "output_dir": str(tmp_path / "cut")}
    config["checkpoint"] = {"checkpoint_every": 1, "checkpoint_keep": 9}
    with pytest.raises(KeyboardInterrupt):
        train(config, reward=lowercase, listener=StopAfter(3))
    file = tmp_path / "cut/checkpoints/step_00003/in_flight.json"
    file.write_text(file.read_text().replace('"step": 4', '"step": 5'))
    with pytest.raises(DamagedCheckpoint, match=r"in_flight\.json is damaged"):
        read_state(file.parent)
    run = resume(tmp_path / "cut", reward=lowercase)
    assert timeless(run.metrics) == timeless(uninterrupted.metrics)


# What goes wrong beside the main thread


def test_a_reward_that_raises_stops_the_run_at_its_step(ahead, tmp_path):
    """In drawing step 3, while step 2 trains: step 2 is whole and saved, without the batch that failed."""
    calls = Counter()

    def fragile(completions):
        calls["all"] += 1
        if calls["all"] > 2:
            raise ValueError("no more")
        return [float(len(c)) for c in completions]

    quiet = {"evaluation": {"eval_prompts": 0}, "checkpoint": {"checkpoint_every": 0}, "reward": []}
    with pytest.raises(RewardError, match=r"fragile.*no more") as caught:
        train(ahead(**quiet), reward=fragile)
    assert "step 2 is saved: go on with grouprl train --resume" in caught.value.__notes__[-1]
    saved = tmp_path / "run" / "checkpoints"
    assert [p.name for p in saved.iterdir()] == ["step_00002"]
    assert not (saved / "step_00002/in_flight.json").exists()
    run = resume(tmp_path / "run", reward=lambda completions: [float(len(c)) for c in completions])
    assert [m["staleness"] for m in run.metrics] == [0, 1, 0, 1]


@pytest.mark.parametrize("due", [{"evaluation": {"eval_every": 1}}, {"checkpoint": {"checkpoint_every": 1}}])
def test_one_that_raises_is_met_before_an_evaluation_or_a_checkpoint(ahead, tmp_path, due):
    class Fragile:
        trained = 0

        def __call__(self, completions):
            self.trained += isinstance(threading.current_thread(), Work)
            if self.trained > 2:
                raise ValueError("no more")
            return [float(len(c)) for c in completions]

    with pytest.raises(RewardError, match="no more") as caught:
        train(ahead(reward=[], **due), reward=Fragile())
    assert "step 2 is saved" in caught.value.__notes__[-1]
    run = resume(tmp_path / "run", reward=lambda completions: [float(len(c)) for c in completions])
    assert [m["step"] for m in run.metrics] == [1, 2, 3, 4]
    if "evaluation" in due:
        assert [e["step"] for e in run.evaluations] == [0, 1, 2, 3, 4]


def test_a_reward_that_exits_ends_the_run(ahead):
    def leaving(completions):
        if isinstance(threading.current_thread(), Work):
            raise SystemExit(3)
        return [0.0] * len(completions)

    with pytest.raises(SystemExit):
        train(ahead(reward=[]), reward=leaving)


def test_a_listener_that_raises_in_drawing_stops_the_run(ahead, tmp_path):
    class Raising(Listener):
        rewards = 0

        def stage(self, name, done, total):
            self.rewards += name == "reward"
            if name == "reward" and self.rewards == 3:
                raise RuntimeError("not any more")

    with pytest.raises(RuntimeError, match="not any more"):
        train(ahead(), listener=Raising())
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step_00002"]


class Slow:
    """`lowercase`, which, once, waits until it is let go."""

    __name__ = "lowercase"

    def __init__(self):
        self.calls, self.let_go, self.waits = 0, threading.Event(), threading.Event()

    def __call__(self, completions):
        if isinstance(threading.current_thread(), Work):
            self.calls += 1
            if self.calls == 3:
                self.waits.set()
                self.let_go.wait(300)
        return lowercase(completions)


class TwiceInterrupting(Listener):
    """Ctrl-C once the reward waits, and again when told what is waited for."""

    def __init__(self, slow, answer):
        self.slow, self.answer, self.messages = slow, answer, []

    def stepped(self, metrics, rows):
        if metrics["step"] == 2:
            self.slow.waits.wait(300)
            os.kill(os.getpid(), signal.SIGINT)

    def warned(self, message):
        self.messages.append(message)
        if "interrupt again" in message:
            self.answer()


def test_an_interrupt_waits_for_the_batch_and_a_second_one_does_not(uninterrupted, tmp_path):
    config = SHORT | {"model": uninterrupted.config.model, "output_dir": str(tmp_path / "first")}
    slow = Slow()
    heard = TwiceInterrupting(slow, slow.let_go.set)
    with pytest.raises(Interrupted):
        train(config, reward=slow, listener=heard)
    assert any("finishing the completions of step 3" in m for m in heard.messages)
    assert (tmp_path / "first/checkpoints/step_00002/in_flight.json").exists()
    assert timeless(resume(tmp_path / "first", reward=lowercase).metrics) == timeless(uninterrupted.metrics)

    config["output_dir"] = str(tmp_path / "second")
    slow = Slow()
    with pytest.raises(Interrupted):
        train(
            config,
            reward=slow,
            listener=TwiceInterrupting(slow, lambda: os.kill(os.getpid(), signal.SIGINT)),
        )
    assert [t for t in threading.enumerate() if isinstance(t, Work)]  # the reward has not come back
    assert not (tmp_path / "second/checkpoints/step_00002/in_flight.json").exists()
    slow.let_go.set()
    for thread in threading.enumerate():
        if isinstance(thread, Work):
            assert thread.wait(60)
    assert [m["staleness"] for m in resume(tmp_path / "second", reward=lowercase).metrics] == [0, 1, 0, 1]


def test_both_stages_are_told_and_training_does_not_wait_for_drawing(ahead):
    """Drawing is told from another thread than training; the time waited for it is recorded."""
    threads = {}

    class Where(Listener):
        def stage(self, name, done, total):
            threads.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())

    run = train(ahead(), listener=Where())
    assert threads["rollout"] == threads["reward"] == {False}
    assert threads["train"] == threads["evaluation"] == threads["checkpoint"] == {True}
    for metrics in run.metrics:
        assert 0 <= metrics["seconds_wait"] <= metrics["seconds_step"]
        assert metrics["seconds_rollout"] > 0


# The parts


def test_work_returns_raises_and_is_given_up():
    assert Work(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        Work(lambda: 1 / 0).result()
    begun = threading.Event()

    def endless():
        telling = Endable(Listener())
        while True:
            begun.set()
            telling.stage("rollout", 0, 1)

    work = Work(endless)
    assert begun.wait(60)
    assert not work.wait(0.01)
    work.give_up()
    with pytest.raises(GivenUp):
        work.result()
    Endable(Listener()).stage("rollout", 0, 1)  # the main thread is no work


def test_an_interrupt_while_waiting_leaves_the_batch_where_it_was():
    """SIGINT comes while the main thread waits; the batch is there afterwards."""
    sampled = Sampled(1, 0, collected([]), None, {})
    interrupts, arrived = Interrupts(), []
    drawing = Ahead(arrived=lambda: arrived.append(1), interrupts=interrupts, device=torch.device("cpu"))
    with interrupts:

        def draw():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            return sampled

        drawing.start(draw, threads=None)
        with pytest.raises(Interrupted):
            drawing.batch(1)
        assert drawing.is_drawing(1)
        assert drawing.batch(1) is sampled
        assert drawing.batch(1) is sampled
        assert drawing.batch(2) is None
    assert arrived == [1]


@pytest.mark.parametrize("ends", [True, False])
def test_what_was_given_up_is_waited_for_but_not_long(monkeypatch, ends):
    """It ends at the next telling; a reward that does not come back is left behind without a word."""
    monkeypatch.setattr(overlap, "PATIENCE_S", 60 if ends else 0.01)
    begun, let_go, said = threading.Event(), threading.Event(), []

    def draw():
        begun.set()
        if not ends:
            let_go.wait(60)
        while True:
            Endable(Listener()).stage("rollout", 0, 1)

    drawing = Ahead(arrived=lambda: None, interrupts=Interrupts(), device=torch.device("cpu"))
    drawing.start(draw, threads=None)
    assert begun.wait(60)
    drawing.give_up()
    drawing.close(said.append)
    left = [t for t in threading.enumerate() if isinstance(t, Work)]
    assert (len(left), said) == (0 if ends else 1, [])
    let_go.set()
    for thread in left:
        assert thread.wait(60)


def test_threads_are_set_for_one_thread_alone():
    before = torch.get_num_threads()
    seen = []
    with cpu_threads(3):
        assert torch.get_num_threads() == 3
        Work(lambda: seen.append(torch.get_num_threads()), threads=2).wait()
        assert torch.get_num_threads() == 3
    assert (seen, torch.get_num_threads()) == ([2], before)


@pytest.mark.parametrize(
    ("threads", "asked", "expected"),
    [(1, 0, (1, 1)), (2, 0, (1, 1)), (5, 0, (2, 3)), (8, 6, (6, 2)), (4, 9, (3, 1)), (1, 4, (1, 1))],
)
def test_threads_are_shared_out(threads, asked, expected):
    with cpu_threads(threads):
        assert share_of_threads(torch.device("cpu"), asked) == expected
        assert share_of_threads(torch.device("cuda"), asked) == (None, None)


def collected(groups):
    count = sum(len(g.completions) for g in groups)
    rewards = [None, 0.1, -1e-300, 1e300][:count]
    return Collected(
        groups=groups,
        scores=Scores(
            rewards,
            {"own": list(rewards)},
            errors=1,
            error_examples=["a line"],
            outcomes={"own": ["right", None, "wrong", "wrong"][:count]},
            possible_outcomes={"own": ("right", "wrong")},
        ),
        correctness=list(rewards),
        dropped=[None, "down_sampled", None, "all_low"][:count],
        rounds=2,
        position=17,
        skipped=Counter(solved=3),
        resampling_s=0.1,
    )


@pytest.mark.parametrize("empty", [True, False])
def test_a_batch_is_read_as_it_was_written(tmp_path, empty):
    encoded = [EncodedPrompt(Prompt(f"p{i}", "?", {"answer": i}), f"text {i}", (i, i + 1)) for i in range(3)]
    odd = Completion((1, 2, 3), (-0.1, -math.inf, -1 / 3), (True, False, True), "\ud800 ✓ \x00", "length")
    short = Completion((7,), (-1e-45,), (False,), "", "stop")
    groups = (
        []
        if empty
        else [
            Group("train/4/0", encoded[2].prompt, encoded[2].text, encoded[2].token_ids, (odd, short)),
            Group("train/4/1", encoded[0].prompt, encoded[0].text, encoded[0].token_ids, (short, odd)),
        ]
    )
    greedy = Scores([0.5, None], {"own": [0.5, None]})
    written = Sampled(4, 2, collected(groups), greedy, {"rollout": 0.25})
    written.save(tmp_path)
    assert Sampled.load(tmp_path, encoded) == written
    assert written.staleness == 1
