"""Rollouts of every format: recognised, in grouprl's columns, with the groups that were drawn."""

from __future__ import annotations

import gzip
import json
import math
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import rollout_files as scene

from grouprl.errors import InputError
from grouprl.records import SCHEMA_VERSION, formats, read, rollout_schema, source

WRITERS = [
    scene.grouprl,
    scene.trl,
    scene.verl,
    scene.verl_uid,
    scene.verifiers,
    scene.open_instruct,
    scene.tinker_cookbook,
    scene.nemo_rl,
    scene.roll,
    scene.ms_swift,
    scene.areal,
    scene.art,
]
NO_TEXT = {"open_instruct", "tinker_cookbook"}
EXACT = "streaming"


def written(writer, folder: Path) -> Path:
    writer(folder)
    return folder


def partition(frame: pl.DataFrame, by: str) -> list[list[int]]:
    """Which rows share a value, in order of their first."""
    groups = frame.with_row_index("row").group_by(by, maintain_order=True).agg("row")
    return groups["row"].to_list()


DRAWN = partition(pl.DataFrame({"draw": [row.draw for row in scene.ROWS]}), "draw")


@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.__name__)
def test_every_format_gives_the_same_rows(writer, tmp_path):
    found = source(written(writer, tmp_path))
    assert found.format.name == writer.__name__.removesuffix("_uid")
    frame = found.rows().collect()
    schema = rollout_schema()
    assert {name: frame.schema[name] for name in schema} == schema
    assert frame["step"].to_list() == [row.step for row in scene.ROWS]
    assert frame["reward"].to_list() == [row.reward if row.scored else None for row in scene.ROWS]
    assert frame["scored"].to_list() == [row.scored for row in scene.ROWS]
    assert frame["schema_version"].unique().to_list() == [SCHEMA_VERSION]
    assert partition(frame, "group_id") == DRAWN
    if writer.__name__ not in NO_TEXT:
        assert frame["completion"].to_list() == [row.completion for row in scene.ROWS]
        said = [text.removeprefix("user: ") for text in frame["prompt"]]
        assert said == [row.prompt for row in scene.ROWS]
    if writer is not scene.tinker_cookbook:
        by_prompt = pl.DataFrame({"prompt": [row.prompt for row in scene.ROWS]})
        assert partition(frame, "prompt_id") == partition(by_prompt, "prompt")
    if frame["sample_index"].null_count() < frame.height:
        assert frame["sample_index"].to_list() == [row.place for row in scene.ROWS]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.__name__)
def test_streaming_and_projection_give_the_same(writer, tmp_path):
    """Also of a few columns, of some rows, and of the number of rows alone."""
    rows = read(written(writer, tmp_path))
    whole = rows.collect()
    assert rows.collect(engine="streaming").equals(whole)
    for names in (["reward"], ["group_id"], ["sample_index", "step"], ["schema_version"], ["advantage"]):
        assert rows.select(names).collect(engine="streaming").equals(whole.select(names))
    assert rows.select(pl.len()).collect(engine="streaming").item() == len(scene.ROWS)
    wrong = pl.col("reward") < 0.5
    assert rows.filter(wrong).select("group_id").collect().equals(whole.filter(wrong).select("group_id"))
    assert rows.head(5).collect(engine="streaming").equals(whole.head(5))
    assert rows.slice(3, 9).collect().equals(whole.slice(3, 9))


@pytest.mark.parametrize("format", formats.FORMATS.values(), ids=lambda f: f.name)
def test_only_what_its_own_writer_made_counts_as_verified(format, tmp_path):
    """And where it is not, reading says so."""
    recorded = Path(__file__).parent / "recorded" / format.name / "made_by.json"
    if recorded.exists():
        assert format.verified == json.loads(recorded.read_text(encoding="utf-8"))["version"]
    elif format.name not in ("grouprl", "table"):
        assert format.verified is None
        notes = source(written(getattr(scene, format.name), tmp_path)).notes()
        assert sum("unverified" in note for note in notes) == 1


