"""docs/conventions.md says what was recorded, and grouprl's row of the noise table is 0."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("parity_tables", ROOT / "parity" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    sys.modules.pop("inputs", None)


@pytest.fixture(scope="module")
def written(tables):
    return tables.tables(tables.records())


@pytest.mark.parametrize("name", ["settings", "versions", "values", "noise"])
def test_the_page_holds_the_table_as_recorded(tables, written, name):
    assert f"<!-- {name}: written by `make parity` -->\n{written[name]}<!-- end -->" in tables.PAGE.read_text(
        encoding="utf-8"
    )


def test_grouprl_has_no_noise(written):
    last = written["noise"].splitlines()[-1]
    assert [cell.strip() for cell in last.strip("|").split("|")] == ["grouprl", "either way"] + ["0"] * 7


def test_every_framework_but_grouprl_has_noise_in_groups_of_seven(tables):
    recorded = tables.records()
    for framework, function in tables.GRPO.items():
        key = "grpo" if framework == "ms_swift" else function
        (seven,) = (size for size in recorded[framework]["functions"][key]["noise"] if size["size"] == 7)
        assert seven["groups"] >= 1000
        assert seven["row"]["noisy"] > 100
        assert seven["matrix"]["noisy"] > 100


def test_only_conventions_whose_function_was_run_say_so(tables, written):
    lines = {line.split("`")[1]: line for line in written["settings"].splitlines()[2:]}
    assert set(lines) == set(tables.advantages.CONVENTIONS)
    for name, line in lines.items():
        assert ("| yes, " in line) == (name in tables.GRPO)
