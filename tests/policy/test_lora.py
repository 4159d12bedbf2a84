"""Adapters by peft on our layers: against peft on transformers' own, against the equation, and on disk."""

import copy
import json

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

from grouprl.errors import ConfigError, MissingDependency, ModelError
from grouprl.policy import Policy, completion_logprobs, load_policy, lora
from grouprl.training.memory import saved_bytes

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)  # peft's own

GROUP = tiny.group([5, 6, 7, 8], [[9, 10, 11], [12, 13], [9, 14, 15, 16]])
MEMBERS = [(i, GROUP, c) for i, c in enumerate(GROUP.completions)]
RELATIVE = 1e-4


def adapted(family="llama", **options):
    """A tiny policy with an adapter that does something: B is 0 only before training."""
    policy = tiny.policy(family)
    lora.attach_adapter(policy.model, **{"rank": 4, "alpha": 8.0, **options})
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0, 0.2)
    return policy


def by_peft(family, ours, folder):
    """The same model and adapter with transformers' own layers and peft's own reading."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(
        copy.deepcopy(ours.model.config), dtype=torch.float32, attn_implementation="eager"
    )
    plain.load_state_dict(tiny.policy(family).model.state_dict())
    lora.save_adapter(ours.model, folder)
    return peft.PeftModel.from_pretrained(plain.eval(), folder, is_trainable=True)


def plain_logprobs(model):
    """Log-probs of each completion's tokens, a sequence at a time, by the model's own logits."""
    found = []
    for completion in GROUP.completions:
        ids = torch.tensor([[*GROUP.prompt_token_ids, *completion.token_ids]])
        logprobs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        n = len(GROUP.prompt_token_ids)
        found.append(logprobs[n - 1 : -1].gather(-1, ids[0, n:, None])[:, 0])
    return found


def weighted(logprobs):
    """A loss whose weights differ by token, so that no gradient can hide in another."""
    return sum(((torch.arange(len(row)) + 1 + 2 * i) * row).sum() for i, row in enumerate(logprobs))


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2"])
def test_gradients_are_those_of_peft_and_transformers(family, share, checkpointing, tmp_path):
    policy = adapted(family)
    reference = by_peft(family, policy, tmp_path)
    weighted(plain_logprobs(reference)).backward()
    expected = {
        name.removeprefix("base_model.model."): p.grad
        for name, p in reference.named_parameters()
        if p.requires_grad
    }
    if checkpointing:
        policy.checkpoint_layers()
    share = share and policy.can_share(8)
    batch = [MEMBERS] if share else [[m] for m in MEMBERS]
    logprobs, _ = completion_logprobs(policy, policy.rows(batch, share_prefix=share))
    weighted(row[: len(c.token_ids)] for row, c in zip(logprobs, GROUP.completions)).backward()
    found = {name: p.grad for name, p in policy.model.named_parameters() if p.requires_grad}
    assert found.keys() == expected.keys()
    assert len(found) > 0
    for name, gradient in expected.items():
        assert gradient.norm() > 0
        assert (found[name] - gradient).norm() <= RELATIVE * gradient.norm(), name
    assert all(p.grad is None for p in policy.model.parameters() if not p.requires_grad)


def test_the_families_that_share_a_prompt_still_do():
    """So that the test above means what it says."""
    assert all(adapted(family).can_share(8) for family in ("llama", "qwen3", "gemma3_text", "phi3", "gpt2"))


def logits(policy):
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        return policy.logits(policy.hidden_states(ids, position_ids=torch.arange(17)[None]))


@pytest.mark.parametrize("rslora", [False, True])
def test_a_layer_is_the_equation(rslora):
    layer = adapted(rank=9, alpha=6.0, rslora=rslora).model.model.layers[0].self_attn.q_proj
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    W, A, B = (
        w.detach().double()
        for w in (layer.base_layer.weight, layer.lora_A["default"].weight, layer.lora_B["default"].weight)
    )
    scale = 6.0 / (3.0 if rslora else 9.0)
    expected = x.double() @ W.T + scale * (x.double() @ A.T @ B.T)
    torch.testing.assert_close(layer(x).detach().double(), expected, rtol=1e-5, atol=1e-5)
    assert type(layer.base_layer) is type(layer.lora_A["default"])


def test_a_new_adapter_changes_nothing():
    policy = tiny.policy()
    before = logits(policy)
    lora.attach_adapter(policy.model, rank=4, alpha=8.0)
    torch.testing.assert_close(logits(policy), before, rtol=0, atol=0)


def test_a_new_adapter_is_decided_by_its_seed_and_draws_from_no_other():
    made = []
    for seed in (0, 0, 1):
        policy = tiny.policy()
        state = torch.random.get_rng_state()
        lora.attach_adapter(policy.model, rank=4, alpha=8.0, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), state)
        made.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2", "mistral"])
def test_without_its_adapter_it_is_the_base_model_to_the_bit(family):
    base, policy = logits(tiny.policy(family)), adapted(family)
    assert not torch.equal(logits(policy), base)
    assert torch.equal(logits(policy.without_adapter()), base)
    assert not torch.equal(logits(policy), base)


def test_the_reference_between_forward_and_backward_disturbs_no_gradient():
    def gradients(between):
        policy = adapted()
        loss, _ = completion_logprobs(policy, policy.rows([MEMBERS], share_prefix=True))
        if between:
            logits(policy.without_adapter())
        loss.sum().backward()
        return [p.grad for p in policy.parameters()]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(found, expected)


def test_an_error_in_the_reference_leaves_the_adapter_on():
    policy = adapted()
    before = logits(policy)
    with pytest.raises(KeyError), lora.adapter_off(policy.model):
        raise KeyError
    assert torch.equal(logits(policy), before)
    assert len(policy.parameters()) == 2 * 14


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "phi3", "gpt2"])
def test_a_merged_copy_is_the_adapted_model(family):
    policy = adapted(family)
    expected = logits(policy)
    merged = policy.copy(torch.float32)
    assert not merged.adapted
    assert (logits(merged) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert [n for n, _ in merged.model.named_parameters()] == [
        n for n, _ in tiny.policy(family).model.named_parameters()
    ]
    assert torch.equal(logits(policy), expected)  # the copy is one


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_sampler_of_bfloat16_takes_the_sum_rounded_once(family):
    policy = adapted(family)
    sampler = tiny.policy(family).copy(torch.bfloat16)
    sampler.take_weights(policy)
    exact = policy.copy(torch.float32)
    for mine, sums in zip(sampler.model.parameters(), exact.model.parameters(), strict=True):
        assert torch.equal(mine, sums.to(torch.bfloat16))


def test_peft_alone_reads_what_was_saved(tmp_path):
    policy = adapted(base="some/model")
    policy.save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not (tmp_path / "model.safetensors").exists()
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "some/model"
    assert saved["peft_type"] == "LORA"
    assert saved["inference_mode"] is True
    read = by_peft("llama", policy, tmp_path / "again")
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(read(input_ids=ids).logits, logits(policy), rtol=1e-5, atol=1e-5)


def test_transformers_alone_reads_what_was_saved(tmp_path):
    """Its own loading of adapters, which asks for a peft of its own choice, takes the folder as well."""
    tiny.save(tmp_path / "base")
    ours = load_policy(str(tmp_path / "base"), device="cpu")
    lora.attach_adapter(ours.model, rank=4, alpha=8.0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0, 0.2)
    ours.save(tmp_path / "adapter")
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        expected = ours.model(input_ids=ids, use_cache=False).logits
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        assert (base(input_ids=ids).logits - expected).norm() > 0.1 * expected.norm()
        for theirs in (base, AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")):
            if theirs is base:
                base.load_adapter(str(tmp_path / "adapter"))
            assert (theirs(input_ids=ids).logits - expected).norm() <= 1e-4 * expected.norm()


def test_a_folder_with_an_adapter_loads_as_a_model(tmp_path):
    tiny.save(tmp_path / "base")
    base = load_policy(str(tmp_path / "base"), device="cpu")
    lora.attach_adapter(base.model, rank=4, alpha=8.0)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.normal_(0, 0.2)
    base.save(tmp_path / "adapter")
    loaded = load_policy(str(tmp_path / "adapter"), device="cpu")
    assert not loaded.adapted
    assert loaded.prefix_obstacle is None
    assert (logits(loaded) - logits(base)).abs().max() <= 1e-5 * logits(base).abs().max()
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_an_adapter_whose_base_is_gone_says_so(tmp_path):
    adapted(base=str(tmp_path / "gone")).save(tmp_path / "adapter")
    with pytest.raises(
        ModelError, match=r"adapter': its base model '.*gone': there is no such folder; .*adapter_config.json"
    ):
        load_policy(str(tmp_path / "adapter"), device="cpu")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_a_damaged_adapter_config_is_one_line(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"adapter_config.json (is damaged|names no base model)"):
        load_policy(str(tmp_path), device="cpu")


def test_an_adapter_of_another_rank_is_refused(tmp_path):
    adapted(rank=2).save(tmp_path)
    with pytest.raises(ModelError, match="give the base model, rank and lora_targets"):
        lora.load_adapter(adapted(rank=4).model, tmp_path)


def test_a_damaged_adapter_is_refused(tmp_path):
    policy = adapted()
    policy.save(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        lora.load_adapter(policy.model, tmp_path)
    with pytest.raises(ModelError, match="cannot be merged into its base model"):
        lora.merge_saved_adapter(tiny.policy().model, tmp_path)


@pytest.mark.parametrize(
    ("targets", "layers"), [(["q_proj", "v_proj"], 4), (["self_attn.o_proj"], 2), (["all-linear"], 14)]
)
def test_targets(targets, layers):
    assert len(adapted(targets=targets).parameters()) == 2 * layers


@pytest.mark.parametrize(
    ("target", "why"),
    [("lm_head", "is the LM head"), ("wq", "is no linear layer"), ("proj", "is no linear layer")],
)
def test_a_target_that_cannot_be_is_refused(target, why):
    with pytest.raises(ConfigError, match=rf"'{target}' {why}.*down_proj, gate_proj, .*q_proj"):
        adapted(targets=["q_proj", target])


def test_without_peft_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'grouprl\[lora\]'"):
        adapted()


def test_a_frozen_weight_leaves_no_input_behind():
    """A layer's input is kept for its weight's gradient alone."""
    everything, _ = saved_bytes(tiny.policy())
    attention_only, _ = saved_bytes(adapted(targets=["q_proj"]))
    assert attention_only < everything


def test_a_plain_policy_has_no_adapter():
    policy = tiny.policy()
    assert not policy.adapted
    assert isinstance(policy, Policy)
    assert torch.equal(logits(policy.without_adapter()), logits(policy))
