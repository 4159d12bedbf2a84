"""Adapters on our layers: what a gated MLP with one keeps, when it is peft's own, and the packed sum W + s B A."""

import pytest
import tiny
import torch
from torch import nn

from grouprl.policy import completion_logprobs, layers, lora, matmul
from grouprl.rollout import Sampling, local
from grouprl.types import Prompt

pytest.importorskip("peft")


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def onednn(request, monkeypatch):
    """Both products, where the machine's torch has oneDNN."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch without oneDNN")
    for place in (layers, matmul):
        monkeypatch.setattr(place, "onednn_is_faster", lambda: request.param)
    return request.param


def adapted(**options):
    """alpha / rank = 8 / 3, so that the scaling is no power of two."""
    policy = tiny.policy(**options)
    lora.attach_adapter(policy.model, rank=3, alpha=8.0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0, 0.2)
    return policy


def gated_mlp(**options):
    return adapted(**options).model.model.layers[0].mlp


X = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(2))


def gradients(mlp, forward):
    x = X.clone().requires_grad_()
    mlp.zero_grad()
    out = forward(x)
    (out * torch.arange(out.numel()).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in mlp.parameters() if p.requires_grad)]


@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_mlp_with_an_adapter_is_its_equation(onednn, bias):
    """y = W v + b + s B A v with v = silu(gate) · up, differentiated by torch in float64."""
    mlp = gated_mlp(mlp_bias=bias)
    found = gradients(mlp, mlp)
    mlp.double()

    def equation(x):
        def linear(layer, v):
            out = v @ layer.base_layer.weight.T + (layer.base_layer.bias if bias else 0)
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            return out + 8 / 3 * (v @ a.T) @ b.T

        gated = nn.functional.silu(linear(mlp.gate_proj, x.double())) * linear(mlp.up_proj, x.double())
        return linear(mlp.down_proj, gated)

    expected = gradients(mlp, equation)
    assert len(found) == len(expected) == 2 + 3 * 2
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def kept(forward):
    """Floats kept for backward, parameters not counted, by storage."""
    sizes = {}

    def note(x):
        if not isinstance(x, nn.Parameter):
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // 4
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = forward(X)
    return sum(sizes.values()), out


def test_it_keeps_gate_and_up_and_not_what_follows_from_them():
    """Of 7 tokens: x (32), gate and up (48 each), and A's product (3) in each of the three adapters. peft's own keeps
    silu(gate) and v besides, 48 each."""
    mlp = gated_mlp()
    ours, out = kept(mlp)
    family = type(mlp).__mro__[2]  # the model's own class, below ours
    theirs, expected = kept(lambda x: family.forward(mlp, x))
    torch.testing.assert_close(out, expected)
    assert ours == 7 * (32 + 2 * 48 + 3 * 3)
    assert theirs == ours + 7 * 2 * 48


@pytest.mark.parametrize("change", ["off", "two", "dropout", "merged", "dora", "autocast"])
def test_what_is_no_plain_adapter_is_left_to_peft(change):
    from peft import LoraConfig

    policy = adapted()
    mlp = policy.model.model.layers[0].mlp
    down = mlp.down_proj
    if change == "off":
        down.enable_adapters(False)
    elif change == "two":
        down.update_layer("other", r=2, lora_alpha=2, config=LoraConfig(r=2))
        down.set_adapter(["default", "other"])
    elif change == "dropout":
        down.lora_dropout["default"] = nn.Dropout(0.5)
    elif change == "merged":
        down.merge()
    elif change == "dora":
        down.lora_variant["default"] = object()
    if change != "autocast":
        assert layers._plain_down(down) is None
    if change in ("off", "two", "merged"):
        family = type(mlp).__mro__[2]
        torch.testing.assert_close(mlp(X), family.forward(mlp, X))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=change == "autocast"):
        if change == "autocast":
            assert mlp(X).dtype == torch.bfloat16


# The sampler


def forward(policy):
    ids = torch.arange(3, 20)[None]
    return policy.hidden_states(ids, position_ids=torch.arange(17)[None])


def packs(policy):
    return [m.packed for m in policy.model.modules() if isinstance(m, layers.LeanLinear)]


@pytest.fixture
def lean():
    if not matmul.onednn_is_faster():
        pytest.skip("no oneDNN in use here")


def test_packed_the_adapted_model_is_itself(lean):
    policy = adapted()
    with torch.no_grad():
        expected, base = forward(policy), forward(policy.without_adapter())
        assert (expected - base).norm() > 0.1 * base.norm()
        with policy.packed(17):
            found = forward(policy)
            assert any(pack is not None for pack in packs(policy))
        assert torch.equal(forward(policy), expected)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert all(pack is None for pack in packs(policy))
    assert all(p.requires_grad for n, p in policy.model.named_parameters() if "lora_" in n)
    forward(policy).sum().backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_sampler_and_trainer_agree(lean):
    """The adapter's part added to the weight before, or to the product after: the same log-probs as float32 rounds."""
    policy = adapted()
    prompts = policy.encode_prompts(
        [Prompt("p", "2 + 2?"), Prompt("q", "Say it.")], max_new_tokens=local.PACK_FROM
    )
    sampling = Sampling(max_new_tokens=local.PACK_FROM)
    groups = local.generate(policy, prompts, group_size=3, sampling=sampling, seed=0, stream="s")
    members = [(i, group, c) for i, (group, c) in enumerate((g, c) for g in groups for c in g.completions)]
    with torch.no_grad():
        logprobs, _ = completion_logprobs(policy, policy.rows([[m] for m in members], share_prefix=False))
    for (_, _, completion), trained in zip(members, logprobs, strict=True):
        n = len(completion.token_ids)
        torch.testing.assert_close(torch.tensor(completion.logprobs), trained[:n], rtol=1e-4, atol=1e-4)


def test_what_interrupts_leaves_the_adapter_on(lean):
    policy = adapted()
    with torch.no_grad():
        expected = forward(policy)
        with pytest.raises(KeyboardInterrupt), policy.packed(17):
            raise KeyboardInterrupt
        assert torch.equal(forward(policy), expected)


def test_the_base_model_is_packed_as_it_is(lean):
    policy = adapted().without_adapter()
    with torch.no_grad():
        expected = forward(policy)
        with policy.packed(17):
            assert (forward(policy) - expected).norm() <= 1e-5 * expected.norm()


def test_under_autocast_the_adapter_stays_apart(lean):
    """A layer that autocast gives bfloat16 does not take its packed weight, which alone would hold the adapter."""
    policy = adapted()
    policy.dtype = torch.bfloat16
    with torch.no_grad():
        expected = forward(policy)
        with policy.packed(17):
            found = forward(policy)
    assert (found - expected).norm() <= 0.05 * expected.norm()  # as bfloat16 rounds
