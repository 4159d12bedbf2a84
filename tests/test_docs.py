"""Every snippet of the README and the docs runs: Python as doctests, shell as it stands, TOML as configuration."""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from grouprl.training import Config, config_from_dict

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets(page, tmp_path, monkeypatch, tiny_model):
    """Python, then shell, in one folder, as a reader would go through the page."""
    monkeypatch.chdir(tmp_path)
    run_python(page)
    run_shell(page, tmp_path, tiny_model)


def run_python(page):
    """The sessions of a page share their names; a block that is no session must at least compile."""
    sessions = [b for b in blocks(page, "python") if ">>>" in b]
    test = doctest.DocTestParser().get_doctest("\n".join(sessions), {}, page.name, str(page), 0)
    failures = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(test, out=failures.append)
    assert not runner.failures, "".join(failures)
    for block in blocks(page, "python"):
        if block not in sessions:
            compile(block, page.name, "exec")


def run_shell(page, folder, tiny_model):
    """Each block as one script; `grouprl train` takes a tiny model and few steps, `make` looks for its target."""
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    small = (
        f"--model {tiny_model} --device cpu --steps 2 --prompts-per-step 2 --group-size 2 --max-new-tokens 4 "
        "--eval-prompts 2 --eval-samples 2"
    )
    shim, make = bin_dir / "grouprl", bin_dir / "make"
    shim.write_text(
        "#!/usr/bin/env bash\n"
        f'if [ "$1" = train ]; then exec {sys.executable} -m grouprl.cli.main "$@" {small}; fi\n'
        f'exec {sys.executable} -m grouprl.cli.main "$@"\n'
    )
    make.write_text('#!/usr/bin/env bash\ngrep -q "^$1:" "$ROOT/Makefile"\n')
    for script in (shim, make):
        script.chmod(0o755)
    env = os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}", "ROOT": str(ROOT)}
    for block in blocks(page, "bash"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=lambda p: p.name)
def test_toml(page):
    for block in blocks(page, "toml"):
        config_from_dict(tomllib.loads(block))


def test_the_documented_defaults_are_the_defaults():
    (block,) = blocks(ROOT / "docs" / "training.md", "toml")
    table = tomllib.loads(block)
    assert config_from_dict(table) == Config()
    named = set(re.findall(r"^#? ?(\w+) =", block, re.MULTILINE)) | set(table)
    assert set(Config.__dataclass_fields__) <= named
    for section in ("rollout", "advantage", "objective", "optimizer", "evaluation", "checkpoint"):
        assert set(table[section]) == set(getattr(Config(), section).__dataclass_fields__)


def test_links_within_the_docs_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
