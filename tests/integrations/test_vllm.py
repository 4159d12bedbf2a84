"""vLLM as rollout engine, for real: in the environment of `make integrations` (environments.toml, vllm).

Both engines sample from a tiny random Llama in float32. Its weights are far from uniform, so that two tokens are seldom
as likely as each other; where they are, within `TIE` nats by the local engine, another token may be taken, and what
follows is another text.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launch
import pytest
import tiny
import torch

pytest.importorskip("vllm")

import tomli_w

from grouprl.cli.main import main
from grouprl.errors import RolloutError
from grouprl.policy.lora import attach_adapter
from grouprl.records import RunFolder
from grouprl.rollout import LocalEngine, Sampling
from grouprl.rollout.vllm_engine import VllmEngine
from grouprl.rollout.vllm_http import VllmClient
from grouprl.rollout.vllm_options import VllmOptions
from grouprl.rollout.vllm_process import SERVE
from grouprl.rollout.vllm_server import VllmServerEngine
from grouprl.rollout.vllm_weights import free_port
from grouprl.training import train
from grouprl.types import Prompt

pytestmark = pytest.mark.filterwarnings("default", "error:::grouprl")
"""vLLM's own warnings are not ours."""
ROOT = Path(__file__).parent.parent.parent
EXTRA = ("--enforce-eager", "--kv-cache-memory-bytes=268435456")
"""Without compilation, and with a small cache."""
LONGEST = 160
FEW = f"--max-num-batched-tokens={LONGEST}"
"""Less than the prompts of one batch have: vLLM would compute one of them in pieces."""
TIE = 1e-4
"""Nats between the two likeliest tokens, within which float32 in another order may turn them round."""
AGREE = 2e-4
"""Nats between log-probs of the two engines: float32 kernels with logits of a few tens."""


@pytest.fixture(scope="module", autouse=True)
def quiet_environment():
    """vLLM takes hold of the process: `torch.set_num_threads`, and variables that it reads."""
    kept = dict(os.environ), torch.set_num_threads
    yield
    os.environ.clear()
    os.environ.update(kept[0])
    torch.set_num_threads = kept[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny.served(folder)
    return folder


@pytest.fixture(scope="module")
def engines(model, tmp_path_factory):
    """Both, with "processed" and "raw" log-probs: started once, for they take their time."""
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    policy = tiny.policy(**SHAPE)
    within = VllmEngine(policy, options(model, "processed_logprobs"))
    behind = VllmServerEngine(policy, options(model, "raw_logprobs"), log=log, timeout_s=600)
    yield {"within": within, "behind": behind}
    within.close()
    behind.close()


SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}


def options(model, mode, dtype="float32"):
    return VllmOptions(str(model), dtype, mode, LONGEST, cpu=True, extra=(*EXTRA, FEW))


@pytest.fixture
def policy():
    return tiny.policy(**SHAPE)


@pytest.fixture
def prompts(policy):
    texts = [f"prompt {i}, long enough to fill a block of the cache, or so it should be" for i in range(4)]
    return policy.encode_prompts([Prompt(f"p{i}", t) for i, t in enumerate(texts)], max_new_tokens=64)


def changed(policy, seed=1):
    """The same policy with other weights, by more than rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return policy


def greedy(engine, prompts, tokens=24):
    groups = engine.generate(
        prompts, group_size=1, sampling=Sampling(temperature=0.0, max_new_tokens=tokens), seed=0, stream="s"
    )
    return [group.completions[0] for group in groups]


def assert_same_but_for_ties(policy, prompts, theirs, ours):
    """Token for token; where they part, the local engine's two likeliest tokens lie within `TIE`."""
    for prompt, a, b in zip(prompts, theirs, ours, strict=True):
        same = next((t for t, (x, y) in enumerate(zip(a.token_ids, b.token_ids)) if x != y), None)
        shared = len(b.token_ids) if same is None else same
        assert a.logprobs[:shared] == pytest.approx(b.logprobs[:shared], abs=AGREE)
        if same is None:
            assert a.token_ids == b.token_ids
            assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
        else:
            assert margin(policy, [*prompt.token_ids, *b.token_ids[:same]]) < TIE


