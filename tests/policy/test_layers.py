"""Layers by another class: the same values and gradients, and what they leave alone."""

import copy
import subprocess
import sys

import pytest
import tiny
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from grouprl.policy import layers, matmul
from grouprl.policy.layers import LeanEmbedding, LeanGatedMlp, LeanLinear, use_lean_layers

FAMILIES = ["llama", "qwen3", "gemma3_text", "phi3", "gpt2"]


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def onednn(request, monkeypatch):
    """Both products, where the machine's torch has oneDNN."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch without oneDNN")
    for place in (layers, matmul):
        monkeypatch.setattr(place, "onednn_is_faster", lambda: request.param)


def model(family):
    config = AutoConfig.for_model(
        family,
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=1,
        **{k: v for k, v in tiny.FAMILIES[family].items() if k not in ("pad_token_id",)},
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def loss_and_gradients(made):
    ids = torch.tensor([[3, 4, 5, 3, 1, 9, 3]])
    made.zero_grad()
    loss = made(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in made.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_stay(family, onednn):
    made = model(family)
    expected, gradients = loss_and_gradients(made)
    use_lean_layers(made)
    found, lean = loss_and_gradients(made)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(lean[name], gradient, rtol=1e-4, atol=1e-6)


def test_names_parameters_and_copies_stay(onednn):
    made = model("llama")
    before = dict(made.state_dict())
    use_lean_layers(made)
    kinds = [type(m) for m in made.modules()]
    use_lean_layers(made)
    assert [type(m) for m in made.modules()] == kinds
    assert {name: p.data_ptr() for name, p in made.state_dict().items()} == {
        name: p.data_ptr() for name, p in before.items()
    }
    copied = copy.deepcopy(made)
    assert loss_and_gradients(copied)[0] == loss_and_gradients(made)[0]
    assert copied.model.layers[0].mlp.down_proj.weight is not made.model.layers[0].mlp.down_proj.weight


def test_a_gated_mlp_is_known_by_what_it_says():
    made = model("llama")
    use_lean_layers(made)
    assert sum(isinstance(m, LeanGatedMlp) for m in made.modules()) == 2
    assert isinstance(made.model.embed_tokens, LeanEmbedding)

    class Other(nn.Module):
        def forward(self, x):
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) + 1

    assert not layers._is_gated_mlp(Other)


def test_a_frozen_weight_gets_no_gradient(onednn):
    made = model("llama")
    use_lean_layers(made)
    frozen = [made.model.embed_tokens.weight, made.model.layers[0].mlp.down_proj.weight]
    for weight in frozen:
        weight.requires_grad_(False)
    _, gradients = loss_and_gradients(made)
    assert all(weight.grad is None for weight in frozen)
    assert gradients["model.layers.0.mlp.up_proj.weight"] is not None


def test_an_embedding_adds_its_gradient_in_place_also_under_autocast():
    """Autocast leaves an embedding in float32, so nothing of it changes, and no table of zeros is made."""
    embedding = nn.Embedding(6, 3)
    use_lean_layers(embedding)
    assert type(embedding) is LeanEmbedding
    embedding.weight.grad = kept = torch.ones(6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out = embedding(torch.tensor([[2, 5, 2]]))
    assert out.dtype == torch.float32
    out.backward(torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [10.0, 20.0, 30.0]]]))
    assert embedding.weight.grad is kept
    assert kept[2].tolist() == [12.0, 23.0, 34.0]
    assert kept[5].tolist() == [5.0, 6.0, 7.0]
    assert kept[[0, 1, 3, 4]].eq(1).all()


def test_autocast_takes_the_layers_of_torch(onednn):
    linear = nn.Linear(4, 3)
    linear.__class__ = LeanLinear
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.ones(2, 4)).dtype == torch.bfloat16


def test_the_product_takes_any_strides(onednn):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 7, generator=generator), torch.randn(7, 3, generator=generator).T
    torch.testing.assert_close(matmul.product(x, weight), x @ weight.T)
    bias = torch.randn(3, generator=generator)
    torch.testing.assert_close(matmul.product(x, weight, bias), x @ weight.T + bias)
    y = torch.randn(5, 4, generator=generator)
    torch.testing.assert_close(matmul.product(x.T, y.T), x.T @ y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_give_the_same_products_while_they_last(dtype):
    if not matmul.onednn_is_faster():
        pytest.skip("no oneDNN in use here")
    made = model("llama").to(dtype)
    use_lean_layers(made)
    linear = made.model.layers[0].mlp.up_proj
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        expected = linear(x)
        with layers.packed_weights(made, 5):
            assert linear.packed is not None
            torch.testing.assert_close(linear(x), expected)
    assert all(m.packed is None for m in made.modules() if isinstance(m, LeanLinear))
    with layers.packed_weights(made, 5):
        assert linear(x).grad_fn is not None  # with gradient: the weight itself


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the resident memory")
def test_products_of_many_shapes_do_not_fill_the_memory():
    """oneDNN keeps a kernel for each shape: 1,200 of half a megabyte, unless it is told to keep fewer."""
    script = (
        "import torch\nfrom grouprl.policy.matmul import product\ntorch.set_num_threads(1)\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) >> 8\n"
        "weight = torch.randn(32, 32)\nsizes = []\n"
        "for rows in range(1, 1201):\n    product(torch.randn(rows, 32), weight)\n    sizes.append(resident())\n"
        "print(sizes[-1] - sizes[299])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout) < 64  # MiB; 380 without
