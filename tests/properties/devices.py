"""Dtypes, and ways to see what an operation would do on a device without having one."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]


def out_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextlib.contextmanager
def device_path() -> Iterator[None]:
    """The way taken where looking at values would wait: no branch on data, one segment per completion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        yield


class NothingComesBack(TorchDispatchMode):
    """Fails on an operation that reads a device tensor into a host one, and counts the operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        out = func(*args, **(kwargs or {}))
        given_ = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        if any(x.is_cuda for x in given_) and any(not x.is_cuda for x in made):
            raise AssertionError(f"{func} copies from the device")
        return out
