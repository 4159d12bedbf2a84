"""`make integrations`: what it says, when an environment is made anew, and when it fails."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import environments
import pytest
from environments import Outcome

from grouprl.integrations.versions import FRAMEWORKS

KNOWN = tomllib.loads((environments.HERE / "environments.toml").read_text("utf-8"))


def test_each_holds_what_is_tested_and_has_tests_and_pins():
    """slime is not to be had from pip, so its tests run without it. vLLM is no framework round grouprl."""
    assert set(KNOWN) - {"vllm"} == {name for name, framework in FRAMEWORKS.items() if framework.tested}
    for name, about in KNOWN.items():
        assert (environments.HERE / f"test_{name}.py").is_file()
        if name in FRAMEWORKS:
            framework = FRAMEWORKS[name]
            assert f"{framework.package}=={framework.tested[-1]}" == about["alone"][0]


@pytest.mark.parametrize("name", KNOWN)
def test_the_pins_hold_what_is_asked_for(name):
    pinned = dict(
        line.split("==")
        for line in environments.pins_of(name).read_text("utf-8").splitlines()
        if "==" in line
    )
    pinned = {one.lower().replace("_", "-"): version for one, version in pinned.items()}
    about = KNOWN[name]
    for wanted in about["needs"] + (about["alone"] if name != "trl" else []):
        package, _, version = re.sub(r"\[.*\]", "", wanted.lower()).partition("==")
        assert package.replace("_", "-") in pinned, wanted
        assert not version or pinned[package.replace("_", "-")] == version, wanted


def test_a_name_that_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        environments.main(["tlr"])
    assert ended.value.code == 2
    assert "no integration 'tlr', expected one of trl, verl, skyrl, tunix" in capsys.readouterr().err


def test_constraints_are_not_overwritten(capsys):
    with pytest.raises(SystemExit) as ended:
        environments.main(["trl", "--update-pins"])
    assert ended.value.code == 2
    assert "trl is held by constraints.txt" in capsys.readouterr().err


@pytest.fixture
def made(tmp_path, monkeypatch):
    """`environments` with a folder of its own, an environment without packages, and a test file to run there."""
    monkeypatch.setattr(sys.modules["run"], "ENVIRONMENTS", tmp_path / "environments")
    for name, value in {"HERE": tmp_path, "PINS": tmp_path, "ROOT": environments.ROOT}.items():
        monkeypatch.setattr(environments, name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest.__file__).parent.parent))
    calls = []

    def fake_install(command, **_):
        """Everything but pip, which would ask a registry."""
        calls.append(command)
        if "venv" in command:
            subprocess.run([str(part) for part in command] + ["--without-pip"], check=True)

    monkeypatch.setattr(sys.modules["run"], "_run", fake_install)
    (tmp_path / "own.txt").write_text("pytest==9\n")
    return tmp_path, calls


def test_an_intact_environment_is_used_again_and_any_other_is_made_anew(made):
    folder, calls = made
    asked = ("integration-own", ["pytest"], ["--editable", "x"])
    assert not environments.intact(*asked, "stamp")
    environments.environment(*asked, stamp="stamp")
    assert [part for part in calls[0] if part in ("venv", "--clear")] == ["venv", "--clear"]
    assert environments.intact(*asked, "stamp")
    assert not environments.intact(*asked, "other pins")
    assert not environments.intact("integration-own", ["trl"], ["--editable", "x"], "stamp")
    count = len(calls)
    environments.environment(*asked, stamp="stamp")
    assert len(calls) == count
    (folder / "environments" / "integration-own" / "bin" / "python").unlink()
    assert not environments.intact(*asked, "stamp")
    environments.environment(*asked, stamp="stamp")
    assert len(calls) == 2 * count


@pytest.mark.parametrize(
    ("body", "tests", "failed"),
    [
        ("def test_a(): pass\ndef test_b(): pass\n", "2 passed", ""),
        ("def test_a(): pass\ndef test_b(): assert 0\n", "1 passed", "tests failed, exit code 1"),
        ("import pytest\npytest.skip('not here', allow_module_level=True)\n", "0 passed", "no test ran"),
    ],
)
def test_an_outcome_says_what_pytest_counted(made, body, tests, failed):
    folder, _ = made
    (folder / "test_own.py").write_text(body)
    (folder / "pytest.ini").write_text("[pytest]\n")
    outcome = environments.run("own", {"alone": ["pytest"], "needs": [], "extras": "report"})
    assert outcome.environment.startswith("made, ")
    assert outcome.tests.startswith(tests)
    assert outcome.failed.startswith(failed)
    assert bool(outcome.failed) == bool(failed)


def test_an_environment_that_cannot_be_made_is_an_outcome(made, monkeypatch):
    def broken(command, **_):
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(sys.modules["run"], "_run", broken)
    outcome = environments.run("own", {"alone": ["own==1.0"], "needs": [], "extras": "report"})
    assert (outcome.framework, outcome.environment) == ("own 1.0", "not made")
    assert outcome.failed.startswith("environment not made: Command 'pip'")


def test_the_table_has_a_line_each():
    table = environments.as_table(
        [
            Outcome("trl", "trl 1.16.0", "there", "78 passed, 90 s"),
            Outcome("skyrl", "skyrl 0.4.0", "not made", failed="environment not made: it needs Python 3.12"),
        ]
    )
    assert table.splitlines() == [
        "integration  framework    environment  tests            result",
        "trl          trl 1.16.0   there        78 passed, 90 s  ok",
        "skyrl        skyrl 0.4.0  not made                      environment not made: it needs Python 3.12",
    ]


def test_versions_are_written_without_local_names(monkeypatch):
    """As pip freeze gives them; a registry has no torch 2.13.0+cpu."""
    listed = "torch==2.13.0+cpu\n-e git+x#egg=grouprl\npandas @ file:///a.whl\nverl==0.9.1\n"
    monkeypatch.setattr(
        environments.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listed)
    )
    assert environments.frozen(Path("python")) == "torch==2.13.0\nverl==0.9.1\n"
