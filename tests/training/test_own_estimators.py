"""A user's own estimator: named by its file, recorded, resumed; and every way in which it can be wrong."""

import json

import polars as pl
import pytest
import torch
from runs import StopAfter, equal_runs, recomputed, step_rows, unload

from grouprl import advantages
from grouprl.errors import ConfigError, EstimatorError, RunError
from grouprl.training import resume, train

pytestmark = pytest.mark.usefixtures("forget")

OWN = '''
import torch
from grouprl import advantages


@advantages.register("own_{tag}", laws={{"single_is_zero"}})
def signs(rewards, group_ids=None, *, keep=1.0, valid=None):
    """+1 above the group's mean, -keep below it."""
    above = advantages.dr_grpo(rewards, group_ids, valid=valid)
    return torch.where(above < 0, keep * above.sign(), above.sign())


@advantages.register("running_{tag}", scope="stateful")
class Running:
    """Each reward against the mean of all earlier ones of its prompt."""

    def __init__(self, *, start=0.5):
        self.start, self.seen = start, {{}}

    def __call__(self, rewards, group_ids=None, *, valid=None):
        result = []
        for reward, prompt in zip(rewards.tolist(), group_ids):
            total, count = self.seen.get(prompt, (self.start, 1))
            result.append(reward - total / count)
            self.seen[prompt] = (total + reward, count + 1)
        return result

    def state_dict(self):
        return {{"seen": self.seen}}

    def load_state_dict(self, state):
        self.seen = {{prompt: tuple(pair) for prompt, pair in state["seen"].items()}}
'''


@pytest.fixture
def own(tmp_path):
    """A file of a user's estimators; the name within is its folder's, so that no two tests share one."""
    path = tmp_path / "my_estimators.py"
    path.write_text(OWN.format(tag="x"))
    return path


@pytest.mark.parametrize(("function", "options"), [("signs", {"keep": 0.5}), ("Running", {"start": 0.25})])
def test_ones_own_estimator_trains_is_recorded_and_resumes(few, own, rewards_file, function, options):
    changes = {
        "advantage": {"estimator": f"{own}:{function}", "options": options},
        "reward": [f"{rewards_file}:lowercase"],
    }
    whole = train(few("whole", **changes))
    estimator = advantages.get({"signs": "own_x", "Running": "running_x"}[function])
    call = estimator.start(**options)
    for step in range(1, 5):
        rows = step_rows(whole, step)
        assert set(rows["advantage_estimator"]) == {estimator.name}
        assert set(rows["advantage_options"]) == {json.dumps(options)}
        expected = torch.as_tensor(recomputed(rows, call, estimator)).float().tolist()
        assert rows["advantage"].to_list() == expected
        assert any(expected)
    with pytest.raises(KeyboardInterrupt):
        train(few("cut", **changes), listener=StopAfter(1))
    equal_runs(resume(whole.path.parent / "cut"), whole)


def test_a_registered_name_is_enough_in_python(few):
    @advantages.register("mine_in_python")
    def mine(rewards, group_ids=None):
        return rewards - rewards.nanmean()

    run = train(few(steps=1, advantage={"estimator": "mine_in_python"}))
    assert set(step_rows(run, 1)["advantage_estimator"]) == {"mine_in_python"}
    rows = step_rows(run, 1)
    assert rows.filter(~pl.col("scored"))["advantage"].unique().to_list() == [0.0]


BROKEN = """
from grouprl import advantages

calls = []

@advantages.register("broken_{tag}"{more})
def broken(rewards, group_ids=None, *, {keywords}):
    calls.append(len(rewards))
    {body}

number = 3
"""