def test_what_the_formats_have_besides(tmp_path):
    """Lengths, log-probs, advantages and reward components, by hand from the written values."""
    tinker = read(written(scene.tinker_cookbook, tmp_path / "a")).collect()
    assert tinker["prompt_tokens"].to_list() == [7] * 24
    assert (
        tinker["completion_tokens"].to_list() == [5] * 24
    )  # 3 + 2: what the environment said in between is no completion
    assert tinker["reward_per_step"].to_list() == [0.0] * 24
    nemo = read(written(scene.nemo_rl, tmp_path / "b")).collect()
    assert nemo["prompt_tokens"].to_list() == [len(row.prompt) for row in scene.ROWS]
    assert nemo["completion_tokens"].to_list() == [2] * 24
    assert nemo["advantage"].to_list() == [0.25] * 24
    assert nemo["logprob_mean_sampler"].to_list() == [-1.0] * 24
    assert nemo["logprob_mean_trainer"].to_list() == [-1.0] * 24
    traces = read(written(scene.verifiers, tmp_path / "c")).collect()
    assert (
        traces["prompt_tokens"].to_list() == [3] * 24
    )  # the template's token before the answer is the prompt's
    assert traces["completion_tokens"].to_list() == [2] * 24
    assert traces["advantage"].to_list() == [0.25] * 24
    assert traces["finish_reason"].unique().to_list() == ["stop"]
    assert traces["reward_right"].to_list() == traces["reward"].to_list()
    traces = read(written(scene.open_instruct, tmp_path / "d")).collect()
    assert traces["completion_tokens"].to_list() == [len(row.completion) for row in scene.ROWS]
    assert traces["logprob_mean_sampler"].to_list() == [-1.0] * 24
    assert traces["token_ids"].to_list() == [scene.tokens(row.completion) for row in scene.ROWS]
    areal = read(written(scene.areal, tmp_path / "e")).collect()
    assert areal.select("prompt_tokens", "completion_tokens").unique().rows() == [(7, 2)]


def test_a_file_a_glob_and_several_files(tmp_path):
    folder = written(scene.verl_uid, tmp_path)
    assert read(folder / "2.jsonl").collect()["step"].unique().to_list() == [2]
    assert read(str(folder / "*.jsonl")).collect().equals(read(folder).collect())
    assert read([folder / "1.jsonl", folder / "2.jsonl"]).collect().equals(read(folder).collect())


def test_files_are_in_the_order_of_their_numbers(tmp_path):
    for step in (10, 9, 100):
        scene.lines(
            tmp_path / f"{step}.jsonl", [{"input": "a", "output": "b", "score": 1, "step": step, "gts": ""}]
        )
    assert read(tmp_path).collect()["step"].to_list() == [9, 10, 100]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_a_table_with_named_columns(kind, tmp_path):
    path = tmp_path / f"rows.{kind}"
    frame = pl.DataFrame(
        {
            "uid": ["7", "7", "8", "8"],
            "value": [1.0, None, 0.5, float("nan")],
            "at": [1, 1, 1, 2],
            "style": [0.1, 0.2, 0.3, 0.4],
            "note": ["", "x, y", "ü", None],
        }
    )
    if kind == "jsonl":
        scene.lines(path, frame.to_dicts())
    elif kind == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if kind == "tsv" else ",")
    found = source(
        path, columns={"reward": "value", "group_id": "uid", "step": "at", "reward_style": "style"}
    )
    rows = found.rows().collect()
    assert rows["reward"].to_list() == [1.0, None, 0.5, None]
    assert rows["scored"].to_list() == [True, False, True, False]
    assert rows["group_id"].to_list() == ["1/7", "1/7", "1/8", "2/8"]
    assert rows["reward_style"].to_list() == [0.1, 0.2, 0.3, 0.4]
    assert rows["note"][1] == "x, y"
    assert found.notes() == []


