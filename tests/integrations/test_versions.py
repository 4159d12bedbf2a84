"""What an integration says where its framework is missing, or of another version."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from grouprl.errors import MissingDependency
from grouprl.integrations import versions
from grouprl.integrations.versions import FRAMEWORKS, Framework


def test_the_range_takes_what_was_tested_and_its_pre_releases():
    for framework in FRAMEWORKS.values():
        assert all(framework.takes(version) for version in framework.tested)
    made_up = Framework("x", (1, 15), (1, 17), (), "x")
    taken = ["1.15", "1.15.0rc1", "1.16.9.post1", "1.16.0+cpu"]
    refused = ["1.14.9", "1.17", "1.17.0.dev0", "2.0", "0.20.0", "unknown"]
    assert [made_up.takes(version) for version in taken + refused] == [True] * 4 + [False] * 6
    assert made_up.supported == ">=1.15,<1.17"


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if FRAMEWORKS[name].extra])
def test_the_extra_asks_for_the_same_range(name):
    """pyproject.toml and the table here say the same."""
    import tomllib
    from pathlib import Path

    text = (Path(__file__).parent.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    framework = FRAMEWORKS[name]
    extra = tomllib.loads(text)["project"]["optional-dependencies"][framework.extra]
    assert f"{framework.package}{framework.supported}" in extra


@pytest.mark.parametrize("version", ["0.20.0", "2.0.0"])
def test_another_version_is_refused_as_it_is_imported(tmp_path, version):
    folder = tmp_path / f"trl-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    said = importing(tmp_path)
    assert said == (
        f"MissingDependency grouprl.integrations.trl: trl is {version}, expected trl>=1.16,<1.17; "
        "pip install 'grouprl[trl]'"
    )


@pytest.mark.skipif(versions.installed("trl") is not None, reason="trl is installed here")
def test_a_missing_framework_says_what_brings_it(tmp_path):
    assert importing(tmp_path) == (
        "MissingDependency grouprl.integrations.trl: trl is not installed, expected trl>=1.16,<1.17; "
        "pip install 'grouprl[trl]'"
    )
    with pytest.raises(MissingDependency, match="trl is not installed"):
        versions.require("trl")


def importing(folder):
    """What the import of grouprl.integrations.trl raises, with that folder first on the path."""
    script = (
        "try:\n    import grouprl.integrations.trl\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_grouprl_imports_no_framework():
    script = (
        "import grouprl, grouprl.integrations, sys\n"
        "print({'trl', 'transformers', 'accelerate'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr
