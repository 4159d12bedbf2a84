"""Linear layers through oneDNN on processors where torch's own float32 matrix product is the slow one.

On x86 torch multiplies float32 matrices with MKL, which keeps its AVX-512 kernels for Intel's processors. oneDNN,
which comes with torch too, has them for all: on an AMD EPYC (Zen 5) it is about twice as fast. torch has no switch
between them, so the linear layers of a policy change their class: same parameters, same state dict, same gradient.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def use_fast_matmul(model: nn.Module) -> None:
    """Give a model's linear layers the faster float32 product, where there is one. Elsewhere they stay as they are."""
    if not onednn_is_faster():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor with AVX-512 that is not Intel's, and torch has the operator.

    Asked of the processor, not of a stopwatch: a run that goes on tomorrow must round as it did today.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "Intel" in _processor():
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    x, weight = torch.randn(3, 5), torch.randn(4, 5)
    try:
        return torch.allclose(_product(x, weight), x @ weight.T, atol=1e-5)
    except (RuntimeError, TypeError):  # another version's signature
        return False


class OneDnnLinear(nn.Linear):
    """A linear layer whose float32 products on a CPU go through oneDNN; in other types and places a plain one."""

    def forward(self, input: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        plain = (
            input.dtype != torch.float32
            or self.weight.dtype != torch.float32
            or input.device.type != "cpu"
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
        )
        if plain:
            return super().forward(input)
        out: Tensor = _OneDnnLinear.apply(input.reshape(-1, self.in_features), self.weight, self.bias)
        return out.view(*input.shape[:-1], self.out_features)


class _OneDnnLinear(torch.autograd.Function):
    """x Wᵀ + b, with gradients g W, gᵀ x and Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.T) if needs_x else None,
            _product(grad.T, x.T) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b. Any strides."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return platform.processor()
