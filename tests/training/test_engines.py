"""Which engine a configuration gives, what it refuses, and what becomes of a run whose engine is gone."""

import json
import subprocess
import sys
import time
from pathlib import Path

import launch
import polars as pl
import pytest
import tiny
import tomli_w
import torch
from safetensors.torch import load_file

from grouprl.cli.main import main
from grouprl.errors import ConfigError, MissingDependency
from grouprl.rollout import LocalEngine, vllm_server
from grouprl.rollout.vllm_http import VllmClient
from grouprl.rollout.vllm_options import without_torchrun
from grouprl.rollout.vllm_weights import free_port
from grouprl.training import Config, config_from_dict, train
from grouprl.training.engines import check_engine_packages, make_engine, reserved_share
from grouprl.training.memory import fit_micro_batch
from grouprl.training.objective import correction_of

URL = "http://127.0.0.1:8000"


def test_the_default_is_the_local_engine(tmp_path):
    policy = tiny.policy()
    engine = make_engine(Config(), policy, tmp_path, prompts=[])
    assert isinstance(engine, LocalEngine)
    assert engine.sampler.model is policy.model
    rounded = make_engine(
        config_from_dict({"rollout": {"sampler_dtype": "bfloat16", "batch_tokens": 99}}),
        policy,
        tmp_path,
        prompts=[],
    )
    assert rounded.batch_tokens == 99
    assert rounded.sampler.model.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (
            {"rollout": {"engine": "vllm", "temperature": 0.7, "top_p": 0.9}},
            "expected temperature = 1 or no top_p and top_k",
        ),
        (
            {"rollout": {"engine": "vllm_server", "temperature": 0.7, "top_k": 20}},
            "temperature = 0.7 with top_k = 20 and engine vllm",
        ),
        (
            {"rollout": {"engine": "vllm"}, "vllm": {"vllm_url": URL}},
            "expected 'vllm_server', which alone asks",
        ),
        (
            {"rollout": {"engine": "vllm"}, "vllm": {"vllm_devices": "1"}},
            "expected 'vllm_server', which alone asks",
        ),
        (
            {"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_url": "http://10.1.1.1:8000"}},
            "not on this machine",
        ),
        (
            {"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_url": URL, "vllm_args": ["--x"]}},
            "a server that runs already has its options",
        ),
        (
            {"rollout": {"engine": "vllm"}, "vllm": {"vllm_transfer": "nccl"}},
            "within one process tensors are handed over",
        ),
        (
            {"rollout": {"engine": "vllm"}, "lora": {"lora_rank": 4, "quantize": "nf4"}},
            "weights in 4 bits cannot be handed over",
        ),
        ({"rollout": {"engine": "sglang"}}, "rollout.engine is 'sglang', expected"),
        ({"vllm": {"vllm_memory": 1.5}}, "vllm.vllm_memory is 1.5, expected"),
        ({"vllm": {"vllm_timeout_s": 0}}, "vllm.vllm_timeout_s is 0, expected"),
    ],
)
def test_what_contradicts_itself_is_refused(table, match):
    with pytest.raises(ConfigError, match=match):
        config_from_dict(table)


