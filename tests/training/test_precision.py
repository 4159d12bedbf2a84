"""bfloat16, gradient checkpointing and the automatic micro-batch: what they change, and what they must not."""

import math

import pytest
import tiny
import torch
from updates import gradient, reference_gradient, relative_error

from grouprl.errors import ModelError
from grouprl.policy import load_policy
from grouprl.training import resume, train
from grouprl.training.memory import FEWEST, MOST, fit_micro_batch, saved_bytes

BF16 = {"dtype": "bfloat16", "rollout": {"sampler_dtype": "bfloat16"}}


def test_bfloat16_training_points_where_float32_does():
    """Eight bits of mantissa: a gradient within a few percent, in float32, from weights in float32."""
    policy = tiny.policy()
    exact, _ = gradient(policy)
    policy.dtype = torch.bfloat16
    rounded, _ = gradient(policy)
    assert all(g.dtype == torch.float32 for g in rounded)
    assert 0 < relative_error(rounded, exact) < 0.1


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "lfm2"])
def test_checkpointed_layers_give_the_same_gradient(family):
    policy = tiny.policy(family)
    policy.checkpoint_layers()
    found, _ = gradient(policy)
    assert relative_error(found, reference_gradient(policy)) <= 1e-4


def test_checkpointed_layers_keep_less():
    policy = tiny.policy(num_hidden_layers=6)
    before, _ = saved_bytes(policy)
    policy.checkpoint_layers()
    assert saved_bytes(policy)[0] < before / 4
    policy.in_dtype(torch.float32)  # as a run makes its sampler
    assert saved_bytes(policy)[0] < before / 4


def test_a_model_without_checkpointing_says_so():
    policy = tiny.policy()
    type(policy.model).supports_gradient_checkpointing, kept = (
        False,
        type(policy.model).supports_gradient_checkpointing,
    )
    try:
        with pytest.raises(ModelError, match="does not support gradient checkpointing"):
            policy.checkpoint_layers()
    finally:
        type(policy.model).supports_gradient_checkpointing = kept


def test_saved_bytes_are_those_of_the_tensors_kept():
    """By hand, 2 layers 32 wide, MLP 48, 4 heads and 2 for keys of 8, float32. Of each layer and token: the stream
    before each norm, its normalised form and what the norm gives (6 · 32), rsqrt twice (2), queries 32, keys and
    values 16 each, their attention 32 with 4 normalisers, gate and up (2 · 48); besides the last norm's input,
    normalised form, rsqrt and result. The rotation's cosines and sines are shared."""
    policy = tiny.policy()
    floats = saved_bytes(policy)[0] / 4
    layer = 6 * 32 + 2 + 32 + 2 * 16 + 32 + 4 + 2 * 48
    assert 2 * layer < floats < 2 * layer + 6 * 32 + 40


def test_autocasts_copies_of_the_weights_are_no_tokens():
    """Each layer's products run on copies in bfloat16, 2 bytes a weight, which live until backward: 2 layers 32 wide
    with queries and output 32 × 32, keys and values 16 × 32, MLP 48 × 32 three times. A token keeps about half as
    much as in float32, however many share the copies."""
    policy = tiny.policy()
    full, _ = saved_bytes(policy)
    each, once = saved_bytes(policy.in_dtype(torch.bfloat16))
    copies = 2 * 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    assert copies <= once < copies + 64 * 200
    assert full / 3 < each < full


def test_the_micro_batch_fits_what_is_free(monkeypatch):
    policy = tiny.policy()
    each, once = saved_bytes(policy)
    monkeypatch.setattr("grouprl.training.memory.CHUNK_ELEMENTS", 0)
    weights = sum(p.numel() for p in policy.model.parameters())

    def fitted(free):
        monkeypatch.setattr("grouprl.training.memory.free_memory", lambda device: free)
        return fit_micro_batch(policy, sampler_bytes=2).tokens

    assert fitted(10**12) == MOST["cpu"]
    assert fitted(0) == FEWEST
    needed = 14 * weights + once + 200 * each
    assert fitted(math.ceil(needed / 0.8)) == 200


