"""Layers that do the same with less time or memory, put in place of a model's own by changing their class.

Parameters, state dict and names stay, so a model saves, loads and copies as before. Each keeps its gradient exact and
steps back where something is unusual (another type, autocast, a compiled graph).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grouprl.policy.matmul import gradient_of, onednn_is_faster, pack_weight, product, takes_gradient

GATED_MLP = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
"""What the forward of a gated MLP says, in transformers' own words, in every family that has one."""


def use_lean_layers(model: nn.Module) -> None:
    """Change the class of the layers that have a leaner form. In place; a second call changes nothing."""
    for module in model.modules():
        family: Any = type(module)
        if family is nn.Linear and onednn_is_faster():
            module.__class__ = LeanLinear
        elif family is nn.Embedding:
            module.__class__ = LeanEmbedding
        elif _is_gated_mlp(family):
            module.__class__ = _lean_mlp(family)


@contextmanager
def packed_weights(
    model: nn.Module, rows: int, *, weight_of: Callable[[LeanLinear], Tensor] | None = None
) -> Iterator[None]:
    """Within it, products without gradient use packed copies of the weights (`matmul.pack_weight`), which must not
    change meanwhile. Takes the memory of the weights once more.

    Args:
        model: Its `LeanLinear` layers are packed; on other machines than theirs nothing is done.
        rows: How many tokens run together, about.
        weight_of: What to pack for a layer, in place of its own weight.
    """
    layers = packable(model)
    try:
        for layer in layers:
            layer.packed = pack_weight(layer.weight if weight_of is None else weight_of(layer), rows)
        yield
    finally:
        for layer in layers:
            layer.packed = None


def packable(model: nn.Module) -> list[LeanLinear]:
    """The layers that `packed_weights` packs."""
    layers = [module for module in model.modules() if isinstance(module, LeanLinear)]
    return [layer for layer in layers if layer.weight.device.type == "cpu"]


def _is_plain(*tensors: Tensor) -> bool:
    """float32, outside autocast and compilation: where the leaner forms apply."""
    return (
        all(x.dtype == torch.float32 for x in tensors)
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and not torch.compiler.is_compiling()
    )


