"""`grouprl advantages`: values against sums done by hand, guesses, refusals, the summary, a stop half-way."""

import json
import subprocess
import sys
from fractions import Fraction
from math import sqrt
from pathlib import Path

import polars as pl
import pytest

from grouprl import advantages
from grouprl.cli.main import main
from grouprl.records import RunFolder, atomic_write, rollout_rows, write_rollouts
from grouprl.types import Completion, Group, Prompt

ROWS = [
    {"uid": "a", "reward": 1.0},
    {"uid": "b", "reward": 0.0},
    {"uid": "a", "reward": 2.0},
    {"uid": "c", "reward": 0.1},
    {"uid": "b", "reward": None},
    {"uid": "c", "reward": 0.1},
    {"uid": "a", "reward": 3.0},
    {"uid": "c", "reward": 0.1},
]
GRPO = [
    -sqrt(1.5),
    0,
    0,
    0,
    0,
    0,
    sqrt(1.5),
    0,
]  # a: deviations −1, 0, 1 over √(2/3); b has one scored row; c no spread


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, rows):
    """The rows as a file of the kind of its name."""
    frame = pl.DataFrame(rows)
    kinds = {"jsonl": frame.write_ndjson, "csv": frame.write_csv, "parquet": frame.write_parquet}
    kinds[name.rpartition(".")[2]](name)
    return name


def column(name, of="advantage"):
    kinds = {"jsonl": pl.read_ndjson, "csv": pl.read_csv, "parquet": pl.read_parquet}
    return kinds[name.rpartition(".")[2]](name)[of].to_list()


def computed(rows, *options, name="in.jsonl"):
    """The advantages that the command writes for these rows."""
    write(name, rows)
    out = f"out.{name.rpartition('.')[2]}"
    assert main(["advantages", name, "-o", out, *options]) == 0
    return column(out)


