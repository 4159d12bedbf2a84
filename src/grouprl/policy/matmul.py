"""The float32 matrix product that is fastest here, and gradients added up where they belong.

On x86 torch multiplies float32 matrices with MKL, which keeps its AVX-512 kernels for Intel's processors. oneDNN,
which comes with torch too, has them for all: on an AMD EPYC (Zen 5) it is about twice as fast. torch has no switch
between them.

oneDNN compiles a kernel for each shape that it meets, half a megabyte and more, and two caches (its own, and that of
torch's layer over it) keep 1,024 each: completions of many lengths, which are as many shapes, would fill a gigabyte.
Here they keep `KERNELS`, which is more than a step's layers need at a time, and one made anew takes half a millisecond.
"""

from __future__ import annotations

import os
import platform
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

KERNELS = 128
"""Kernels that each of oneDNN's caches keeps, unless the environment says otherwise."""
for _capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read at the first product
    os.environ.setdefault(_capacity, str(KERNELS))

SLICE = 8192
"""Rows of a weight whose gradient is worked out together."""


def product(
    x: Float[Tensor, "n inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "n outputs"]:
    """x Wᵀ + b, of any strides, or with a weight that `pack_weight` packed. No gradient flows through it."""
    if weight.is_mkldnn or (x.dtype == torch.float32 and x.device.type == "cpu" and onednn_is_faster()):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return linear(x, weight, bias)


def pack_weight(weight: Float[Tensor, "outputs inputs"], rows: int) -> Tensor:
    """A copy of a weight in the order in which oneDNN reads it, for products with about this many rows: small ones,
    which wait for the weight rather than for arithmetic, are up to half again as fast."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return packed


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor with AVX-512 that is not Intel's, and torch has the operator.

    Asked of the processor, not of a stopwatch: a run that goes on tomorrow must round as it did today.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "Intel" in _processor():
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    x, weight = torch.eye(3, 5), torch.ones(4, 5)
    try:
        found = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    except (RuntimeError, TypeError):  # another version's signature
        return False
    return torch.equal(found, x @ weight.T)


def accumulate(
    weight: Tensor, total: Tensor | None, grad: Float[Tensor, "n outputs"], x: Float[Tensor, "n inputs"]
) -> Tensor | None:
    """Add gᵀ x to a weight's gradient, slice by slice, without a copy of its size.

    Args:
        weight: Where it is a leaf that nothing watches, its `.grad` takes the sum.
        total: What has been added up so far, where it is not.
        grad: g.
        x: What the layer was given.

    Returns:
        The new total for autograd, or None where `.grad` has it already.
    """
    direct = takes_gradient(weight)
    into = gradient_of(weight) if direct else (torch.zeros_like(weight) if total is None else total)
    for i in range(0, len(weight), SLICE):
        into[i : i + SLICE].add_(product(grad[:, i : i + SLICE].T, x.T))
    return None if direct else into


def takes_gradient(weight: Tensor) -> bool:
    """Whether a gradient may be put into `.grad` directly: no hook would miss it."""
    return (
        type(weight) is nn.Parameter
        and weight.is_leaf
        and weight.requires_grad
        and not weight._backward_hooks
        and not getattr(weight, "_post_accumulate_grad_hooks", None)
    )


def gradient_of(weight: Tensor) -> Tensor:
    """`.grad`, made of zeros where there is none yet."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return platform.processor()