def test_the_local_engine_may_have_both_temperature_and_top_p():
    config_from_dict({"rollout": {"temperature": 0.7, "top_p": 0.9, "top_k": 20}})


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_vllm_is_needed_where_it_runs(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("grouprl.training.engines.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=rf"rollout.engine = '{engine}': vllm is not installed here"):
        train({"rollout": {"engine": engine}, "output_dir": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("vllm", [{"vllm_url": URL}, {"vllm_python": "/opt/vllm/bin/python"}])
def test_vllm_is_not_needed_where_it_runs_elsewhere(vllm, monkeypatch):
    monkeypatch.setattr("grouprl.training.engines.find_spec", lambda name: None)
    check_engine_packages(config_from_dict({"rollout": {"engine": "vllm_server"}, "vllm": vllm}), 1)


def test_vllm_within_several_ranks_is_refused():
    """However they were started: it is the ranks that met which count."""
    check_engine_packages(Config(), 2)
    check_engine_packages(
        config_from_dict({"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_url": URL}}), 2
    )
    with pytest.raises(ConfigError, match="on 2 ranks, expected 'vllm_server'"):
        check_engine_packages(config_from_dict({"rollout": {"engine": "vllm"}}), 2)


@pytest.mark.parametrize(("engine", "correction"), [("local", "off"), ("vllm", "truncated")])
def test_another_engine_is_corrected_for(engine, correction):
    assert correction_of(config_from_dict({"rollout": {"engine": engine}})) == correction


def test_the_engine_is_closed_with_the_run(tmp_path, monkeypatch):
    """Also where the run fails."""
    closed = []
    monkeypatch.setattr(LocalEngine, "close", lambda self: closed.append(self))
    tiny.save(tmp_path / "model")
    table = {
        "model": str(tmp_path / "model"),
        "device": "cpu",
        "steps": 1,
        "rollout": {"prompts_per_step": 1, "group_size": 2, "max_new_tokens": 2},
        "evaluation": {"eval_prompts": 0},
    }
    train({**table, "output_dir": str(tmp_path / "one")})
    assert len(closed) == 1

    def fail(completions, **_):
        raise ValueError("no")

    with pytest.raises(RuntimeError):
        train({**table, "output_dir": str(tmp_path / "two")}, reward=fail)
    assert len(closed) == 2


@pytest.mark.parametrize(
    ("table", "share"),
    [
        ({}, 0.0),
        ({"rollout": {"engine": "vllm"}, "vllm": {"vllm_memory": 0.4}}, 0.4),
        ({"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_memory": 0.4}}, 0.4),
        ({"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_devices": "1"}}, 0.0),
        ({"rollout": {"engine": "vllm_server"}, "vllm": {"vllm_url": URL}}, 0.0),
    ],
)
def test_memory_is_left_for_vllm_where_it_shares_the_device(table, share):
    assert reserved_share(config_from_dict(table)) == share


def test_what_is_reserved_is_not_free(monkeypatch):
    monkeypatch.setattr("grouprl.training.memory.free_memory", lambda device: 5 * 2**30)
    monkeypatch.setattr("grouprl.training.memory.total_memory", lambda device: 10 * 2**30)
    policy = tiny.policy()
    assert fit_micro_batch(policy, sampler_bytes=0).free == 5 * 2**30
    assert fit_micro_batch(policy, sampler_bytes=0, reserved_share=0.3).free == 2 * 2**30
    assert fit_micro_batch(policy, sampler_bytes=0, reserved_share=0.9).free == 0


@pytest.fixture
def server(tmp_path):
    """The URL of what speaks as vLLM's server, and the folder that says what happens to it."""
    model = {"logprobs_mode": "raw_logprobs", "dtype": "torch.float32", "max_model_len": 4096}
    info = {"vllm_config": {"model_config": model, "weight_transfer_config": {"backend": "grouprl"}}}
    (tmp_path / "server_info.json").write_text(json.dumps(info))
    port = free_port()
    stand_in = Path(__file__).parent.parent / "rollout" / "vllm_stand_in.py"
    process = subprocess.Popen([sys.executable, stand_in, str(port), str(tmp_path)])
    url = f"http://127.0.0.1:{port}"
    while not VllmClient(url, timeout_s=5).healthy():
        time.sleep(0.05)
    yield url, tmp_path
    process.kill()
    process.wait()


@pytest.fixture
def run_of_four_completions_a_step(server):
    """Its configuration's file, and its folder."""
    url, folder = server
    tiny.save(folder / "model")
    table = {
        "model": str(folder / "model"),
        "device": "cpu",
        "steps": 3,
        "output_dir": str(folder / "run"),
        "rollout": {"engine": "vllm_server", "prompts_per_step": 4, "group_size": 2, "max_new_tokens": 4},
        "vllm": {"vllm_url": url},
        "evaluation": {"eval_prompts": 0},
    }
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(table))
    return path, folder / "run"