def test_a_critic_of_its_own_takes_its_memory(monkeypatch):
    """Its weights (4 bytes), gradient (4) and moments (8) besides the policy's gradient and moments; in a micro-batch
    a token is kept by both models. Its LM head gets no gradient, and is a copy all the same where it is not tied."""
    for tied in (True, False):
        policy = tiny.policy(tie_word_embeddings=tied)
        each, once = saved_bytes(policy)
        monkeypatch.setattr("grouprl.training.memory.CHUNK_ELEMENTS", 0)
        weights = sum(p.numel() for p in policy.model.parameters())
        backbone = sum(p.numel() for p in policy.model.base_model.parameters())
        assert (backbone == weights) is tied
        needed = 12 * weights + 4 * weights + 12 * backbone + 2 * once + 150 * 2 * each
        free = math.ceil(needed / 0.8)
        monkeypatch.setattr("grouprl.training.memory.free_memory", lambda device, free=free: free)
        assert fit_micro_batch(policy, sampler_bytes=0, own_critic=True).tokens == 150
        assert fit_micro_batch(policy, sampler_bytes=0).tokens > 300


def test_a_run_with_a_critic_of_its_own_counts_it(make, monkeypatch):
    from grouprl.training import run as module

    told = []

    def fitted(policy, **keywords):
        told.append(keywords["own_critic"])
        return fit_micro_batch(policy, **keywords)

    monkeypatch.setattr(module, "fit_micro_batch", fitted)
    own = {"critic_backbone": "own"}
    for name, estimator in (("ppo", "gae"), ("grpo", "grpo")):  # without a critic the setting is idle
        train(make(name, steps=1, micro_batch_tokens=0, advantage={"estimator": estimator}, critic=own))
    assert told == [True, False]


def test_a_run_in_bfloat16_resumes_to_the_bit_and_saves_float32(make):
    whole = train(make("whole", steps=4, checkpoint={"checkpoint_every": 2}, **BF16))
    train(make("half", steps=2, checkpoint={"checkpoint_every": 2}, **BF16))
    again = resume(make("half")["output_dir"], overrides={"steps": 4})
    kept = ("loss", "reward_mean", "grad_norm", "kl_sampler_trainer", "sampler_weight_mean")
    assert [{k: m[k] for k in kept} for m in again.metrics] == [
        {k: m[k] for k in kept} for m in whole.metrics
    ]
    model = load_policy(str(whole.path / "model"))
    assert all(p.dtype == torch.float32 for p in model.model.parameters())
    for a, b in zip(model.parameters(), load_policy(str(again.path / "model")).parameters()):
        assert torch.equal(a, b)


def test_sampler_and_trainer_differ_in_bfloat16_and_it_is_measured(make):
    exact = train(make("exact", steps=1))
    rounded = train(make("rounded", steps=1, **BF16))
    assert exact.metrics[0]["kl_sampler_trainer"] == pytest.approx(0.0, abs=1e-8)
    assert exact.metrics[0]["sampler_weight_mean"] is None
    assert 1e-7 < rounded.metrics[0]["kl_sampler_trainer"] < 0.1
    assert rounded.metrics[0]["sampler_weight_mean"] == pytest.approx(1.0, abs=0.1)


def test_the_sampler_follows_the_policy():
    policy = tiny.policy()
    sampler = policy.copy(torch.bfloat16)
    assert {p.dtype for p in sampler.model.parameters()} == {torch.bfloat16}
    assert sampler.head.weight.dtype == torch.bfloat16
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    sampler.take_weights(policy)
    for a, b in zip(sampler.model.parameters(), policy.model.parameters()):
        assert torch.equal(a, b.to(torch.bfloat16))


def test_gradient_checkpointing_does_not_change_a_run(make):
    plain, kept = (
        train(make("plain", steps=2)),
        train(make("kept", steps=2, gradient_checkpointing=True)),
    )
    for a, b in zip(plain.metrics, kept.metrics):
        assert a["reward_mean"] == b["reward_mean"]
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
