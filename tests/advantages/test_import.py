"""`import grouprl` is light, and says what it has."""

import subprocess
import sys

import pytest

import grouprl

HEAVY = [
    "transformers",
    "tokenizers",
    "polars",
    "rich",
    "pydantic",
    "tyro",
    "plotly",
    "jinja2",
    "safetensors",
]


def test_import_brings_nothing_heavy():
    code = f"import sys, grouprl; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_names():
    assert {"group_advantages", "group_stats", "grpo_group_advantages", "train", "Config"} <= set(
        dir(grouprl)
    )
    assert grouprl.__version__.count(".") >= 1
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        grouprl.nonsense  # noqa: B018


def test_objectives_come_when_asked_for():
    assert grouprl.objectives.__name__ == "grouprl.objectives"
