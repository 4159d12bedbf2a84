"""grouprl: group-relative policy optimisation (GRPO) for language models.

The core needs torch, numpy and jaxtyping alone. `train` and `Config` are imported from `grouprl.training`
when they are first asked for, and need `pip install "grouprl[train]"`.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from grouprl import advantages, sampling
from grouprl.advantages import group_advantages, group_stats, grpo_group_advantages

if TYPE_CHECKING:
    from grouprl import objectives
    from grouprl.training import Config, train

__version__ = metadata.version("grouprl")

__all__ = [
    "Config",
    "advantages",
    "group_advantages",
    "group_stats",
    "grpo_group_advantages",
    "objectives",
    "sampling",
    "train",
]

_LAZY = {"objectives": "grouprl.objectives", "train": "grouprl.training", "Config": "grouprl.training"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'grouprl' has no attribute {name!r}")
    try:
        module = import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        from grouprl.errors import MissingDependency

        raise MissingDependency(
            f"grouprl.{name}: {error.name} is not installed; pip install 'grouprl[train]'"
        ) from error
    value = module if name == "objectives" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
