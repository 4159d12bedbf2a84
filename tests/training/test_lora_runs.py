"""Whole runs that train an adapter: what they leave on disk, resume, merge, reference, sampler, and what is refused."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from runs import StopAfter, timeless
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grouprl.cli.main import main
from grouprl.errors import ConfigError, MissingDependency
from grouprl.policy import load_policy
from grouprl.training import config_from_dict, resume, train, weights
from grouprl.training.memory import fit_micro_batch

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)  # peft's own

LORA = {"lora_rank": 4, "lora_alpha": 8.0}


@pytest.fixture
def adapt(make):
    """Configurations of runs that train an adapter."""

    def config(name="run", **changes):
        return make(name, **{**changes, "lora": {**LORA, **changes.get("lora", {})}})

    return config


def adapter(folder):
    return load_file(folder / "adapter_model.safetensors")


def same_adapter(one, other):
    left, right = adapter(one), adapter(other)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def by_peft(run):
    return peft.AutoPeftModelForCausalLM.from_pretrained(run.model_dir).eval()


def difference(one, other):
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        return (one(input_ids=ids).logits - other(input_ids=ids).logits).abs().max()


def test_a_run_leaves_the_adapter_in_the_form_of_peft(adapt):
    run = train(adapt())
    for folder in (run.model_dir, run.path / "checkpoints/step_00004/model"):
        assert (folder / "adapter_config.json").is_file()
        assert not list(folder.glob("model*.safetensors"))
    assert {name.rsplit(".", 2)[1] for name in adapter(run.model_dir)} == {"lora_A", "lora_B"}
    moments = torch.load(run.path / "checkpoints/step_00004/optimizer.pt", weights_only=True)["state"]
    assert len(moments) == len(adapter(run.model_dir)) == 2 * 14
    base = AutoModelForCausalLM.from_pretrained(run.config.model).eval()
    loaded = by_peft(run)
    assert difference(loaded, base) > 1e-4  # it learned something
    assert difference(load_policy(str(run.model_dir), device="cpu").model, loaded) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": {"beta": 0.1, "mini_batches": 3}},
        {"rollout": {"sampler_dtype": "bfloat16"}},
        {"dtype": "bfloat16", "gradient_checkpointing": True, "objective": {"beta": 0.1}},
    ],
    ids=["", "reference", "bfloat16 sampler", "bfloat16"],
)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(adapt, changes):
    whole = train(adapt("whole", **changes))
    with pytest.raises(KeyboardInterrupt):
        train(adapt("parts", **changes), listener=StopAfter(3))
    parts = resume(Path(adapt("parts")["output_dir"]))
    assert timeless(parts.metrics) == timeless(whole.metrics)
    assert same_adapter(parts.model_dir, whole.model_dir)


def test_the_merged_model_is_the_adapted_one(adapt):
    plain, run = train(adapt("plain")), train(adapt("merged", lora={"lora_merge": True}))
    assert same_adapter(plain.model_dir, run.model_dir / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(run.model_dir).eval()
    assert difference(merged, by_peft(plain)) < 1e-5
    assert not (run.model_dir / "adapter_config.json").exists()


def test_the_reference_is_the_model_that_the_run_started_from(adapt, make):
    """The KL of the first step is 0, and grows as it does with a frozen copy."""
    run = train(adapt(objective={"beta": 0.1, "kl": "k3"}))
    assert run.metrics[0]["kl_ref"] == pytest.approx(0, abs=1e-7)
    assert run.metrics[-1]["kl_ref"] > 1e-6


def test_the_reference_takes_no_memory(adapt, monkeypatch):
    from grouprl.training import run

    seen = []
    original = run.freeze_reference

    def freeze(policy, config):
        reference = original(policy, config)
        seen.append((reference.model is policy.model, reference.base_only))
        return reference

    monkeypatch.setattr(run, "freeze_reference", freeze)
    train(adapt(objective={"beta": 0.1}, steps=1))
    assert seen == [(True, True)]


def test_a_sampler_of_bfloat16_follows_the_adapter(adapt):
    """Rounding alone lies between what was sampled and what is trained, after every update."""
    run = train(adapt(rollout={"sampler_dtype": "bfloat16"}, optimizer={"lr": 1e-2}))
    assert all(abs(m["kl_sampler_trainer"]) < 0.05 for m in run.metrics)
    exact = train(adapt("exact", optimizer={"lr": 1e-2}))
    assert all(abs(m["kl_sampler_trainer"]) < 1e-5 for m in exact.metrics)


def test_a_critic_learns_beside_an_adapter(adapt):
    changes = {"advantage": {"estimator": "gae"}, "critic": {"critic_backbone": "own"}}
    whole = train(adapt("whole", **changes))
    with pytest.raises(KeyboardInterrupt):
        train(adapt("parts", **changes), listener=StopAfter(2))
    parts = resume(Path(adapt("parts")["output_dir"]))
    assert timeless(parts.metrics) == timeless(whole.metrics)
    assert same_adapter(parts.model_dir, whole.model_dir)


def test_eval_takes_a_run_and_its_checkpoint(adapt, capsys):
    run = train(adapt())
    records = []
    for place in (run.path, run.path / "checkpoints/step_00004/model"):
        assert main(["eval", str(place), "--task", "arithmetic", "--prompts", "2", "--json"]) == 0
        records.append(json.loads(capsys.readouterr().out))
    assert records[0]["accuracy"] == records[1]["accuracy"]


def test_a_further_adapter_on_an_adapter_is_refused_and_all_weights_may_go_on(adapt, make):
    run = train(adapt())
    with pytest.raises(ConfigError, match=r"it is an adapter.*merge it first"):
        train(adapt("more", model=str(run.model_dir)))
    assert not Path(adapt("more")["output_dir"]).exists()
    full = train(make("full", model=str(run.model_dir), steps=1))
    assert (full.model_dir / "model.safetensors").is_file()


def test_only_trained_weights_count_in_the_memory_to_come(monkeypatch):
    from grouprl.policy.lora import attach_adapter
    from grouprl.training import memory

    monkeypatch.setattr(memory, "CHUNK_ELEMENTS", 0)
    monkeypatch.setattr(memory, "saved_bytes", lambda policy: (1000, 0))
    monkeypatch.setattr(memory, "MOST", {"cpu": 10**9})
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**7)
    policy = tiny.policy()
    weights = sum(p.numel() for p in policy.model.parameters())
    assert fit_micro_batch(policy, sampler_bytes=0).tokens == (8 * 10**6 - 12 * weights) // 1000
    attach_adapter(policy.model, rank=1, alpha=1.0)
    trained = sum(p.numel() for p in policy.parameters())
    assert trained < weights / 10
    assert fit_micro_batch(policy, sampler_bytes=2).tokens == (
        (8 * 10**6 - 12 * trained - 2 * (weights + trained)) // 1000
    )
    eight = fit_micro_batch(policy, sampler_bytes=0, moments_bytes=2)
    assert eight.tokens == (8 * 10**6 - 6 * trained) // 1000


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"lora_dropout": 0.1}, r"lora_dropout is 0.1, expected 0; with dropout"),
        ({"lora_targets": []}, r"lora_targets is empty"),
        ({"lora_rank": 0, "lora_merge": True}, r"lora_merge with lora_rank 0"),
        ({"lora_rank": 0, "quantize": "nf4"}, r"'nf4' with lora_rank 0"),
        ({"quantize": "nf4", "lora_merge": True}, r"'nf4' with lora_merge"),
        ({"quantize": "nf5"}, r"quantize is 'nf5'"),
        ({"lora_rank": -1}, r"lora_rank is -1"),
        ({"lora_alpha": 0.0}, r"lora_alpha is 0"),
    ],
)
def test_what_cannot_be_is_refused(lora, message):
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"lora": {**LORA, **lora}})


def test_a_rounded_sampler_of_quantised_weights_is_refused():
    with pytest.raises(ConfigError, match="expected 'float32'"):
        config_from_dict({"lora": {**LORA, "quantize": "nf4"}, "rollout": {"sampler_dtype": "bfloat16"}})


def test_a_target_of_no_layer_leaves_no_folder(adapt):
    with pytest.raises(ConfigError, match="'wq' is no linear layer"):
        train(adapt(lora={"lora_targets": ["wq"]}))
    assert not Path(adapt()["output_dir"]).exists()


@pytest.mark.parametrize(
    "changes", [{"lora": {"quantize": "nf4"}}, {"optimizer": {"optimizer_kind": "adamw_8bit"}}]
)
def test_a_missing_package_is_said_before_anything_is_loaded(adapt, changes, monkeypatch):
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="bitsandbytes is not installed; pip install bitsandbytes"):
        train(adapt(**changes))
    assert not Path(adapt()["output_dir"]).exists()


def test_from_the_command_line_that_is_exit_code_2(adapt, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    code = main(["train", "--optimizer-kind", "adamw_8bit", "--output-dir", str(tmp_path / "x")])
    assert code == 2
    assert "pip install bitsandbytes" in capsys.readouterr().err


def test_an_adapter_on_quantised_weights(adapt):
    pytest.importorskip("bitsandbytes")
    changes = {"lora": {"quantize": "nf4"}, "objective": {"beta": 0.1}}
    whole = train(adapt("whole", **changes))
    assert whole.metrics[0]["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert whole.metrics[-1]["kl_ref"] > 0
    assert all(abs(m["kl_sampler_trainer"]) < 1e-5 for m in whole.metrics)  # one policy samples and trains
    with pytest.raises(KeyboardInterrupt):
        train(adapt("parts", **changes), listener=StopAfter(2))
    parts = resume(Path(adapt("parts")["output_dir"]))
    assert timeless(parts.metrics) == timeless(whole.metrics)
    assert same_adapter(parts.model_dir, whole.model_dir)


@pytest.mark.parametrize("rank", [0, 4])
def test_moments_of_8_bits(adapt, rank):
    pytest.importorskip("bitsandbytes")
    changes = {"optimizer": {"optimizer_kind": "adamw_8bit"}, "lora": {"lora_rank": rank}}
    whole = train(adapt("whole", **changes))
    with pytest.raises(KeyboardInterrupt):
        train(adapt("parts", **changes), listener=StopAfter(2))
    parts = resume(Path(adapt("parts")["output_dir"]))
    assert timeless(parts.metrics) == timeless(whole.metrics)
    if not rank:  # bitsandbytes keeps the moments of fewer than 4,096 weights in 32 bits
        saved = torch.load(whole.path / "checkpoints/step_00004/optimizer.pt", weights_only=True)
        kept = [
            x for state in saved["state"].values() for x in state["__bnb_optimizer_quant_state__"].values()
        ]
        assert any(isinstance(x, torch.Tensor) and x.dtype == torch.uint8 for x in kept)
    file = "adapter_model.safetensors" if rank else "model.safetensors"
    one, other = load_file(parts.model_dir / file), load_file(whole.model_dir / file)
    assert all(torch.equal(one[name], other[name]) for name in other)
