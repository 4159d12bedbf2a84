"""`grouprl doctor`: what is there, what is missing, what is broken; exit code 1 for the last alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from grouprl.cli import doctor
from grouprl.cli.main import main
from grouprl.integrations.versions import FRAMEWORKS


def test_it_names_versions_extras_and_integrations(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"torch         {metadata.version('torch')}" in text
    assert "vllm" in text
    for name in FRAMEWORKS:
        assert f"  {name}" in text
    assert "all that is installed works" in text


def test_json_is_one_object_of_the_same(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["extras"]["core"] == {
        "works": True,
        "broken": False,
        "why": "",
        "fix": "",
        "version": None,
        "supported": "",
        "tested": [],
        "hooks": [],
    }
    assert set(found["integrations"]) == set(FRAMEWORKS)
    for verdict in found["integrations"].values():
        assert verdict["works"] or verdict["why"]
    assert found["problems"] == []


def test_what_is_not_installed_is_no_problem_and_says_what_brings_it(monkeypatch):
    there = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in ("polars", "trl") else there(name))
    found = doctor.examine()
    report, trl = found["extras"]["report"], found["integrations"]["trl"]
    assert (report["works"], report["why"]) == (False, "not installed: polars")
    assert report["fix"] == "pip install 'grouprl[report]'"
    assert "polars" in found["extras"]["train"]["why"]  # which brings the report along
    assert (trl["works"], trl["why"]) == (False, "trl is not installed")
    assert found["problems"] == []


def test_a_version_out_of_range_is_a_problem(monkeypatch, capsys):
    there = doctor.installed
    monkeypatch.setattr(
        doctor, "installed", lambda name: "0.19.0" if name in ("polars", "trl") else there(name)
    )
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "report: polars is 0.19.0, expected >=" in text
    assert "; pip install 'grouprl[report]'" in text
    assert "trl: trl 0.19.0 is out of its range; pip install 'grouprl[trl]'" in text
    assert "what would not work" in text


def test_an_integration_that_does_not_import_is_a_problem(monkeypatch):
    """As where a framework is there in name, and what it needs is not."""
    monkeypatch.setattr(doctor, "installed", lambda name: "1.16.0")

    def broken(name):
        raise OSError("libcudart.so.13: cannot open\nshared object file")

    monkeypatch.setattr(doctor, "import_module", broken)
    verdict = doctor._integration("trl", FRAMEWORKS["trl"])
    assert verdict.broken
    assert verdict.why == "importing it raised OSError: libcudart.so.13: cannot open shared object file"


def test_the_core_is_all_it_needs():
    """It runs where nothing but torch and numpy is to be had, since it is to say so."""
    script = (
        "import sys\n"
        "for name in ('tyro', 'rich', 'polars', 'transformers', 'pydantic', 'packaging'):\n"
        "    sys.modules[name] = None\n"
        "from grouprl.cli.main import main\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "packages" in done.stdout


def test_a_line_says_which_versions_were_tested():
    working = doctor.asdict(
        doctor.Verdict(True, version="1.16.3", supported=">=1.16,<1.17", tested=["1.16.0"])
    )
    assert doctor._line(working) == "1.16.3 (>=1.16,<1.17; tested with 1.16.0): works"
    recorded = doctor.asdict(doctor.Verdict(True, version="0.4.0", supported=">=0.2,<0.5"))
    assert (
        doctor._line(recorded) == "0.4.0 (>=0.2,<0.5; tested with a recording of its interface alone): works"
    )


@pytest.mark.parametrize("argument", ["--yes", "yes", "\x1b[2J"])
def test_an_unknown_option_is_refused_on_one_line_without_its_escapes(argument, capsys):
    assert main(["doctor", argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith("grouprl: grouprl doctor: ")
    assert "\x1b" not in said
    assert said.count("\n") == 1