def logprobs_of(policy, tokens, temperature=1.0):
    """Of the plain model, in float64: after each token, over the vocabulary."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0].double()
    return (logits / temperature).log_softmax(-1)


def margin(policy, tokens):
    first, second = logprobs_of(policy, tokens)[-1].topk(2).values.tolist()
    return first - second


@pytest.mark.parametrize("which", ["within", "behind"])
def test_greedy_completions_are_the_local_engines_before_and_after_an_update(engines, policy, prompts, which):
    engine = engines[which]
    engine.take_weights(policy)
    before = greedy(engine, prompts)
    assert_same_but_for_ties(policy, prompts, before, greedy(LocalEngine(policy), prompts))
    engine.take_weights(changed(policy))
    after = greedy(engine, prompts)
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert_same_but_for_ties(policy, prompts, after, greedy(LocalEngine(policy), prompts))


@pytest.mark.parametrize("which", ["within", "behind"])
def test_an_adapter_is_handed_over_added_to_the_weights(engines, policy, prompts, which):
    engine = engines[which]
    engine.take_weights(policy)
    base = greedy(engine, prompts)
    attach_adapter(policy.model, rank=4, alpha=8.0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(3))
    engine.take_weights(policy)
    after = greedy(engine, prompts)
    assert [c.token_ids for c in after] != [c.token_ids for c in base]
    assert_same_but_for_ties(policy, prompts, after, greedy(LocalEngine(policy), prompts))


@pytest.mark.parametrize(
    ("which", "sampling"),
    [
        ("within", Sampling(temperature=0.7, max_new_tokens=16)),
        ("within", Sampling(temperature=1.3, max_new_tokens=16)),
        ("behind", Sampling(temperature=1.0, max_new_tokens=16)),
        ("behind", Sampling(temperature=1.0, top_p=0.8, top_k=20, max_new_tokens=16)),
    ],
)
def test_logprobs_are_of_the_temperature_over_the_full_vocabulary(engines, policy, prompts, which, sampling):
    engine = engines[which]
    engine.take_weights(policy)
    for group in engine.generate(prompts, group_size=4, sampling=sampling, seed=0, stream="train/1"):
        assert len({c.token_ids for c in group.completions}) > 1
        for one in group.completions:
            tokens = [*group.prompt_token_ids, *one.token_ids]
            expected = logprobs_of(policy, tokens, sampling.temperature)[
                len(group.prompt_token_ids) - 1 : -1
            ].gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
            assert one.logprobs == pytest.approx(expected.tolist(), abs=AGREE)


@pytest.mark.parametrize("which", ["within", "behind"])
def test_a_completion_does_not_depend_on_who_else_is_sampled_for(engines, policy, prompts, which):
    """The seeds are its own. (In float32, on this tiny model, rounding turns no token round.)"""
    engine = engines[which]
    engine.take_weights(policy)
    asked = {
        "group_size": 4,
        "sampling": Sampling(temperature=1.0, max_new_tokens=12),
        "seed": 5,
        "stream": "train/3",
    }
    together = engine.generate(prompts, **asked)
    assert engine.generate(prompts[2:3], earlier=prompts[:2], **asked) == [together[2]]
    fewer = engine.generate(prompts[2:3], earlier=prompts[:2], **{**asked, "group_size": 2})
    assert fewer[0].completions == together[2].completions[:2]
    other = engine.generate(prompts, **{**asked, "stream": "train/4"})
    assert [g.completions for g in other] != [g.completions for g in together]


@pytest.mark.parametrize("which", ["within", "behind"])
def test_stop_strings_and_end_tokens(engines, policy, prompts, which):
    """As types.Completion says: the token that completes a stop string is kept, the text is cut before it."""
    engine = engines[which]
    engine.take_weights(policy)
    groups = engine.generate(
        prompts,
        group_size=16,
        sampling=Sampling(temperature=1.0, max_new_tokens=48, stop=("a", "7")),
        seed=0,
        stream="s",
    )
    endings = set()
    for one in (c for g in groups for c in g.completions):
        whole = policy.tokenizer.decode(list(one.token_ids), skip_special_tokens=True)
        found = min((at for s in ("a", "7") if (at := whole.find(s)) >= 0), default=None)
        assert one.text == whole[:found]
        assert 1 not in one.token_ids[:-1]
        if one.finish_reason == "length":
            assert found is None
            assert len(one.token_ids) == 48
            endings.add("length")
        elif found is not None:
            assert whole[:-1].find("a") == whole[:-1].find("7") == -1
            endings.add("string")
        else:
            assert one.token_ids[-1] == 1
            endings.add("token")
    assert {"string", "token"} <= endings


def test_a_group_computes_its_prompt_once(engines, policy, prompts):
    """vLLM tells how many of a request's prompt tokens it found in its cache: two blocks of 32 each."""
    llm = engines["within"]._llm
    engines["within"].take_weights(policy)
    from vllm import SamplingParams

    (out,) = llm.generate(
        [{"prompt_token_ids": list(prompts[0].token_ids)}],
        SamplingParams(n=4, max_tokens=2, seed=1),
        use_tqdm=False,
    )
    assert len(prompts[0].token_ids) > 64
    assert out.num_cached_tokens == 64


