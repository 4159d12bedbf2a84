"""`--help`: sentences that run on over the lines of their source, at any width."""

import re
import subprocess
from itertools import pairwise

import pytest

from grouprl.cli.main import main

COMMANDS = ("train", "eval", "report", "watch", "advantages", "explain", "recipes")


def shown(command, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out.splitlines()


def helps(lines):
    """The help beside each option, as its lines, and the width that they may have."""
    inside = [line[2:-2] for line in lines if line.startswith("│")]
    start = next(m.start(1) for line in inside if (m := re.match(r"-h, --help +(\S)", line)))
    found = []
    for line in inside:
        if line.startswith("-"):
            beside = (
                line[start:].rstrip() if line[start - 2 : start] == "  " else ""
            )  # else a long name's end
            found.append([beside] if beside else [])
        elif found and line.startswith(" " * start):
            found[-1].append(line[start:].rstrip())
    return found, len(inside[0]) - start


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_ends_before_it_is_full(command, width, capsys, monkeypatch):
    """The first word of each line that goes on would not have stood on the line before."""
    found, room = helps(shown(command, width, capsys, monkeypatch))
    assert all(len(line) <= room for lines in found for line in lines)
    for before, after in (pair for lines in found for pair in pairwise(lines)):
        assert len(before) + 1 + len(after.split()[0]) > room, (before, after)
    assert len(found) > 60 if command == "train" else found


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_stands_above_the_options_fits_its_width_but_for_commands(command, width, capsys, monkeypatch):
    lines = shown(command, width, capsys, monkeypatch)
    above = lines[: next(i for i, line in enumerate(lines) if line.startswith("╭"))]
    assert all(len(line) <= width for line in above if not line.startswith(" "))
    assert not any(a == b == "" for a, b in pairwise(above))


def test_a_sentence_of_several_source_lines_is_whole(capsys, monkeypatch):
    text = " ".join(" ".join(line.strip("│ ") for line in shown("train", 80, capsys, monkeypatch)).split())
    for sentence in (
        "server's http://… or a reward model, model:FOLDER. The task's own where none is given; 'task' among others",
        "ppo_clip 0.2, gspo 3e-4, cispo 1, gmpo 0.4. (default: None)",  # broken before a figure
        "a .jsonl, .parquet or .csv file of prompts, or owner/name of the hub; math:FILE for GSM8K's",
    ):
        assert sentence in text


def test_a_completion_script_is_left_as_it_is(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["watch", "--tyro-print-completion", "bash"])
    assert not stopped.value.code
    script = capsys.readouterr().out
    assert "complete -F _tyro_grouprl_watch grouprl watch\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
