"""Whole runs under torchrun: what one process gives, and what a rank that dies, raises or is stopped leaves."""

import shutil
import sys

import launch
import polars as pl
import pytest
import torch
from runs import timeless, weights
from safetensors.torch import load_file

from grouprl.records import RunFolder
from grouprl.training import config_from_dict, resume, train
from grouprl.training.config import config_to_toml

REWARD = '''
import os, signal, sys

CALLS = 0


def lowercase(completions):
    """Share of lower-case letters. Rank 1 misbehaves at its seventh call, if it was told to."""
    global CALLS
    CALLS += 1
    if CALLS == 7 and os.environ.get("RANK") == "1":
        match os.environ.get("MISBEHAVE"):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ValueError("what a pity")
            case "be stopped":
                os.kill(os.getpid(), signal.SIGTERM)
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model):
    """A folder with a configuration: three prompts on two ranks are uneven shares; greedy completions, fresh draws."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "reward.py").write_text(REWARD)
    config = config_from_dict(
        {
            "model": str(tiny_model),
            "reward": [f"{folder}/reward.py:lowercase"],
            "steps": 4,
            "device": "cpu",
            "micro_batch_tokens": 200,
            "record_tokens": True,
            "rollout": {"group_size": 4, "prompts_per_step": 3, "max_new_tokens": 6},
            "sampling": {"max_sampling_rounds": 2},
            "advantage": {"estimator": "remax"},
            "optimizer": {"lr": 1e-3},
            "evaluation": {"eval_prompts": 3, "eval_samples": 2},
            "checkpoint": {"checkpoint_every": 1},
        }
    )
    (folder / "config.toml").write_text(config_to_toml(config))
    return folder


@pytest.fixture(scope="module")
def alone(place):
    path = list(sys.path)
    yield train(config_from_dict({**RunFolder(place).config(), "output_dir": str(place / "alone")}))
    sys.path[:] = path


def near(mine, theirs, name):
    """Equal, numbers as near as rounding allows, whatever they stand in."""
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), name
        mine, theirs = list(mine.items()), list(theirs.items())
    if isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs), name
        for a, b in zip(mine, theirs, strict=True):
            near(a, b, name if not isinstance(b, tuple) else f"{name}: {b[0]}")
    elif isinstance(theirs, float) and mine is not None:
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5), name
    else:
        assert mine == theirs, name


def agree(path, alone):
    """The records of one process: the same completions, and numbers as near as rounding allows."""
    run = RunFolder(path)
    assert run.rollout_steps() == [1, 2, 3, 4]
    for step in run.rollout_steps():
        mine, theirs = (pl.read_parquet(RunFolder(r).rollouts_path(step)) for r in (path, alone.path))
        assert mine.columns == theirs.columns
        for name in mine.columns:
            near(mine[name].to_list(), theirs[name].to_list(), name)
    near(timeless(run.metrics()), timeless(alone.metrics), "metrics")
    near(timeless(run.evaluations()), timeless(alone.evaluations), "evaluations")
    same_model(run, alone)


def same_model(run, alone):
    left, right = weights(run.model_dir), weights(alone.model_dir)
    assert left.keys() == right.keys()
    for name, weight in right.items():
        torch.testing.assert_close(left[name], weight, rtol=1e-4, atol=2e-5, msg=name)


def test_a_run_on_several_ranks_is_the_run_of_one(place, alone):
    """On four ranks one has no prompt to sample for; runs on two are those below."""
    done = launch.torchrun(4, ["train", "config.toml", "--output-dir", "on-4"], cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step  reward") == 1  # rank 0 alone shows the run
    assert "4 ranks, ddp" in done.stdout
    agree(place / "on-4", alone)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("die", "the connection to another rank broke"),
        ("raise", "raised ValueError: what a pity"),
        ("be stopped", "stopped after step"),
    ],
)
def test_a_rank_that_ends_early_ends_the_others_and_the_run_goes_on_alone(place, alone, what, said):
    name = what.replace(" ", "-")
    done = launch.torchrun(
        2, ["train", "config.toml", "--output-dir", name], cwd=place, env={"MISBEHAVE": what}
    )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("grouprl: ")]
    assert len(lines) == 1, done.stderr  # once, whichever rank says it
    assert said in lines[0]
    assert f"--resume {name}" in done.stderr
    assert RunFolder(place / name).checkpoints()
    again = resume(place / name)
    assert [m["step"] for m in again.metrics] == [1, 2, 3, 4]
    agree(place / name, alone)
    shutil.rmtree(place / name)


def test_sharded_weights_go_on_on_any_number_of_ranks(place, alone):
    """Checkpoints of one process, of two ranks and of three, that share the weights out, taken up by one another."""
    path = place / "passed-on"
    train(config_from_dict({**RunFolder(place).config(), "steps": 1, "output_dir": str(path)}))
    for size, steps in ((2, 2), (3, 3)):
        more = ["train", "--resume", "passed-on", "--steps", str(steps), "--strategy", "fsdp"]
        done = launch.torchrun(size, more, cwd=place)
        assert done.returncode == 0, done.stderr
        assert f"{size} ranks, fsdp" in done.stdout
        files = [p for p in (path / "checkpoints").rglob("*") if p.is_file()]
        moments = [p for p in files if p.parent.name == "optimizer"]
        assert len(moments) == size  # each rank its own
        assert {p.suffix for p in moments} == {".safetensors"}
        assert not [p for p in files if p.suffix in (".pt", ".metadata") or p.name == ".metadata"]
    resume(path, overrides={"steps": 4})
    run = RunFolder(path)
    near(timeless(run.metrics()), timeless(alone.metrics), "metrics")
    same_model(run, alone)


def test_a_sharded_model_trains_an_adapter(place):
    """Begun by one process, taken up by two ranks and by three; the adapter, and the model that it is merged into, are
    those of one process. With a reference, which is the sharded model without the adapter."""
    table = {
        **RunFolder(place).config(),
        "steps": 3,
        "objective": {"beta": 0.1},
        "lora": {"lora_rank": 2, "lora_merge": True},
    }
    alone = train(config_from_dict({**table, "output_dir": str(place / "adapter-alone")}))
    path = place / "adapter"
    train(config_from_dict({**table, "steps": 1, "output_dir": str(path)}))
    for size, steps in ((2, 2), (3, 3)):
        more = ["train", "--resume", "adapter", "--steps", str(steps), "--strategy", "fsdp"]
        done = launch.torchrun(size, more, cwd=place)
        assert done.returncode == 0, done.stderr
    run = RunFolder(path)
    near(timeless(run.metrics()), timeless(alone.metrics), "metrics")
    same_model(run, alone)
    mine, theirs = (
        load_file(folder / "adapter/adapter_model.safetensors") for folder in (run.model_dir, alone.model_dir)
    )
    assert mine.keys() == theirs.keys()
    for name, matrix in theirs.items():
        torch.testing.assert_close(mine[name], matrix, rtol=1e-4, atol=2e-5, msg=name)


REFUSED = '''
import os