def test_a_table_in_grouprls_names_needs_no_mapping(tmp_path):
    scene.lines(tmp_path / "a.jsonl", [{"group_id": 3, "reward": True}, {"group_id": 3, "reward": False}])
    rows = read(tmp_path / "a.jsonl").collect()
    assert rows.select("group_id", "reward").rows() == [("3", 1.0), ("3", 0.0)]


def test_a_table_without_groups(tmp_path):
    path = tmp_path / "a.jsonl"
    scene.lines(path, [{"reward": i} for i in range(6)])
    found = source(path)
    assert found.rows().collect()["group_id"].null_count() == 6
    assert any("group_size (--group-size)" in note for note in found.notes())
    rows = read(path, group_size=3).collect()
    assert partition(rows, "group_id") == [[0, 1, 2], [3, 4, 5]]


def test_several_rewards_with_weights(tmp_path):
    scene.lines(
        tmp_path / "a.jsonl", [{"group_id": "a", "right": 1, "short": 0.5}, {"group_id": "a", "right": None}]
    )
    rows = read(tmp_path / "a.jsonl", "table", rewards={"right": 2.0, "short": -1.0}).collect()
    assert rows["reward"].to_list() == [1.5, None]
    assert rows["reward_short"].to_list() == [0.5, None]


# What is wrong with the files


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_a_torn_last_line_is_left_out_and_said(pack, tmp_path):
    folder = written(scene.verl_uid, tmp_path)
    data = (folder / "2.jsonl").read_bytes()
    (folder / "2.jsonl").write_bytes(pack(data[:-9]))
    found = source(folder)
    assert found.rows().collect().height == 23
    assert [note for note in found.notes() if "cut short" in note and "2.jsonl, line 12" in note]