def test_the_cache_is_dropped_with_the_weights(engines, policy, prompts):
    llm = engines["within"]._llm
    engines["within"].take_weights(policy)
    from vllm import SamplingParams

    def cached():
        asked = [{"prompt_token_ids": list(prompts[0].token_ids)}]
        (out,) = llm.generate(asked, SamplingParams(max_tokens=1), use_tqdm=False)
        return out.num_cached_tokens

    assert (cached(), cached()) == (0, 64)
    engines["within"].take_weights(policy)
    assert cached() == 0


def test_a_server_that_dies_in_a_batch_is_started_again_with_the_weights_of_now(
    engines, policy, prompts, monkeypatch
):
    engine = engines["behind"]
    engine.take_weights(changed(policy))
    asked = {
        "group_size": 4,
        "sampling": Sampling(temperature=1.0, max_new_tokens=64),
        "seed": 0,
        "stream": "s",
    }
    undisturbed = engine.generate(prompts, **asked)
    first = engine._process
    complete, killed = engine._client.complete, []

    def complete_then_kill(request):
        if not killed:
            killed.append(True)
            os.killpg(os.getpgid(server_pid(first)), signal.SIGKILL)
        return complete(request)

    monkeypatch.setattr(engine._client, "complete", complete_then_kill)
    assert engine.generate(prompts, **asked) == undisturbed
    assert engine._process is not first
    assert not first.alive


