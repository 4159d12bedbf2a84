"""Arrays of other libraries, on their own devices: JAX, CuPy, and whatever else has the array API and DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from grouprl.errors import InputError


def namespace_of(x: Any) -> Any:
    """The array API of the library that an array is of; None for tensors, NumPy's arrays and what is no such array.

    CuPy's arrays name theirs from version 14 on, and have refused NumPy's conversion always.
    """
    if isinstance(x, Tensor | np.ndarray | np.generic) or not hasattr(x, "__dlpack__"):
        return None
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    return sys.modules.get("cupy") if type(x).__module__.partition(".")[0] == "cupy" else None


def as_tensor(where: str, name: str, x: Any) -> Any:
    """Such an array as a tensor over the same memory, where it is; anything else as it is.

    Raises:
        InputError: One that DLPack cannot hand over: spread over devices, or traced by a compiler.
    """
    if namespace_of(x) is None:
        return x
    try:
        return from_dlpack(x)
    except Exception as error:  # each library raises its own
        why = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise InputError(
            f"{where}: {name} is a {type(x).__name__} that cannot be read ({why}), expected an array on one device "
            "with its values there; pass it outside a compiled function, or as a NumPy array"
        ) from error


def giver(x: Any) -> Callable[[Tensor], Any]:
    """What takes a result to the library that an array is of, without a copy."""
    return lambda result: namespace_of(x).from_dlpack(result.contiguous())
