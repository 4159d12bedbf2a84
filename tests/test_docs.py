"""Every snippet of the README and the docs runs: Python as doctests, shell as it stands, TOML as configuration.

A `console` block is commands after "$ ", each with what it prints; `...` stands for anything there.
"""

import doctest
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from grouprl import advantages
from grouprl.training import Config, config_from_dict
from grouprl.training.config import SECTIONS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page, language):
    """Also those that stand indented in a list."""
    found = re.finditer(
        rf"^(?P<indent> *)```{language}\n(?P<code>.*?)^(?P=indent)```",
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [textwrap.dedent(block["code"]) for block in found]


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
    """Each block as one script, or as commands with what they print."""
    env = environment(folder, tiny_model)
    for block in blocks(page, "bash"):
        done = run(block, folder, env)
        assert done.returncode == 0, done.stdout + done.stderr
    check = doctest.OutputChecker().check_output
    for block in blocks(page, "console"):
        for command, _, expected in (
            part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.M)[1:]
        ):
            done = run(command, folder, env)
            assert check(expected, done.stdout + done.stderr, OPTIONS), (
                f"{command}\n{done.stdout}{done.stderr}"
            )


def run(script, folder, env):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def environment(folder, tiny_model):
    """`grouprl train` takes a tiny model and few steps, `make` looks for its target."""
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    small = (
        f"--model {tiny_model} --device cpu --steps 2 --prompts-per-step 2 --group-size 2 --max-new-tokens 4 "
        "--eval-prompts 2 --eval-samples 2"
    )
    (folder / "examples").symlink_to(ROOT / "examples")
    shim, make, python = bin_dir / "grouprl", bin_dir / "make", bin_dir / "python"
    shim.write_text(
        "#!/usr/bin/env bash\n"
        f'if [ "$1" = train ]; then exec {sys.executable} -m grouprl.cli.main "$@" {small}; fi\n'
        f'exec {sys.executable} -m grouprl.cli.main "$@"\n'
    )
    make.write_text('#!/usr/bin/env bash\ngrep -q "^$1:" "$ROOT/Makefile"\n')
    python.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n')
    for script in (shim, make, python):
        script.chmod(0o755)
    return os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}", "ROOT": str(ROOT)}


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
    sections = re.findall(r"^\[(\w+)\](.*?)(?=^\[|\Z)", block, re.MULTILINE | re.DOTALL)
    for section, text in sections:
        if section in SECTIONS:
            keys = re.findall(r"^(?:# )?(\w+) =", text, re.MULTILINE)  # what has no default is commented out
            assert sorted(keys) == sorted(SECTIONS[section].__dataclass_fields__)
    assert set(SECTIONS) <= {section for section, _ in sections}


def test_links_within_the_docs_lead_somewhere():
    """To a file that is there, and to a heading of it where they name one."""
    for page in PAGES:
        text = without_code(page)
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(there), f"{page.name}: {target}, of {sorted(anchors(there))}"


def without_code(page):
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """Those that GitHub gives the headings: lower case, punctuation dropped, spaces as hyphens, twins numbered."""
    found = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", without_code(page), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        twins = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{twins}" if twins else slug)
    return found


def test_anchors_are_those_of_github(tmp_path):
    """Of the rules that GitHub follows: punctuation goes, underscores stay, spaces are not merged."""
    page = tmp_path / "page.md"
    page.write_text(
        "# What it does, and *why*\n## batch_std\n## A & B\n## `x`: [y](z.md)\n## A & B\n```\n# no\n```\n"
    )
    assert anchors(page) == {"what-it-does-and-why", "batch_std", "a--b", "x-y", "a--b-1"}


def test_every_estimator_has_its_place():
    """A line in the index, and a heading of its own on one page."""
    folder = ROOT / "docs" / "estimators"
    index = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    headings = [
        h
        for page in folder.glob("*.md")
        for h in re.findall(r"^## (\w+)$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(h for h in headings if h in advantages.names()) == sorted(advantages.names())
    for name in advantages.names():
        assert re.search(rf"^\| `{name}` \|", index, re.MULTILINE), name
    for page in folder.glob("*.md"):
        assert f"(estimators/{page.name})" in index, page.name