def server_pid(process):
    """Of the program that the guard runs."""
    guard = process._process.pid
    (child,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    return int(child)


def test_a_model_that_is_not_there(policy, tmp_path):
    with pytest.raises(RolloutError, match=r"it ended after .*its log is"):
        VllmServerEngine(policy, options(tmp_path / "none", "raw_logprobs"), log=tmp_path / "vllm.log")


def test_options_that_vllm_does_not_know(policy, model, tmp_path):
    with pytest.raises(RolloutError, match="correct vllm_args"):
        VllmEngine(
            policy,
            VllmOptions(str(model), "float32", "raw_logprobs", LONGEST, extra=("--no-such-option",)),
        )


def even(completions, **_):
    """A reward with spread on any text."""
    return [float(len(text) % 2) for text in completions]


@pytest.mark.parametrize(
    ("engine", "max_staleness"), [("vllm", 0), ("vllm", 1), ("vllm_server", 0), ("vllm_server", 1)]
)
def test_two_steps_of_training(model, tmp_path, engine, max_staleness):
    """The second step's completions come of the first one's update, and the trainer's log-probs are the sampler's; with
    max_staleness they are drawn beside it, by weights one update old."""
    run = train(
        {
            "model": str(model),
            "steps": 2,
            "device": "cpu",
            "output_dir": str(tmp_path / "run"),
            "rollout": {
                "engine": engine,
                "prompts_per_step": 4,
                "group_size": 4,
                "max_new_tokens": 8,
                "max_staleness": max_staleness,
            },
            "vllm": {"vllm_args": list(EXTRA)},
            "optimizer": {"lr": 0.01},
            "evaluation": {"eval_prompts": 2, "eval_samples": 2},
        },
        reward=even,
    )
    for metrics in run.metrics:
        assert metrics["groups_with_advantage_share"] > 0
        assert metrics["grad_norm"] > 0
        fresh = not max_staleness or metrics["step"] == 1
        assert (metrics["sampler_weight_mean"] == pytest.approx(1.0, abs=1e-3)) == fresh
    assert [e["step"] for e in run.evaluations] == [0, 2]
    assert (run.path / "vllm.log").exists() == (engine == "vllm_server")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_steps_of_training_on_two_ranks(model, tmp_path, strategy):
    """One server for both, started by rank 0 without torchrun's variables; also of weights that no rank has whole."""
    (tmp_path / "reward.py").write_text(
        "def even(completions):\n    return [float(len(text) % 2) for text in completions]\n"
    )
    table = {
        "model": str(model),
        "steps": 2,
        "device": "cpu",
        "reward": ["reward.py:even"],
        "rollout": {"engine": "vllm_server", "prompts_per_step": 4, "group_size": 4, "max_new_tokens": 8},
        "vllm": {"vllm_args": list(EXTRA)},
        "optimizer": {"lr": 0.01},
        "evaluation": {"eval_prompts": 2, "eval_samples": 2},
        "distributed": {"strategy": strategy},
    }
    (tmp_path / "config.toml").write_text(tomli_w.dumps(table))
    done = launch.torchrun(2, ["train", "config.toml", "--output-dir", "run"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = RunFolder(tmp_path / "run").metrics()
    assert [m["step"] for m in metrics] == [1, 2]
    for line in metrics:
        assert line["groups_with_advantage_share"] > 0
        assert line["sampler_weight_mean"] == pytest.approx(1.0, abs=1e-3)
    assert [e["step"] for e in RunFolder(tmp_path / "run").evaluations()] == [0, 2]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for the trainer and one for vLLM")
@pytest.mark.parametrize("transfer", ["files", "nccl"])
def test_two_steps_of_training_on_gpus(model, tmp_path, transfer):
    """A server on a GPU of its own, in float32, so that the two sides' log-probs lie near each other."""
    run = train(
        {
            "model": str(model),
            "steps": 2,
            "device": "cuda:0",
            "output_dir": str(tmp_path / "run"),
            "rollout": {
                "engine": "vllm_server",
                "prompts_per_step": 4,
                "group_size": 4,
                "max_new_tokens": 8,
            },
            "vllm": {"vllm_args": ["--enforce-eager"], "vllm_devices": "1", "vllm_transfer": transfer},
            "optimizer": {"lr": 0.01},
            "evaluation": {"eval_prompts": 0},
        },
        reward=even,
    )
    for metrics in run.metrics:
        assert metrics["sampler_weight_mean"] == pytest.approx(1.0, abs=1e-2)


def test_a_server_that_is_gone_for_good_stops_the_run_with_a_checkpoint(model, tmp_path, capsys):
    """Given by URL, and killed in the middle of the run: exit code 1, one line, the last whole step saved."""
    config = {
        "model": str(model),
        "steps": 200,
        "device": "cpu",
        "rollout": {"engine": "vllm_server", "prompts_per_step": 2, "group_size": 2, "max_new_tokens": 8},
        "evaluation": {"eval_prompts": 0},
    }
    port = free_port()
    words = VllmOptions(str(model), "float32", "raw_logprobs", LONGEST, cpu=True, extra=EXTRA).words()
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVE,
            "serve",
            str(model),
            "--host=127.0.0.1",
            f"--port={port}",
            *words,
        ],
        env=os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        start_new_session=True,
    )
    run = tmp_path / "run"
    try:
        client = VllmClient(f"http://127.0.0.1:{port}", timeout_s=60)
        while not client.healthy():
            assert server.poll() is None
            time.sleep(0.5)
        path = tmp_path / "config.toml"
        config["vllm"] = {"vllm_url": f"http://127.0.0.1:{port}"}
        path.write_text(tomli_w.dumps(config))
        program = [sys.executable, "-m", "grouprl.cli.main", "train", str(path), "--output-dir", str(run)]
        training = subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        metrics = run / "metrics.jsonl"
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
            assert training.poll() is None, training.stderr.read()
            time.sleep(0.1)
        os.killpg(server.pid, signal.SIGKILL)
        _, said = training.communicate(timeout=240)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert training.returncode == 1
    assert "Traceback" not in said
    assert "no answer that can be used" in said
    assert "is saved: go on with grouprl train --resume" in said
    steps = len(metrics.read_text().splitlines())
    assert [p.name for p in (run / "checkpoints").iterdir()] == [f"step_{steps:05d}"]


def test_the_example(model, capsys):
    """examples/vllm_loop.py: two steps of a plain loop, and the engine's weights are the model's."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import vllm_loop
    finally:
        sys.path.pop(0)
    loaded, tokenizer, engine = vllm_loop.load(
        str(model), dtype=torch.float32, enforce_eager=True, kv_cache_memory_bytes=2**28, max_model_len=128
    )
    history = vllm_loop.train(
        loaded,
        tokenizer,
        engine,
        [("2 + 3 =", "5"), ("1 + 1 =", "2")],
        steps=2,
        prompts_per_step=2,
        group_size=4,
        max_new_tokens=8,
        lr=1e-2,
        reward=lambda text, answer: float(len(text) % 2),
    )
    assert len(history) == 2
    ids = tokenizer.encode("2 + 3 =", add_special_tokens=False)
    ((_, tokens, logprobs), *_) = vllm_loop.sample(engine, [ids], 1, 8, seed=0)
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert logprobs == pytest.approx(expected.tolist(), abs=AGREE)


def test_nothing_of_the_command_line_is_needed(capsys):
    assert main(["doctor"]) == 0
    assert "vllm" in capsys.readouterr().out


def test_the_recording_is_of_this_version():
    recorded = json.loads((ROOT / "tests/rollout/recorded/vllm.json").read_text(encoding="utf-8"))
    import vllm

    assert recorded["version"]["version"].partition("+")[0] == vllm.__version__.partition("+")[0]