class LeanLinear(nn.Linear):
    """A linear layer whose float32 products on a CPU go through oneDNN."""

    packed: Tensor | None = None
    """The weight in oneDNN's own order, while `packed_weights` lasts."""

    def forward(self, input: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if self.packed is not None and not torch.is_grad_enabled() and input.dtype == self.weight.dtype:
            flat = product(input.flatten(0, -2), self.packed, self.bias)
            return flat.view(*input.shape[:-1], self.out_features)
        if not _is_plain(input, self.weight) or input.device.type != "cpu":
            return super().forward(input)
        out: Tensor = _Linear.apply(input.reshape(-1, self.in_features), self.weight, self.bias)
        return out.view(*input.shape[:-1], self.out_features)


class _Linear(torch.autograd.Function):
    """x Wᵀ + b, with gradients g W, gᵀ x and Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # frozen: x is not needed
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(grad, weight.T) if needs_x else None,
            product(grad.T, x.T) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


class LeanEmbedding(nn.Embedding):
    """An embedding whose gradient is added where it belongs, not to a table of zeros as large as the weight."""

    def forward(self, input: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        usual = self.max_norm is None and not self.scale_grad_by_freq and not self.sparse
        plain = self.weight.dtype == torch.float32 and not torch.compiler.is_compiling()
        if not (usual and plain and torch.is_grad_enabled() and takes_gradient(self.weight)):
            return super().forward(input)
        out: Tensor = _Embedding.apply(self.weight, input, self.padding_idx)
        return out


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding_idx = weight, padding_idx
        return weight[ids]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.padding_idx is not None:
            grad = grad.masked_fill((ids == ctx.padding_idx)[..., None], 0.0)
        # Sorted, so that a token that occurs twice is added up in one order on every device.
        distinct, place = ids.flatten().unique(return_inverse=True)
        rows = grad.new_zeros(len(distinct), grad.shape[-1]).index_add_(0, place, grad.flatten(0, -2))
        gradient_of(ctx.weight)[distinct] += rows
        return None, None, None


class LeanGatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)) that keeps gate and up for backward, and works the rest out again.

    down may carry a LoRA adapter: W v + b + s B (A v).
    """

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        gate, up = self.gate_proj(x), self.up_proj(x)
        down = _plain_down(self.down_proj) if torch.is_grad_enabled() else None
        if down is None or not _is_plain(gate, *(w for w in (down.weight, down.a, down.b) if w is not None)):
            out: Tensor = self.down_proj(self.act_fn(gate) * up)
            return out
        out = _GatedDown.apply(gate.flatten(0, -2), up.flatten(0, -2), *down, self.act_fn)
        return out.view(*x.shape[:-1], -1)


class _Down(NamedTuple):
    """What a linear layer, with or without an adapter, multiplies by: W, b, A, B and s."""

    weight: Tensor
    bias: Tensor | None
    a: Tensor | None = None
    b: Tensor | None = None
    scaling: float = 0.0


def _plain_down(layer: Any) -> _Down | None:
    """Of a linear layer, or of one that peft has wrapped with one plain adapter that is on; None of any other."""
    if type(layer) in (nn.Linear, LeanLinear):
        return _Down(layer.weight, layer.bias)
    base: Any = getattr(layer, "base_layer", None)
    wrapped = type(layer).__name__ == "Linear" and type(layer).__module__.startswith("peft.tuners.lora")
    if not wrapped or type(base) not in (nn.Linear, LeanLinear):
        return None
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.lora_A or name in getattr(layer, "lora_variant", ()):  # DoRA and its like
        return None
    a, b = layer.lora_A[name], layer.lora_B[name]
    if a.bias is not None or b.bias is not None or not isinstance(layer.lora_dropout[name], nn.Identity):
        return None
    return _Down(base.weight, base.bias, a.weight, b.weight, layer.scaling[name])


class _GatedDown(torch.autograd.Function):
    """W v + b + s B (A v) with v = act(gate) · up; the adapter's part where there is one."""

    @staticmethod
    def forward(
        ctx: Any,
        gate: Tensor,
        up: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        scaling: float,
        activation: nn.Module,
    ) -> Tensor:
        gated = activation(gate).mul_(up)
        out, inner = product(gated, weight, bias), None
        if a is not None and b is not None:
            inner = product(gated, a)
            out = out.add_(product(inner, b), alpha=scaling)
        ctx.save_for_backward(gate, up, weight, a, b, inner)
        ctx.scaling, ctx.activation = scaling, activation
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight, a, b, inner = ctx.saved_tensors
        _, needs_up, needs_weight, needs_bias, needs_a, needs_b, *_ = ctx.needs_input_grad
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            activated = ctx.activation(gate)
        values = activated.detach()
        gated = values * up if needs_weight or needs_a else None
        grad_gated, grad_inner = product(grad, weight.T), None
        if inner is not None:
            grad_inner = product(grad, b.T).mul_(ctx.scaling)
            grad_gated = grad_gated.add_(product(grad_inner, a.T))
        grad_up = grad_gated * values if needs_up else None
        (grad_gate,) = torch.autograd.grad(activated, gate, grad_gated.mul_(up))
        return (
            grad_gate,
            grad_up,
            product(grad.T, gated.T) if gated is not None and needs_weight else None,
            grad.sum(0) if needs_bias else None,
            product(grad_inner.T, gated.T)
            if gated is not None and grad_inner is not None and needs_a
            else None,
            product(grad.T, inner.T).mul_(ctx.scaling) if needs_b else None,
            None,
            None,
        )


@cache
def _lean_mlp(family: Any) -> type[nn.Module]:
    return type(f"Lean{family.__name__}", (LeanGatedMlp, family), {})


@cache
def _is_gated_mlp(family: Any) -> bool:
    """Whether a class's forward is the gated MLP and nothing else."""
    if issubclass(family, LeanGatedMlp) or not family.__module__.startswith("transformers."):
        return False
    try:
        body = inspect.getsource(family.forward).partition("\n")[2]
    except (OSError, TypeError):
        return False
    words = " ".join(body.split())
    return words in (f"down_proj = {GATED_MLP} return down_proj", f"return {GATED_MLP}")
