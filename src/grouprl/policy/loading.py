"""Load a policy: the bundled model, a local folder, or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grouprl.errors import ConfigError, ModelError
from grouprl.policy.bundled import BUNDLED, bundled_model, cache_folder
from grouprl.policy.layers import use_lean_layers
from grouprl.policy.model import Policy
from grouprl.policy.probe import probe
from grouprl.policy.quiet import quiet_transformers


def load_policy(name: str = BUNDLED, *, device: str = "auto") -> Policy:
    """Load a causal LM in float32 with its tokenizer, and check on a few tokens that grouprl can train it.

    Args:
        name: "bundled", a folder that `save_pretrained` wrote, or a hub id.
        device: "auto" (CUDA where there is one), or any torch device.

    Raises:
        ModelError: It is not there, is damaged, is not a causal LM, or has a head that grouprl does not know.
        ConfigError: There is no such device here.
        MissingDependency: The bundled model's package is not installed.
    """
    place = _device(device)
    path = str(bundled_model()) if name == BUNDLED else name
    _check_place(name, path)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            model = _load_model(AutoModelForCausalLM, path).to(place)
            use_lean_layers(model)
            policy = Policy(model, tokenizer, name=name)
            policy.prefix_obstacle = probe(policy)
        except ModelError:
            raise
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise ModelError(
                f"model {name!r}: cannot be loaded ({_one_line(error)}); {_advice(name)}"
            ) from error
    return policy


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r}: not to be had here ({_one_line(error)}); give 'auto', 'cpu' or a device of this machine"
        ) from error
    return device


def _load_model(auto: Any, path: str) -> Any:
    options = {"dtype": torch.float32, "trust_remote_code": False}
    try:
        return auto.from_pretrained(path, attn_implementation="sdpa", **options)
    except ValueError as error:  # a family without scaled_dot_product_attention
        if "attention" not in str(error):
            raise
        return auto.from_pretrained(path, **options)


def _check_place(name: str, path: str) -> None:
    """Tell a folder that is not there from a hub id, before transformers asks the hub about either."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model {name!r}: the folder holds no config.json; give a folder that save_pretrained wrote "
                "(of a run, its model/ or checkpoints/step_…/model/)"
            )
    elif folder.is_file():
        raise ModelError(f"model {name!r}: it is a file; give the folder that holds the model")
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"model {name!r}: there is no such folder; {_advice(name)}")
    else:
        _check_hub(name)


def _check_hub(name: str) -> None:
    """Ask the hub once, so that a wrong name or a missing network is said at once, not after a minute of retries."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        if constants.HF_HUB_OFFLINE:
            raise ModelError(
                f"model {name!r}: neither a folder nor in the hub's cache, and HF_HUB_OFFLINE is set"
            )
        HfApi().model_info(name, timeout=10)
    except ModelError:
        raise
    except Exception as error:  # the hub library's HTTP errors share no base class with its other errors
        raise ModelError(
            f"model {name!r}: not a folder, and the hub did not give it ({_one_line(error)}); {_advice(name)}"
        ) from error


def _advice(name: str) -> str:
    return (
        "give 'bundled', a folder that save_pretrained wrote, or a hub id such as 'Qwen/Qwen3-0.6B'"
        if name != BUNDLED
        else f"remove the cache at {cache_folder()} and try again"
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "…"