import torch.distributed as dist

from grouprl.errors import GrouprlError
from grouprl.training import Listener, resume, train

dist.init_process_group("gloo")
rank = dist.get_rank()


def say(words):
    os.write(1, f"rank {rank} {words}\\n".encode())  # whole lines, whoever else writes


def refused(act):
    try:
        act()
    except GrouprlError as error:
        if error.of_rank is None:
            say(f"says: {error}")


class Leaving(Listener):
    """Raise on rank 0, the only one that is told."""

    def checkpointed(self, step, path):
        raise KeyboardInterrupt


refused(lambda: train({"model": MODEL, "steps": 1 + rank, "device": "cpu", "output_dir": "differ"}))
refused(lambda: resume("alone"))
try:
    resume("stopped", overrides={"steps": 4}, listener=Leaving())
except KeyboardInterrupt:
    say("stopped")
dist.barrier()  # the script's own group is still there
say(f"has {len(dist.distributed_c10d._world.pg_map)} group")
'''


def test_what_is_refused_is_said_once_and_a_group_from_outside_is_left_as_it_was(place, alone):
    """In a script with a process group of its own; a listener that stops the run, stops it on all ranks."""
    train(config_from_dict({**RunFolder(place).config(), "steps": 1, "output_dir": str(place / "stopped")}))
    script = place / "own.py"
    script.write_text(REFUSED.replace("MODEL", repr(str(RunFolder(place).config()["model"]))))
    done = launch.torchrun_script(2, script, cwd=place)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines[0] == "rank 0 has 1 group"
    assert lines[1].startswith("rank 0 says: alone: all 4 steps are done")
    assert lines[2].startswith("rank 0 says: rank 1: options or configurations differ from those of rank 0")
    assert lines[3:] == ["rank 0 stopped", "rank 1 has 1 group", "rank 1 stopped"]
    assert not (place / "differ").exists()
    assert RunFolder(place / "stopped").checkpoints()[-1] == 2


def test_a_rank_that_dies_before_the_final_model_is_told_and_the_run_goes_on(place):
    """Sharded weights are put together once more after the last checkpoint: a collective that nothing follows."""
    script = place / "die-last.py"
    script.write_text(
        "import os, signal, sys\n"
        "from grouprl.cli.main import main\n"
        "from grouprl.policy import Policy\n"
        "whole_state, calls = Policy.whole_state, []\n"
        "def dying(self, **given):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2 and os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return whole_state(self, **given)\n"
        "Policy.whole_state = dying\n"
        "sys.exit(main(['train', 'config.toml', '--steps', '1', '--strategy', 'fsdp', '--output-dir', 'last']))\n"
    )
    done = launch.torchrun_script(2, script, cwd=place)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("grouprl: ")]
    assert len(lines) == 1, done.stderr
    assert "rank 0: the connection to another rank broke" in lines[0]
    assert "step 1 is saved: go on with grouprl train --resume" in lines[0]
    again = resume(place / "last")
    assert [m["step"] for m in again.metrics] == [1]
    assert weights(again.model_dir)
