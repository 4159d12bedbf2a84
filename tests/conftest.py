"""What all tests share: few threads, no network, the tiny models of `tiny.py`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from hypothesis import settings

settings.register_profile("grouprl", deadline=None)
settings.load_profile("grouprl")
torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random Llama and its tokenizer."""
    import tiny

    return tiny.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Callable[[str], ModuleType]]:
    """Import a module that lies in benchmarks/ or docs/."""
    folders = [str(Path(__file__).parent.parent / name) for name in ("benchmarks", "docs")]
    sys.path[:0] = folders
    try:
        yield importlib.import_module
    finally:
        for folder in folders:
            sys.path.remove(folder)


REWARDS = '''
def lowercase(completions):
    """Share of lower-case letters: a random model's completions differ in it."""
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in completions]


def parity(completions, completion_ids):
    return [float(sum(ids) % 2) for ids in completion_ids]


def boom(completions):
    raise RuntimeError("the reward broke")
'''


@pytest.fixture
def rewards_file(tmp_path: Path) -> Path:
    """A module of reward functions, as a user would write one."""
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path