def test_gzip_and_zstd_by_content(tmp_path):
    """Whatever the name says; and a compressed file that ends too early is read as far as it goes."""
    zstd = pytest.importorskip("backports.zstd")
    folder = written(scene.verl_uid, tmp_path / "plain")
    expected = read(folder).collect()
    for pack, suffix in ((gzip.compress, ".gz"), (zstd.compress, ".zst"), (zstd.compress, "")):
        packed = tmp_path / f"packed{suffix}"
        packed.mkdir(exist_ok=True)
        for step in scene.STEPS:
            data = (folder / f"{step}.jsonl").read_bytes()
            half = data.index(b"\n", len(data) // 2) + 1
            (packed / f"{step}.jsonl{suffix}").write_bytes(pack(data[:half]) + pack(data[half:]))
        assert read(packed).collect().equals(expected)
        last = packed / f"2.jsonl{suffix}"
        last.write_bytes(last.read_bytes()[:-40])
        assert 12 <= read(packed).collect().height < 24


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{'input': 1}\n", "not JSON"),
        (b"[1, 2]\n", "a list, expected one JSON object a line"),
        (
            b'{"input": "a", "output": "b", "score": "high", "step": 2}\n',
            "score is 'high', expected a number or null",
        ),
        (b'{"input": "a", "output": "b", "score": 1, "step": 2.5}\n', "step is 2.5, expected a whole number"),
        (b'\xff{"input": "a"}\n', "not UTF-8"),
        (b'{"input": "a", "output": "b", "score": {"a": 1}, "step": 2}\n', "score is an object"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line, says, tmp_path):
    """Where it is, and what was expected. It is found when rows are collected."""
    folder = written(scene.verl, tmp_path)
    path = folder / "2.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*kept[:70], *kept, *[b"\n"] * 100, line, *kept]))
    for engine in ("in-memory", "streaming"):
        with pytest.raises(InputError, match=r"2\.jsonl, line 125: ") as caught:
            read(folder).collect(engine=engine)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_nan_infinity_and_none_are_unscored(tmp_path):
    path = tmp_path / "1.jsonl"
    scores = ["NaN", "Infinity", "-Infinity", "null", "1e400", "0", "true", "1.5"]
    path.write_text(
        "".join(f'{{"input": "a", "output": "b", "gts": "", "score": {s}, "step": 1}}\n' for s in scores)
    )
    rows = read(path).collect()
    assert rows["reward"].to_list() == [None] * 5 + [0.0, 1.0, 1.5]
    assert rows["scored"].to_list() == [False] * 5 + [True] * 3


def test_steps_with_other_columns(tmp_path):
    """A column that a step lacks is null there, and numbers are as wide as they need to be."""
    base = {"input": "a", "output": "b", "gts": "x", "score": 1}
    scene.lines(tmp_path / "1.jsonl", [base | {"step": 1, "acc": True}] * 2)
    scene.lines(tmp_path / "2.jsonl", [base | {"step": 2, "acc": 0.5, "pred": "4"}] * 2)
    scene.lines(
        tmp_path / "3.jsonl", [{"input": "a", "output": "b", "score": 0.5, "step": 3, "pred": ["4"]}] * 2
    )
    rows = read(tmp_path).collect()
    assert rows["acc"].to_list() == [1.0, 1.0, 0.5, 0.5, None, None]
    assert rows["pred"].to_list() == [None, None, "4", "4", '["4"]', '["4"]']
    assert rows["gts"].to_list() == ["x"] * 4 + [None] * 2


def test_parquet_steps_with_other_columns(tmp_path):
    folder = written(scene.trl, tmp_path)
    path = folder / "completions" / "completions_00002.parquet"
    frame = pl.read_parquet(path).with_columns(style=pl.lit(0.5), step=pl.col("step").cast(pl.Int32))
    frame.write_parquet(path)
    rows = read(folder).collect()
    assert rows["reward_style"].to_list() == [None] * 12 + [0.5] * 12
    assert rows["reward"][12] == 0.5
    assert partition(rows, "group_id") == DRAWN


def test_an_odd_value_in_an_extra_column_is_null_and_said(tmp_path):
    base = {"input": "a", "output": "b", "gts": "x", "score": 1, "step": 1}
    scene.lines(tmp_path / "1.jsonl", [base | {"acc": 1.0}] * 80 + [base | {"acc": "high"}])
    found = source(tmp_path / "1.jsonl")
    assert found.rows().collect()["acc"].null_count() == 1
    assert any("'acc'" in note and "line 81" in note for note in found.notes())


def test_half_a_surrogate_pair_does_not_cut_the_text(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text('{"input": "a\\ud83d", "output": "\\ud83d\\ude00b", "gts": "", "score": 1, "step": 1}\n')
    rows = read(path).collect()
    assert rows["prompt"].to_list() == ["a\ufffd"]
    assert rows["completion"].to_list() == ["😀b"]


def test_an_empty_file_among_others_holds_nothing(tmp_path):
    folder = written(scene.verl, tmp_path)
    expected = read(folder).collect()
    (folder / "0.jsonl").write_text("")
    (folder / "3.jsonl").write_text('{"input": "a", "outp')
    found = source(folder)
    assert found.rows().collect().equals(expected)
    assert any("3.jsonl, line 1" in note for note in found.notes())


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_packed_csv(pack, tmp_path):
    path = tmp_path / {"gzip": "a.csv.gz", "zstd": "a.csv.zst"}[pack]
    data = b"group_id,reward\na,1\na,0\n"
    packer = gzip if pack == "gzip" else pytest.importorskip("backports.zstd")
    path.write_bytes(packer.compress(data))
    assert read(path).collect()["reward"].to_list() == [1.0, 0.0]


def test_rows_of_unequal_columns_name_the_line(tmp_path):
    scene.lines(
        tmp_path / "completions.jsonl",
        [{"step": ["1"], "prompt": ["a"], "completion": ["b"], "advantages": [0], "r": [1]}],
    )
    scene.lines(
        tmp_path / "completions.jsonl",
        [{"step": ["2"], "prompt": ["a"], "completion": [], "advantages": [], "r": []}],
    )
    with pytest.raises(InputError, match="columns of unequal length"):
        read(tmp_path).collect()


def test_a_newer_grouprl_file_with_other_columns(tmp_path):
    """Columns of its own are kept, those it lacks are null, integers where floats are expected are floats."""
    frame = pl.DataFrame(
        {
            "schema_version": [2, 2],
            "step": [1, 1],
            "group_id": ["1/a", "1/a"],
            "sample_index": [0, 1],
            "reward": [1, 0],
            "scored": [True, True],
            "advantage": [1.0, -1.0],
            "used": [True, False],
            "reward_right": [1, 0],
            "staleness": [[1, 2], None],
        }
    )
    frame.write_parquet(tmp_path / "step_00001.parquet")
    found = source(tmp_path)
    rows = found.rows().collect()
    assert rows["used"].to_list() == [True, False]
    assert rows["staleness"].to_list() == [[1, 2], None]
    assert rows["reward"].dtype == rows["reward_right"].dtype == pl.Float64
    assert rows["finish_reason"].null_count() == 2
    assert rows["schema_version"].to_list() == [2, 2]


def test_a_damaged_parquet_file_is_named(tmp_path):
    folder = written(scene.trl, tmp_path)
    path = folder / "completions" / "completions_00002.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"completions_00002\.parquet: cannot be read"):
        read(folder).collect()


def test_a_bad_number_in_csv_names_the_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("group_id,reward\n" + "a,1\n" * 5 + "a,high\n")
    with pytest.raises(InputError, match=r"a\.csv, row 7: reward is 'high', expected a number"):
        read(path).collect()


# What is asked for that cannot be


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no file matches"):
        read(tmp_path / "*.jsonl")
    with pytest.raises(InputError, match="no rollouts found, expected rollouts/step_"):
        read(tmp_path)
    (tmp_path / "1.jsonl").write_text("")
    with pytest.raises(InputError, match="no known format"):
        read(tmp_path / "1.jsonl")
    (tmp_path / "log.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(InputError, match=r"no known format of rollouts \(columns loss\)"):
        read(tmp_path / "log.jsonl")


def test_options_that_do_not_fit(tmp_path):
    folder = written(scene.verl, tmp_path)
    with pytest.raises(InputError, match="no format 'verll', expected one of grouprl, trl"):
        read(folder, "verll")
    with pytest.raises(InputError, match="group_size is 0"):
        read(folder, group_size=0)
    with pytest.raises(InputError, match="not of format trl"):
        read(folder / "1.jsonl", "trl")
    with pytest.raises(InputError, match="no column 'points', expected one of 'input'"):
        read(folder / "1.jsonl", columns={"reward": "points"})
    with pytest.raises(InputError, match="'rewards' is no column of grouprl's"):
        read(folder / "1.jsonl", columns={"rewards": "score"})


def test_a_folder_with_two_formats_is_asked_about(tmp_path):
    written(scene.verl, tmp_path)
    written(scene.trl, tmp_path)
    with pytest.raises(InputError, match="rollouts of trl and verl"):
        read(tmp_path)
    assert source(tmp_path, "trl").format.name == "trl"


def test_files_of_two_formats_are_refused(tmp_path):
    written(scene.verl, tmp_path)
    scene.areal(tmp_path / "areal")
    with pytest.raises(InputError, match="not of format"):
        read([tmp_path / "1.jsonl", next(tmp_path.glob("areal/rollout/1/*.jsonl"))])


def test_forced_formats(tmp_path):
    """A file that two formats could read is read as the one that is named."""
    path = tmp_path / "1.jsonl"
    scene.lines(path, [{"input": "a", "output": "b", "gts": "", "score": 1.0, "step": 1, "reward": 2.0}])
    assert read(path).collect()["reward"].to_list() == [1.0]
    assert read(path, "table").collect()["reward"].to_list() == [2.0]


def test_math_of_the_scene():
    """The scene has what the tests rely on: one unscored row, a group without spread, a prompt drawn twice in a row."""
    assert sum(math.isnan(row.reward) for row in scene.ROWS) == 1
    assert len({row.reward for row in scene.ROWS if row.draw == "b"}) == 1
    assert scene.ROWS[0].prompt == scene.ROWS[4].prompt


DOCS = Path(__file__).parents[2] / "docs" / "records.md"


@pytest.mark.parametrize("format", formats.FORMATS.values(), ids=lambda f: f.name)
def test_the_docs_say_what_was_checked(format):
    """A line for each format, with the version that wrote the files of the tests, or that there is none."""
    (line,) = [
        line
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{format.name}` |")
    ]
    checked = line.split("|")[3]
    if format.verified is None:
        assert "unverified" in checked
    elif format.name not in ("grouprl", "table"):
        assert format.verified in checked
        assert "unverified" not in checked


def test_a_page_that_is_damaged_is_an_error_of_ours_in_collecting(tmp_path):
    """Each byte before the footer changed in turn: rows, or an InputError that names the file."""
    path = tmp_path / "rollouts.parquet"
    pl.DataFrame({"group_id": ["a", "b"], "reward": [0.0, 1.0]}).write_parquet(path)
    whole, refused = path.read_bytes(), 0
    for place in range(4, len(whole) // 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read(path, "table", columns={"reward": "reward", "group_id": "group_id"}).collect()
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017  (either outcome is right)
            refused += 1
    assert refused


@pytest.mark.parametrize("first", [{}, {"prompt": ["p"]}, {"completion": ["a"]}])
def test_a_first_line_without_what_others_have_is_no_crash(tmp_path, first):
    """Columns are known from the first lines together; any one of them may lack some."""
    path = tmp_path / "completions.jsonl"
    second = {"prompt": ["p", "p"], "completion": ["a", "b"], "advantages": [1.0, -1.0], "reward": [1.0, 0.0]}
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second)))
    with pytest.raises(InputError, match=r"completions.jsonl"):
        read(path).collect()


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("nemo_rl", {"rewards": [1.0], "input_lengths": [1e999], "idx": [0], "content": ["a"]}),
        ("nemo_rl", {"rewards": [], "input_lengths": [], "idx": [], "content": []}),
        ("tinker_cookbook", {"group_idx": 0, "traj_idx": 0, "total_reward": 1.0, "steps": [[]]}),
        ("verifiers", {"traces": [1]}),
        ("verifiers", {"traces": [{"calls": [3], "nodes": [{"sampled": True, "mask": "ab"}]}]}),
    ],
)
def test_a_line_of_another_form_is_an_error_of_ours(tmp_path, format, line):
    (path := tmp_path / "t1.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError) as caught:
        read(path, format).collect()
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_in_a_name_does_not_end_the_reading(tmp_path):
    (path := tmp_path / "a.jsonl").write_text(
        '{"group_id": "a", "reward": 1.0, "x\\ud83d": {"y\\udc00": 2}}\n'
    )
    frame = read(path, "table", columns={"reward": "reward", "group_id": "group_id"}).collect()
    assert frame["x\ufffd"].to_list() == ['{"y\ufffd": 2}']


TOLD_BY = [
    ["prompt_idx", "sample_idx", "response_tokens", "reward"],
    ["group_idx", "traj_idx", "total_reward", "steps"],
    ["rewards", "input_lengths", "idx"],
    ["task_id", "sample_idx", "seqlen", "prompt_len", "reward"],
    ["input", "output", "score", "step"],
    ["responses", "scores"],
    ["traces"],
    ["prompt", "completion", "gen_step"],
]
"""The columns by which formats are told."""


@pytest.mark.parametrize("names", TOLD_BY)
@pytest.mark.parametrize("others", [None, 1, "a", [1.0]])
def test_what_only_begins_like_a_format_is_read_or_refused(tmp_path, names, others):
    """These columns and nothing else, each in turn of a kind of its own."""
    path = tmp_path / "a_step_1.jsonl"
    for odd in names:
        for value in (None, 1, "a", [], [1.0], [None], ["a"], {}, [{}], True):
            path.write_text(json.dumps(dict.fromkeys(names, others) | {odd: value}) + "\n")
            with suppress(InputError):  # anything else that is raised is a crash
                assert read(path).collect().height in (0, 1)