def fails(capsys, *arguments):
    """Run, expect exit code 2 and nothing new in the folder; returns the one line on stderr."""
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    capsys.readouterr()
    assert main(["advantages", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("grouprl: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    return captured.err


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_interleaved_groups(kind):
    assert computed(ROWS, "--eps", "0", name=f"in.{kind}") == pytest.approx(GRPO)
    assert computed(ROWS, name=f"in.{kind}")[0] == pytest.approx(-1 / (sqrt(Fraction(2, 3)) + 1e-6))


def test_a_group_without_spread_gets_exactly_0():
    """Seven times 100.1, whose mean is not 100.1 in the textbook's arithmetic."""
    assert computed([{"group": 1, "reward": 100.1}] * 7) == [0.0] * 7


def test_in_place():
    write("in.jsonl", ROWS)
    before = Path("in.jsonl").read_text().splitlines()
    assert main(["advantages", "in.jsonl", "-o", "in.jsonl", "--eps", "0"]) == 0
    after = Path("in.jsonl").read_text().splitlines()
    assert [line.rpartition(', "advantage"')[0] + "}" for line in after] == before
    assert column("in.jsonl") == pytest.approx(GRPO)
    assert main(["advantages", "in.jsonl", "-o", "in.jsonl", "--estimator", "dr_grpo", "--overwrite"]) == 0
    assert column("in.jsonl") == pytest.approx([-1, 0, 0, 0, 0, 0, 1, 0])
    assert [p.name for p in Path().iterdir()] == ["in.jsonl"]


FOUR = [{"group": 0, "reward": r, "length": n} for r, n in [(1, 1), (0, 2), (0, 3), (0, 4)]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--estimator", "rloo"], [1, -1 / 3, -1 / 3, -1 / 3]),
        (["--estimator", "maxrl"], [3, -1, -1, -1]),
        (["--ddof", "1", "--eps", "0"], [1.5, -0.5, -0.5, -0.5]),
        (["--convention", "trl"], [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]),  # sample std 0.5, eps 1e-4
        # the longest baseline: Σ length · R / Σ length = 1/10
        (["--estimator", "opo"], [0.9, -0.1, -0.1, -0.1]),
        (["--estimator", "opo", "--length-column", "length"], [0.9, -0.1, -0.1, -0.1]),
        # ρ = 1 − C(3, 2)/C(4, 2) = 1/2, s = 1/2: right (1 − ρ)/s = 1, wrong −1/3 of it
        (["--estimator", "pass_at_k", "--estimator-option", "k=2"], [1, -1 / 3, -1 / 3, -1 / 3]),
        # R_max joins: mean 2/5, std √(6/25)
        (
            ["--estimator", "ngrpo", "--estimator-option", "max_reward=1", "--eps", "0"],
            [0.6 / sqrt(0.24), *[-0.4 / sqrt(0.24)] * 3],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)
def test_estimators_against_sums_by_hand(options, expected):
    assert computed(FOUR, *options) == pytest.approx(expected, rel=1e-6)


OWN = """
from grouprl import advantages

@advantages.register("{name}", needs={{"lengths"}})
def signs(rewards, group_ids=None, *, lengths, size=1.0):
    {body}

def unregistered(rewards, group_ids=None):
    return rewards
"""


def test_an_estimator_of_ones_own(capsys):
    body = "return advantages.dr_grpo(rewards, group_ids) * lengths * size"
    Path("mine.py").write_text(OWN.format(name="mine_for_advantages", body=body))
    try:
        options = ["--estimator", "mine.py:signs", "--estimator-option", "size=2"]
        assert computed(FOUR, *options) == pytest.approx([1.5, -1.0, -1.5, -2.0])
    finally:
        advantages.unregister("mine_for_advantages")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise KeyError('oh')", "raised KeyError: 'oh'"),
        ("return rewards[:1]", "gave float64 of shape (1,), expected one finite float for each of 2 rewards"),
        ("return rewards / 0", "expected one finite float"),
        ("return rewards > 0", "gave bool"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
def test_an_estimator_of_ones_own_that_is_broken(capsys, body, expected):
    write("in.jsonl", FOUR)
    Path("broken.py").write_text(OWN.format(name="broken_for_advantages", body=body))
    try:
        assert expected in fails(capsys, "in.jsonl", "-o", "o.jsonl", "--estimator", "broken.py:signs")
        spec = "broken.py:unregistered"
        assert "not registered" in fails(capsys, "in.jsonl", "-o", "o.jsonl", "--estimator", spec)
    finally:
        advantages.unregister("broken_for_advantages")


def test_a_greedy_reward():
    rows = [{"group": 0, "reward": 1.0, "greedy": 0.25}, {"group": 1, "reward": 0.0, "greedy": 1.0}]
    assert computed(rows, "--estimator", "remax", "--greedy-column", "greedy") == [0.75, -1.0]


def test_components():
    """gdpo's own example: a sum of scores ±1 and ±1, over the batch's std of them."""
    rows = [
        {"group": 0, "reward": 2.0, "right": 1.0, "formatted": 1.0},
        {"group": 0, "reward": 0.0, "right": 0.0, "formatted": 0.0},
        {"group": 1, "reward": 1.0, "right": 0.0, "formatted": 1.0},
        {"group": 1, "reward": 0.0, "right": 0.0, "formatted": 0.0},
    ]
    std = sqrt((4 + 4 + 1 + 1) / 4)  # of 2, −2, 1, −1
    given = computed(rows, "--estimator", "gdpo", "--component-columns", "right", "formatted")
    assert given == pytest.approx([2 / std, -2 / std, 1 / std, -1 / std], rel=1e-4)


def test_every_estimator_is_taken_or_refused_in_one_line(capsys):
    """Those that rewards and groups are enough for run; of the others the line says what is missing."""
    missing = {
        "opo": "no column looks like the length",
        "remax": "remax needs greedy_rewards",
        "ngrpo": "ngrpo needs the task's highest reward",
        "gdpo": "gdpo needs components",
        "spo": "spo needs earlier calls",
        "gigpo": "gigpo needs steps and tokens",
        "gae": "gae needs steps and tokens",
    }
    write("in.jsonl", [{"group": 0, "reward": r} for r in (1.0, 0.0)])
    for name in advantages.names():
        if name in missing:
            assert missing[name] in fails(capsys, "in.jsonl", "-o", "o.jsonl", "--estimator", name)
        else:
            assert main(["advantages", "in.jsonl", "-o", "out.jsonl", "--estimator", name]) == 0


def test_lengths_that_an_estimator_can_do_without():
    """Whitened over completions, or over tokens: 1 once and 0 three times, or 1 once and 0 nine times."""
    assert computed(FOUR, "--estimator", "reinforce_plus_plus", "--eps", "0") == pytest.approx(
        [0.75 / sqrt(3 / 16), *[-0.25 / sqrt(3 / 16)] * 3]
    )
    options = ["--estimator", "reinforce_plus_plus", "--eps", "0", "--length-column", "length"]
    assert computed(FOUR, *options) == pytest.approx([0.9 / sqrt(0.09), *[-0.1 / sqrt(0.09)] * 3])


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (["score", "prompt_id"], [], ("score", ["prompt_id"])),
        (["reward", "score", "group_id", "prompt_id"], [], ("reward", ["group_id"])),
        (["acc", "key"], ["--reward-column", "acc", "--group-column", "key"], ("acc", ["key"])),
        (["reward", "step", "uid"], ["--group-column", "step", "uid"], ("reward", ["step", "uid"])),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_columns_are_guessed_or_named(capsys, kind, names, options, expected):
    write(f"in.{kind}", [dict.fromkeys(names, 1)])
    assert main(["advantages", f"in.{kind}", "-o", f"out.{kind}", "--json", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["reward_column"], record["group_column"]) == expected


def test_a_run(capsys):
    """All steps of a run in one file, with another estimator beside the one it was trained with."""
    run = RunFolder.create("run")
    atomic_write(run.config_path, b"steps = 2\n")
    for step in (1, 2):
        done = Completion((1,), (-0.5,), (True,), "4", "stop")
        group = Group(f"{step}/p", Prompt("p", "2 + 2?"), "2 + 2?", (7,), (done, done))
        rows = rollout_rows(step, [group], rewards=[1.0, 0.0], advantages=[1.0, -1.0])
        write_rollouts(run.rollouts_path(step), rows)
    options = ["--advantage-column", "rloo", "--estimator", "rloo"]
    assert main(["advantages", "run", "-o", "all.parquet", *options]) == 0
    frame = pl.read_parquet("all.parquet")
    assert frame["step"].to_list() == [1, 1, 2, 2]
    assert frame["rloo"].to_list() == [1.0, -1.0, 1.0, -1.0]
    assert "has a column 'advantage' already" in fails(capsys, "run", "-o", "x.parquet")
    Path("empty").mkdir()
    assert "has no config.toml" in fails(capsys, "empty", "-o", "x.parquet")


SUMMARY = {
    "rows": 8,
    "unscored": 1,
    "groups": 3,
    "groups_informative": 1,
    "groups_all_high": 0,
    "groups_all_low": 1,
    "groups_single": 1,
    "groups_unscored": 0,
    "group_size_min": 2,
    "group_size_median": 3.0,
    "group_size_max": 3,
}


def test_the_summary(capsys):
    write("in.csv", ROWS)
    assert main(["advantages", "in.csv", "-o", "out.csv", "--eps", "0"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for expected in (
        "out.csv: 8 rows",
        "advantage = grpo of reward, grouped by uid",
        "1 unscored: advantage 0",
        "of 2 to 3 rows, median 3",
        "33 %: rewards differ: these teach",
        "1.225",
    ):
        assert expected in out
    assert main(["advantages", "in.csv", "-o", "out.csv", "--eps", "0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {key: record[key] for key in SUMMARY} == SUMMARY
    assert record["reward_mean"] == pytest.approx(6.3 / 7)
    assert record["reward_group_std"] == pytest.approx(
        sqrt(2 / 3) / 3
    )  # of a; b's one and c's equal ones have none
    assert record["advantage_max_abs"] == pytest.approx(sqrt(1.5))


def test_the_summary_of_nothing_scored(capsys):
    write("in.csv", [{"uid": "a", "reward": ""}, {"uid": "a", "reward": "nan"}])
    assert main(["advantages", "in.csv", "-o", "out.csv", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["unscored"], record["groups_unscored"], record["reward_mean"]) == (2, 1, None)
    assert column("out.csv") == [0.0, 0.0]
    assert main(["advantages", "in.csv", "-o", "out.csv"]) == 0
    assert "no scored row" in capsys.readouterr().out


def test_a_batch_estimator_says_that_the_file_is_its_batch(capsys):
    computed(ROWS, "--estimator", "batch_std")
    assert "the whole file counted as one batch" in capsys.readouterr().out


def test_untrusted_names_do_not_reach_the_terminal(capsys):
    rows = '{"\\u001b[31mreward": 1, "group": 0}\n'
    Path("in.jsonl").write_text(rows)
    line = fails(capsys, "in.jsonl", "-o", "out.jsonl")
    assert "\x1b" not in line
    assert main(["advantages", "in.jsonl", "-o", "out.jsonl", "--reward-column", "\x1b[31mreward"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "required"),
        (["in.jsonl"], "required"),
        (["nowhere.jsonl", "-o", "o.jsonl"], "no such file"),
        (["in.txt", "-o", "o.jsonl"], "unknown kind of file"),
        (["in.jsonl", "-o", "o.txt"], "unknown kind of file"),
        (["in.jsonl", "-o", "o.parquet"], "types would have to be guessed"),
        (["in.jsonl", "-o", "."], "unknown kind of file"),
        (["in.jsonl", "-o", "o.jsonl", "--reward-column", "rewrd"], "no column 'rewrd', expected one of 'uid'"),
        (["two.jsonl", "-o", "o.jsonl"], "score and rewards may each be the reward|rewards and score"),
        (["steps.jsonl", "-o", "o.jsonl"], "prompt_id may come back in each step; say --group-column step prompt_id"),
        (["none.jsonl", "-o", "o.jsonl"], "no column looks like the reward"),
        (["in.jsonl", "-o", "o.jsonl", "--advantage-column", "reward", "--overwrite"], "is read too"),
        (["in.jsonl", "-o", "o.jsonl", "--advantage-column", ""], "read too or empty"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "grop"], "did you mean 'grpo'"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "gae"], "steps and tokens"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "spo"], "earlier calls"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "opo"], "no column looks like the length"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "ngrpo"], "add --estimator-option max_reward"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator", "rloo", "--eps", "1"], "unknown option 'eps'; its"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator-option", "k"], "expected NAME=VALUE"),
        (["in.jsonl", "-o", "o.jsonl", "--estimator-option", "k=4"], "'grpo': unknown option 'k'"),
        (["in.jsonl", "-o", "o.jsonl", "--length-column", "uid"], "no use for --length-column"),
        (["in.jsonl", "-o", "o.jsonl", "--eps", "-1"], "eps is -1.0"),
        (["in.jsonl", "-o", "o.jsonl", "--ddof", "2"], "ddof is 2"),
        (["in.jsonl", "-o", "o.jsonl", "--convention", "nobody"], "convention is 'nobody'"),
        (["in.jsonl", "-o", "o.jsonl", "--success-reward", "nan"], "--success-reward is nan"),
        (["in.jsonl", "-o", "o.jsonl", "--overwrit"], "did you mean --overwrite"),
        (["broken.jsonl", "-o", "o.jsonl", "--eps", "nan"], "eps is nan"),  # before the file is read
        (["broken.jsonl", "-o", "there.jsonl"], "broken.jsonl, line 2: not JSON"),
        (["in.jsonl", "-o", "in.jsonl/o.jsonl"], "can be written to"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_everything(capsys, arguments, expected):
    write("in.jsonl", ROWS)
    write("two.jsonl", [{"uid": 1, "score": 1, "rewards": 1}])
    write("steps.jsonl", [{"step": 1, "prompt_id": 1, "reward": 1}])
    write("none.jsonl", [{"uid": 1, "grade": 1}])
    Path("in.txt").write_text("x")
    Path("there.jsonl").write_text("what was there")
    Path("broken.jsonl").write_text('{"uid": 1, "reward": 1}\n{"uid": 1, "rew\n')
    line = fails(capsys, *arguments)
    assert any(one in line for one in expected.split("|"))


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["advantages", "--help"])
    out = capsys.readouterr().out
    assert "grouprl advantages rollouts.jsonl -o with_advantages.jsonl" in out
    assert main(["--help"]) == 0
    assert "advantages  add advantages to the rows" in capsys.readouterr().out


STOPPED = """
import os, signal, sys
from grouprl.cli.main import main
os.replace = lambda *_: (os.kill(os.getpid(), signal.{name}), __import__("time").sleep(30))
sys.exit(main(["advantages", "in.jsonl", "-o", "out.jsonl"]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_half_way_leaves_what_was_there(name):
    write("in.jsonl", ROWS)
    Path("out.jsonl").write_text("what was there")
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(name=name)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert Path("out.jsonl").read_text() == "what was there"
    assert sorted(p.name for p in Path().iterdir()) == ["in.jsonl", "out.jsonl"]