@pytest.mark.parametrize(
    ("body", "more", "keywords", "message"),
    [
        ("return 1 / 0", "", "valid=None", r"raised ZeroDivisionError: .*my_broken.py:9\) on made-up"),
        ("return rewards * float('nan')", "", "valid=None", "returned nan .* for completion 0, whose reward is 0"),
        ("return rewards[:3]", "", "valid=None", r"returned shape \(3,\) .* expected 12 finite numbers"),
        ("return rewards[:, None]", "", "valid=None", r"returned shape \(12, 1\)"),
        ("return None", "", "valid=None", "returned a NoneType"),
        ("return 'text'", "", "valid=None", "returned a str"),
        ("return rewards", "", "tau", "option 'tau' is missing, expected a value"),
        ("return rewards", "", "lengths", "takes 'lengths' without declaring it"),
        ("return rewards", ', needs={"lengths"}', "valid=None", "unexpected keyword argument 'lengths'"),
        ("return rewards", ', needs={"values"}', "values", "needs a critic"),
        ("return rewards", ', scope="token"', "valid=None", "looks at steps or tokens"),
        ("return rewards", ', scope="stateful"', "valid=None", "stateful and takes rewards at once"),
        ("return lambda rewards, group_ids: rewards", ', scope="stateful"', "x=1", "its state cannot be saved"),
    ],
)  # fmt: skip
def test_a_broken_estimator_is_refused_before_the_run(few, tmp_path, body, more, keywords, message):
    path = tmp_path / "my_broken.py"
    text = BROKEN.format(tag="b", more=more, keywords=keywords, body=body)
    if keywords == "x=1":
        text = text.replace("(rewards, group_ids=None, *, x=1)", "(*, x=1)").replace("len(rewards)", "x")
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        train(few(advantage={"estimator": f"{path}:broken"}))
    assert "'broken_b'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return rewards if len(calls) < 4 else [1 / 0]",
            "'broken_b': raised ZeroDivisionError: .*at step 3",
        ),
        (
            "return rewards if len(calls) < 4 else rewards[1:]",
            r"'broken_b': returned shape \(11,\) at step 3",
        ),
        (
            "return rewards if len(calls) < 4 else rewards / 0",
            "'broken_b': returned .* at step 3 for completion",
        ),
    ],
)
def test_an_estimator_that_breaks_later_stops_the_run_with_the_last_step_saved(few, tmp_path, body, message):
    path = tmp_path / "my_broken.py"
    path.write_text(BROKEN.format(tag="b", more="", keywords="valid=None", body=body))
    with pytest.raises(EstimatorError, match=message) as caught:
        train(few(advantage={"estimator": f"{path}:broken"}))
    assert "step 2 is saved: go on with grouprl train --resume" in caught.value.__notes__[-1]
    path.write_text(path.read_text().replace(body, "return rewards"))
    unload(["broken_b"])
    assert len(resume(tmp_path / "run").metrics) == 4


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("nothing", "no 'nothing' in"),
        ("number", "is of type int and not registered"),
        ("signz", "did you mean 'signs'"),
    ],
)
def test_a_file_without_the_estimator(few, own, attribute, message):
    own.write_text(own.read_text() + "\nnumber = 3\n")
    with pytest.raises(ConfigError, match=message):
        train(few(advantage={"estimator": f"{own}:{attribute}"}))


def test_a_file_that_cannot_be_imported_or_takes_a_name(few, tmp_path):
    (tmp_path / "a.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"estimator '.*a.py:f': importing .* raised ZeroDivisionError"):
        train(few(advantage={"estimator": f"{tmp_path / 'a.py'}:f"}))
    (tmp_path / "b.py").write_text(
        BROKEN.format(tag="b", more="", keywords="x=1", body="pass").replace("broken_b", "grpo")
    )
    with pytest.raises(ConfigError, match="raised InputError: register: 'grpo' is"):
        train(few(advantage={"estimator": f"{tmp_path / 'b.py'}:broken"}))


def test_a_state_that_its_code_no_longer_reads(few, own, rewards_file):
    chosen = {"estimator": f"{own}:Running"}
    with pytest.raises(KeyboardInterrupt):
        train(few(advantage=chosen, reward=[f"{rewards_file}:lowercase"]), listener=StopAfter(2))
    own.write_text(own.read_text().replace("pair in state", "pair in state['old']"))
    unload(["own_x", "running_x"])
    with pytest.raises((RunError, ConfigError), match="'running_x': its state cannot be read"):
        resume(few()["output_dir"])
