"""ART: `compute_advantages` of its Tinker backend, which takes the rewards of one group.

Its module is loaded without the `__init__` files of its packages, and with an empty stand-in for the chat renderers of
tinker-cookbook, which its other functions use.
"""

from __future__ import annotations

import sys
import types

from adapters.interface import Function, Groups, skip_package_init

skip_package_init("art", "art.tinker_native")
renderers = types.ModuleType("tinker_cookbook.renderers")
sys.modules["tinker_cookbook"] = types.ModuleType("tinker_cookbook")
sys.modules["tinker_cookbook"].renderers = sys.modules["tinker_cookbook.renderers"] = renderers

from art.tinker_native.data import compute_advantages  # noqa: E402

DISTRIBUTION = "openpipe-art"
PATH = "art.tinker_native.data.compute_advantages"


def functions() -> dict[str, Function]:
    return {
        "grpo": Function(PATH, lambda groups: _each(groups, True), noise=True),
        "dr_grpo": Function(PATH, lambda groups: _each(groups, False)),
    }


def _each(groups: Groups, normalize: bool) -> list[list[float]]:
    return [compute_advantages(list(group), normalize_advantages=normalize) for group in groups]