def test_a_server_trains_and_is_left_running(server, run_of_four_completions_a_step):
    path, run = run_of_four_completions_a_step
    assert main(["train", str(path)]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert VllmClient(server[0], timeout_s=5).healthy()
    calls = (server[1] / "calls").read_text().split()
    assert calls.count("/start_weight_update") == calls.count("/reset_prefix_cache") == 3


def test_a_server_that_is_gone_stops_the_run_with_a_checkpoint(
    server, run_of_four_completions_a_step, monkeypatch, capsys
):
    """In the middle of the third step: exit code 1, one line, two steps saved."""
    path, run = run_of_four_completions_a_step
    monkeypatch.setattr(vllm_server, "PAUSES_S", (0.05,))
    (server[1] / "die-10").touch()
    assert main(["train", str(path)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("grouprl: vllm server http://127.0.0.1")
    assert "step 2 is saved: go on with grouprl train --resume" in said
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00002"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp, an adapter"])
def test_one_server_samples_for_all_ranks(strategy, server, run_of_four_completions_a_step):
    """Rank 0 alone speaks with it. Its weights after the last hand-over, for the last evaluation, are the final
    model's, also where no rank has all of them; every completion is in the records, once."""
    path, run = run_of_four_completions_a_step
    reward = server[1] / "reward.py"
    reward.write_text(
        "def odd(completions, completion_ids):\n    return [float(ids[0] % 2) for ids in completion_ids]\n"
    )
    options = [
        "--strategy",
        strategy.split(",")[0],
        "--eval-prompts",
        "2",
        "--lr",
        "0.01",
        "--reward",
        f"{reward}:odd",
    ]
    if "adapter" in strategy:
        options += ["--lora-rank", "2", "--lora-merge"]
    done = launch.torchrun(2, ["train", str(path), *options], cwd=server[1])
    assert done.returncode == 0, done.stderr
    calls = (server[1] / "calls").read_text().split()
    assert calls.count("/init_weight_transfer_engine") == 1
    assert calls.count("/v1/completions") == 3 * 4 + 2 * 2 * 2  # steps; two evaluations, sampled and greedy
    given = [int(line) for line in (server[1] / "weights").read_text().split()]
    assert len(given) == calls.count("/start_weight_update") == 3 + 2
    weights = load_file(run / "model/model.safetensors")
    assert given[-1] == pytest.approx(
        sum(abs(float(w.double().sum())) for w in weights.values()) * 1e6, rel=1e-5
    )
    assert given[-1] != pytest.approx(given[0], rel=1e-5)
    for step in (1, 2, 3):
        rows = pl.read_parquet(run / f"rollouts/step_0000{step}.parquet")
        assert rows["group_id"].value_counts()["count"].to_list() == [2] * 4


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_server_that_is_gone_stops_all_ranks(strategy, server, run_of_four_completions_a_step):
    path, _ = run_of_four_completions_a_step
    (server[1] / "die-10").touch()
    impatient = server[1] / "impatient.py"
    impatient.write_text(
        "import sys\nfrom grouprl.cli.main import main\nfrom grouprl.rollout import vllm_server\n"
        "vllm_server.PAUSES_S = (0.05,)\n"
        f"sys.exit(main(['train', {str(path)!r}, '--strategy', {strategy!r}]))\n"
    )
    done = launch.torchrun_script(2, impatient, cwd=server[1])
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("grouprl: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("grouprl: vllm server http://127.0.0.1")
    assert "step 2 is saved: go on with grouprl train --resume" in lines[0]


def test_a_server_is_not_told_of_torchruns_ranks():
    told = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    told |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "ROLE_WORLD_SIZE": "2",
    }
    kept = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "MY_RANK_FILE": "x"}
    assert without_torchrun(told | kept) == kept
