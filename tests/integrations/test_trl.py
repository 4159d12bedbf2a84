"""grouprl inside TRL: real trainers on a tiny model, beside TRL's own from the same seed."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grouprl.errors import ConfigError, EstimatorError, RunError
from grouprl.integrations import versions

if versions.installed("trl") is None:
    pytest.skip(
        "trl is not installed here; `make integrations` runs these tests in an environment that has it",
        allow_module_level=True,
    )

import polars as pl
import tiny
import trl_trainers
from peft import LoraConfig
from trl_trainers import PROMPTS, Ours, Plain, gradients, on_ranks, trained, trainer, weights

from grouprl import advantages
from grouprl.cli.main import main
from grouprl.records import RunFolder, scan_rollouts

pytestmark = [
    # TRL and transformers say these of their own defaults, whatever we do.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


def inputs_of(made, count=8):
    """A generation batch's first micro-batch."""
    made.model.train()
    size = made.num_generations
    return made._prepare_inputs([{"prompt": p} for p in PROMPTS[: count // size] for _ in range(size)])


def close(a, b, *, relative=1e-5):
    assert set(a) == set(b)
    for name in a:
        scale = max(float(a[name].abs().max()), 1e-3)
        assert float((a[name] - b[name]).abs().max()) <= relative * scale, name


# ---- the numbers ----


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_by_default_the_advantages_and_the_model_are_those_of_trl(tmp_path, scale):
    plain, ours = trained(tmp_path, scale_rewards=scale)
    assert len(plain.batches) == len(ours.batches) == 2
    for theirs, mine in zip(plain.batches, ours.batches, strict=True):
        assert torch.equal(theirs["completion_ids"], mine["completion_ids"])
        assert float((theirs["advantages"] - mine["advantages"]).abs().max()) < 1e-5
        assert theirs["advantages"].abs().max() > 0.1
    close(weights(plain), weights(ours), relative=1e-4)  # two steps of Adam, at a large learning rate
    assert list(plain._logs["advantages"]) == pytest.approx(list(ours._logs["advantages"]), abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"num_iterations": 2, "max_steps": 4},  # each batch is trained on twice
        {"num_generations": 3, "per_device_train_batch_size": 3},
        {"steps_per_generation": 4, "max_steps": 4},  # a batch lasts for two steps
        {"steps_per_generation": 1, "gradient_accumulation_steps": 3},  # a step has three batches
        {"mask_truncated_completions": True, "max_completion_length": 48},  # most are cut
        {"peft_config": LoraConfig(r=4, target_modules="all-linear")},
        {"peft_config": LoraConfig(r=4, target_modules="all-linear"), "beta": 0.1},
    ],
    ids=lambda options: ",".join(f"{name}={options[name]}"[:28] for name in options),
)
def test_whatever_trl_is_asked_for_the_model_is_that_of_trl(tmp_path, options):
    """Under plain gradient descent, which shows every difference in a gradient by its size."""
    found = []
    for cls in (Plain, Ours):
        torch.manual_seed(0)  # of the adapter
        keywords = {name: options[name] for name in options if name == "peft_config"}
        rest = {name: value for name, value in options.items() if name != "peft_config"}
        given = {"optim": "sgd", "learning_rate": 0.1, **rest, "ours": keywords}
        made = trainer(cls, tmp_path / cls.__name__ / cls.__module__, **given)
        before = weights(made)
        made.train()
        assert any(not torch.equal(before[name], after) for name, after in weights(made).items())
        found.append(made)
    plain, ours = found
    for theirs, mine in zip(plain.batches, ours.batches, strict=True):
        assert torch.equal(theirs["completion_ids"], mine["completion_ids"])
        assert float((theirs["advantages"] - mine["advantages"]).abs().max()) < 1e-5
    close(weights(plain), weights(ours), relative=1e-6)


def test_trls_logs_are_kept(tmp_path):
    plain, ours = trained(tmp_path, log_completions=True)
    untold = {"step_time", "entropy", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    for theirs, mine in zip(plain.state.log_history, ours.state.log_history, strict=True):
        for name, value in theirs.items():
            if name not in untold:
                assert mine[name] == pytest.approx(value, abs=1e-4), name
    tables = [pl.read_parquet(f"{made.args.output_dir}/completions/*.parquet") for made in (plain, ours)]
    assert tables[0].columns == tables[1].columns
    assert tables[0].drop("advantage").equals(tables[1].drop("advantage"))


def test_several_rewards_are_normalised_first_then_added(tmp_path):
    """TRL divides by the batch's sample std, grouprl's GDPO by the population's: √(N / (N − 1)) apart."""

    def length(completion_ids, **_):
        return [float(sum(ids) % 7) for ids in completion_ids]

    def parity(completion_ids, **_):
        return [float(sum(ids) % 2) for ids in completion_ids]

    options = {
        "multi_objective_aggregation": "normalize_then_sum",
        "reward_weights": [1.0, 0.5],
        "max_steps": 1,
    }
    plain, ours = trained(tmp_path, rewards=[length, parity], **options)
    theirs, mine = plain.batches[0]["advantages"], ours.batches[0]["advantages"]
    assert torch.allclose(theirs * math.sqrt(8 / 7), mine, atol=1e-3)


def test_equal_rewards_give_exactly_zero_where_trl_gives_rounding(tmp_path):
    options = {"num_generations": 7, "per_device_train_batch_size": 7, "rewards": trl_trainers.constant}
    plain, ours = (trainer(cls, tmp_path / cls.__name__, **options) for cls in (Plain, Ours))
    for made in (plain, ours):
        inputs_of(made, 14)
    assert plain.batches[0]["advantages"].abs().max() > 0.3
    assert ours.batches[0]["advantages"].eq(0.0).all()


def test_an_infinite_reward_is_unscored(tmp_path):
    def broken(completions, **_):
        return [math.inf if i == 0 else float(i % 2) for i in range(len(completions))]

    made = trainer(Ours, tmp_path, rewards=broken)
    inputs_of(made)
    found = made.batches[0]["advantages"]
    assert found[0] == 0.0
    expected = advantages.grpo([1.0, 0.0, 1.0], convention="trl")  # the others, as though it had not been
    assert torch.allclose(found[1:4], expected, atol=1e-6)


def test_the_script_of_the_docs_runs(tmp_path):
    """As a newcomer would run it, on a model that is here."""
    page = Path(__file__).parent.parent.parent / "docs" / "integrations.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if "trainer.train()" in block]
    assert script.count('"Qwen/Qwen3-0.6B"') == 1
    script = script.replace('"Qwen/Qwen3-0.6B"', repr(str(tiny.save(tmp_path / "tiny"))))
    (tmp_path / "train.py").write_text(script)
    for command in (
        [sys.executable, "train.py"],
        [sys.executable, "-m", "grouprl.cli.main", "report", "out/grouprl"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "4 steps" in done.stdout
    assert RunFolder.open(tmp_path / "out" / "grouprl").rollout_steps() == [1, 2, 3, 4]


# ---- which estimator ----


def test_an_estimator_sees_what_trl_has(tmp_path):
    """A function of one's own: what it is given, and that what it returns is what is trained on."""
    seen = []

    def own(rewards, group_ids, *, lengths, components):
        seen.append((rewards, group_ids, lengths, components))
        return rewards.nan_to_num(0.0) - lengths

    made = trainer(Ours, tmp_path, ours={"advantage_estimator": own})
    made.train()
    rewards, group_ids, lengths, components = seen[1]  # the first call is on made-up rewards
    assert group_ids.tolist() == [0] * 4 + [1] * 4
    assert lengths.tolist() == made.batches[0]["completion_mask"].sum(1).tolist()
    expected = trl_trainers.thirds(None, [r[m.bool()].tolist() for r, m in completions_of(made.batches[0])])
    assert [None if r != r else r for r in components["thirds"].tolist()] == expected
    scored = rewards.isfinite()
    assert torch.equal(made.batches[0]["advantages"][scored], (rewards - lengths)[scored])
    assert made.batches[0]["advantages"][~scored].eq(0).all()


def completions_of(batch):
    return zip(batch["completion_ids"], batch["completion_mask"], strict=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rloo", {}),
        ("grpo", {"eps": 1e-3}),
        ("opo", {}),
        ("gdpo", {}),
        ("ngrpo", {"max_reward": 2.0}),
        ("spo", {}),
    ],
)
def test_registered_estimators_train(tmp_path, name, options):
    made = trainer(
        Ours, tmp_path, max_steps=1, ours={"advantage_estimator": name, "advantage_options": options}
    )
    before = weights(made)
    made.train()
    assert made.batches[0]["advantages"].isfinite().all()
    assert made.batches[0]["advantages"].abs().max() > 0
    assert any(not torch.equal(before[k], v) for k, v in weights(made).items())


@pytest.mark.parametrize(
    ("ours", "options", "said"),
    [
        ({"advantage_estimator": "remax"}, {}, "needs greedy_rewards, and TRL samples no greedy completion"),
        ({"advantage_estimator": "gae"}, {}, "inside a completion"),
        ({"advantage_estimator": "gigpo"}, {}, "inside a completion"),
        ({"advantage_estimator": "gpro"}, {}, "did you mean 'grpo'"),
        ({"advantage_estimator": 3}, {}, "advantage_estimator is a int, expected a name"),
        ({"advantage_estimator": "ngrpo"}, {}, "option 'max_reward' is missing"),
        (
            {"advantage_estimator": "grpo", "advantage_options": {"epz": 1}},
            {},
            "unknown option 'epz', did you mean",
        ),
        ({"advantage_estimator": "grpo", "advantage_options": {"eps": -1.0}}, {}, "eps"),
        ({"advantage_options": {"eps": 1.0}}, {}, "without an advantage_estimator"),
        ({"advantage_estimator": "rloo"}, {"scale_rewards": "batch"}, "scale_rewards='batch' beside"),
        ({"advantage_estimator": lambda rewards, group_ids: rewards[:1]}, {}, r"returned shape \(1,\)"),
        ({"max_sampling_rounds": 2.5}, {}, "max_sampling_rounds is 2.5, expected a whole number"),
        ({"max_sampling_rounds": -1}, {}, "max_sampling_rounds is -1, expected a whole number from 0 on"),
        ({"success_reward": "high"}, {}, "success_reward is 'high', expected a number"),
        (
            {"advantage_estimator": "grpo", "advantage_options": ["eps"]},
            {},
            r"advantage_options is \['eps'\], expected the estimator's keywords by name",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_construction(tmp_path, ours, options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        trainer(Ours, tmp_path, ours=ours, **options)
    assert "\n" not in str(caught.value)


def test_an_estimator_that_fails_later_names_itself(tmp_path):
    calls = []

    def breaks(rewards, group_ids):
        calls.append(1)
        return rewards * math.nan if len(calls) > 1 else rewards

    made = trainer(Ours, tmp_path, rewards=trl_trainers.constant, ours={"advantage_estimator": breaks})
    with pytest.raises(
        EstimatorError, match=r"'breaks': returned nan for completion 0, whose reward is 1000\.1"
    ):
        made.train()


# ---- leaving out ----


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_gradient_without_them_is_the_gradient(tmp_path, loss_type, level):
    made = trainer(Ours, tmp_path, loss_type=loss_type, importance_sampling_level=level)
    inputs = inputs_of(made)
    inputs["advantages"] = torch.tensor([1.5, 0.0, -0.5, 0.0])
    torch.manual_seed(0)
    with torch.no_grad():  # an older policy, so that ratios are clipped
        logps, _, _ = made._get_per_token_logps_and_entropies(
            made.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].size(1),
        )
    inputs["old_per_token_logps"] = logps + 0.3 * torch.randn(logps.shape)
    rows, clips, found = [], [], []
    model_input = made._get_per_token_logps_and_entropies

    def counting(model, input_ids, *args, **keywords):
        rows.append(len(input_ids))
        return model_input(model, input_ids, *args, **keywords)

    made._get_per_token_logps_and_entropies = counting
    for leaving_out in (False, True):
        made._leaving_out = leaving_out
        made._metrics["train"].clear()
        found.append(gradients(made, inputs))
        clips.append({k: v for k, v in made._metrics["train"].items() if "clip" in k})
    assert rows == [4, 2]
    (loss, gradient), (loss_without, gradient_without) = found
    assert loss_without == pytest.approx(loss, abs=1e-5, rel=1e-5)
    close(gradient, gradient_without)
    assert max(float(g.abs().max()) for g in gradient.values()) > 1e-3
    for name, values in clips[0].items():
        assert clips[1][name] == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize("loss_type", LOSSES)
def test_neither_has_one_without_a_trained_token(tmp_path, loss_type):
    """TRL's mask_truncated_completions empties the mask of what was cut; such a row adds 0 to each loss too."""
    made = trainer(Ours, tmp_path, loss_type=loss_type, mask_truncated_completions=True, bf16=False)
    inputs = inputs_of(made)
    inputs["advantages"] = torch.tensor([1.5, -0.5, -0.5, -0.5])
    inputs["completion_mask"] = torch.ones_like(inputs["completion_mask"])
    inputs["completion_mask"][1:3] = 0
    found = []
    for leaving_out in (False, True):
        made._leaving_out = leaving_out
        made._metrics["train"].clear()
        found.append((*gradients(made, inputs), dict(made._metrics["train"])))
    (loss, gradient, logs), (loss_without, gradient_without, logs_without) = found
    assert loss_without == pytest.approx(loss, abs=1e-5, rel=1e-5)
    close(gradient, gradient_without)
    assert max(float(g.abs().max()) for g in gradient.values()) > 1e-3
    assert logs_without["completions/left_out_share"] == [0.5]
    for name, values in logs.items():
        if "clip" in name:
            assert logs_without[name] == pytest.approx(values, abs=1e-6, nan_ok=True), name


def test_a_batch_without_signal_steps_with_a_gradient_of_zero(tmp_path):
    made = trainer(Ours, tmp_path, rewards=trl_trainers.constant)
    before = weights(made)
    made.train()
    assert all(torch.equal(before[name], after) for name, after in weights(made).items())
    assert (
        made.state.log_history[0]["completions/left_out_share"] == 0.75
    )  # one of four is kept, for the graph
    assert made.state.global_step == 2


@pytest.mark.parametrize(
    "options",
    [{"entropy_coef": 0.01}, {"top_entropy_quantile": 0.5}],
)
def test_none_is_left_out_where_another_term_reaches_it(tmp_path, options):
    made = trainer(Ours, tmp_path, max_steps=1, **options)
    made.train()
    assert "completions/left_out_share" not in made.state.log_history[0]


def test_leaving_out_can_be_turned_off(tmp_path):
    made = trainer(Ours, tmp_path, max_steps=1, rewards=trl_trainers.constant, ours={"leave_out": False})
    made.train()
    assert "completions/left_out_share" not in made.state.log_history[0]


# ---- dynamic sampling ----


def test_groups_without_spread_are_replaced(tmp_path):
    made = trainer(
        Ours,
        tmp_path,
        rewards=trl_trainers.spread_where_odd,
        ours={"max_sampling_rounds": 20, "record": True},
    )
    made.train()
    for batch, log in zip(made.batches, made.state.log_history, strict=False):
        texts = decoded(made, batch)
        assert all(int(text.split("+")[0]) % 2 for text in texts), texts
        assert all(len(set(texts[i : i + 4])) == 1 for i in (0, 4))
        assert batch["advantages"].view(2, 4).abs().amax(1).gt(0.5).all()
        assert batch["num_items_in_batch"] == batch["completion_mask"].sum()
        assert log["groups/informative_share"] == 1.0
        assert log["groups/sampled"] == 2 + sum(counted(log))
    assert list(made._logs["prompt"]) == decoded(made, made.batches[-1])
    rows = scan_rollouts(sorted((tmp_path / "grouprl" / "rollouts").glob("*.parquet"))).collect()
    assert rows["prompt"].to_list() == [t for batch in made.batches for t in decoded(made, batch)]


def counted(log):
    """Groups sampled beyond the first round's two."""
    assert log["groups/sampling_rounds"] >= 1
    return [log["groups/sampled"] - 2]


def decoded(made, batch):
    pairs = zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)
    return [made.processing_class.decode(ids[mask.bool()]) for ids, mask in pairs]


def test_each_completion_still_answers_its_prompt(tmp_path):
    """What is moved is moved whole: the rewards of a replaced group are those of its own completions."""

    def of_prompt_and_completion(prompts, completion_ids, **_):
        numbers = [int(p.split("+")[0]) for p in prompts]
        return [
            float((sum(ids) + n) % 3) if n % 2 else 0.0
            for n, ids in zip(numbers, completion_ids, strict=True)
        ]

    made = trainer(
        Ours,
        tmp_path,
        rewards=of_prompt_and_completion,
        ours={"max_sampling_rounds": 20, "advantage_estimator": "dr_grpo"},
    )
    made.train()
    for batch in made.batches:
        ids = [r[m.bool()].tolist() for r, m in completions_of(batch)]
        rewards = torch.tensor(of_prompt_and_completion(decoded(made, batch), ids)).view(2, 4)
        assert torch.allclose(
            batch["advantages"].view(2, 4), rewards - rewards.mean(1, keepdim=True), atol=1e-6
        )


def test_where_no_prompt_has_spread_the_rounds_end(tmp_path):
    made = trainer(
        Ours, tmp_path, max_steps=1, rewards=trl_trainers.constant, ours={"max_sampling_rounds": 3}
    )
    made.train()
    log = made.state.log_history[0]
    assert log["groups/sampling_rounds"] == 3
    assert log["groups/sampled"] == 2 + 2 + 2
    assert log["groups/informative_share"] == 0.0
    assert made.batches[0]["advantages"].eq(0).all()


# ---- two processes ----


def test_two_processes_give_trls_numbers(tmp_path):
    ranks = on_ranks(2, "convention", tmp_path)
    for rank in ranks:
        for theirs, mine in zip(rank["plain"]["batches"], rank["ours"]["batches"], strict=True):
            assert torch.equal(theirs["completion_ids"], mine["completion_ids"])
            assert float((theirs["advantages"] - mine["advantages"]).abs().max()) < 1e-5
        close(rank["plain"]["weights"], rank["ours"]["weights"], relative=1e-4)
    close(ranks[0]["ours"]["weights"], ranks[1]["ours"]["weights"], relative=0.0)
    assert any(b["advantages"].abs().max() > 0.1 for rank in ranks for b in rank["ours"]["batches"])


def test_two_processes_fill_a_batch_whose_groups_span_them(tmp_path):
    ranks = on_ranks(2, "refilled", tmp_path)
    for step in range(2):
        texts = [text for rank in ranks for text in rank["prompts"][step]]
        assert len(texts) == 12
        assert all(int(text.split("+")[0]) % 2 for text in texts), texts
        assert all(len(set(texts[i : i + 4])) == 1 for i in (0, 4, 8)), texts
        found = torch.cat([rank["batches"][step]["advantages"] for rank in ranks]).view(3, 4)
        assert found.abs().gt(0.5).all()
        assert float(found.sum(1).abs().max()) < 1e-5
        items = {int(rank["batches"][step]["num_items_in_batch"]) for rank in ranks}
        assert items == {sum(int(rank["batches"][step]["completion_mask"].sum()) for rank in ranks)}
    assert ranks[0]["stream"] == ranks[1]["stream"]
    assert ranks[0]["table"] == [text for rank in ranks for text in rank["prompts"][1]]
    close(ranks[0]["weights"], ranks[1]["weights"], relative=0.0)
    run = RunFolder.open(tmp_path / "refilled" / "grouprl")
    assert run.rollout_steps() == [1, 2]
    assert [line["groups"] for line in run.metrics()] == [3, 3]


def test_two_processes_leave_out_alike(tmp_path):
    """One rank has nothing to train on: both send as many rows through the model, and the gradient is that of all."""
    for rank in on_ranks(2, "left_out", tmp_path):
        (loss, gradient, metrics), (loss_without, gradient_without, metrics_without) = (
            rank["every"],
            rank["some"],
        )
        assert loss_without == pytest.approx(loss, abs=1e-6)
        close(gradient, gradient_without)
        assert metrics_without.pop("completions/left_out_share") == [0.5]
        for name in metrics:
            if name != "entropy":
                assert metrics_without[name] == pytest.approx(metrics[name], abs=1e-6), name


# ---- record and checkpoints ----


def test_the_record_is_a_run_that_grouprl_reads(tmp_path, capsys):
    made = trainer(
        Ours,
        tmp_path,
        gradient_accumulation_steps=4,
        steps_per_generation=2,  # two generation batches a step
        ours={"record": True, "advantage_estimator": "grpo", "advantage_options": {"convention": "trl"}},
    )
    made.train()
    folder = tmp_path / "grouprl"
    rows = RunFolder.open(folder).rollouts().collect()
    assert len(made.batches) == 4
    assert rows["advantage"].to_list() == pytest.approx(
        [a for batch in made.batches for a in batch["advantages"].tolist()]
    )
    assert rows["group_id"].unique(maintain_order=True).to_list() == [
        f"train/{step}/{group}" for step in (1, 2) for group in range(4)
    ]
    assert rows["completion_tokens"].to_list() == [
        n for batch in made.batches for n in batch["completion_mask"].sum(1).tolist()
    ]
    assert set(rows["finish_reason"]) <= {"stop", "length"}
    assert rows.filter(~pl.col("scored"))["reward"].is_null().all()
    again = tmp_path / "again.parquet"
    options = json.loads(rows["advantage_options"][0])
    assert options["convention"] == "trl"
    arguments = ["advantages", str(folder), "-o", str(again), "--overwrite", "--convention", "trl"]
    assert main(arguments) == 0
    assert pl.read_parquet(again)["advantage"].to_list() == pytest.approx(
        rows["advantage"].to_list(), abs=1e-6
    )
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    assert page.read_text().count("Mean reward") > 0
    lines = RunFolder.open(folder).metrics()
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["loss"] is not None and line["lr"] > 0 for line in lines)
    assert all(line["groups"] in (2, 4) and line["seconds_step"] > 0 for line in lines)


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path):
    folder = tmp_path / "record"
    trainer(Ours, tmp_path, max_steps=1, ours={"record": folder}).train()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="holds a run already"):
        trainer(Ours, tmp_path, max_steps=1, ours={"record": folder}).train()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    """The estimator's memory, the further prompts' place and the record come from the checkpoint."""
    options = {
        "rewards": trl_trainers.spread_where_odd,
        "max_steps": 3,
        "save_strategy": "steps",
        "save_steps": 1,
        "ours": {"advantage_estimator": "spo", "max_sampling_rounds": 6, "record": True},
    }
    whole = trainer(Ours, tmp_path, **options)
    whole.train()
    lines = RunFolder.open(tmp_path / "grouprl").metrics()
    resumed = trainer(Ours, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert len(resumed.batches) == 2
    for a, b in zip(whole.batches[1:], resumed.batches, strict=True):
        assert torch.equal(a["completion_ids"], b["completion_ids"])
        assert torch.equal(a["advantages"], b["advantages"])
    assert resumed._stream.state() == whole._stream.state()
    assert resumed._estimating.state() == whole._estimating.state()
    again = RunFolder.open(tmp_path / "grouprl").metrics()
    assert [line["step"] for line in again] == [1, 2, 3]
    assert [line["reward_mean"] for line in again] == [line["reward_mean"] for line in lines]


def test_a_memory_is_not_taken_from_another_estimators_checkpoint(tmp_path):
    saved = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer(Ours, tmp_path, ours={"advantage_estimator": "rloo"}, **saved).train()
    other = trainer(Ours, tmp_path, ours={"advantage_estimator": "spo"})
    with pytest.raises(RunError, match="was written with the estimator 'rloo', expected 'spo'"):
        other.train(resume_from_checkpoint=True)
    without = trainer(Ours, tmp_path, ours={"advantage_estimator": "dr_grpo"})  # remembers nothing
    without.train(resume_from_checkpoint=True)
    assert without.state.global_step == 2


def test_trl_resumes_a_checkpoint_of_ours_and_ours_one_of_trls(tmp_path, caplog):
    saved = {"save_strategy": "steps", "save_steps": 1}
    trainer(Ours, tmp_path / "ours", max_steps=1, **saved).train()
    back = trainer(Plain, tmp_path / "ours", **saved)
    back.train(resume_from_checkpoint=True)
    assert (back.state.global_step, len(back.batches)) == (2, 1)
    trainer(Plain, tmp_path / "plain", max_steps=1, **saved).train()
    there = trainer(Ours, tmp_path / "plain", ours={"max_sampling_rounds": 2, "record": True}, **saved)
    with caplog.at_level("WARNING", logger="grouprl"):
        there.train(resume_from_checkpoint=True)
    assert (there.state.global_step, len(there.batches)) == (2, 1)
    assert "the estimator and the further prompts start afresh" in caplog.text


def test_a_batch_that_is_trained_on_twice_is_recorded_once(tmp_path, capsys):
    made = trainer(Ours, tmp_path, num_iterations=2, max_steps=4, ours={"record": True})
    made.train()
    run = RunFolder.open(tmp_path / "grouprl")
    assert run.rollout_steps() == [1, 3]
    lines = run.metrics()
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line.get("groups") for line in lines] == [2, None, 2, None]
    assert all(line["loss"] is not None for line in lines)
    assert main(["report", str(run.path)]) == 0


def test_an_evaluation_teaches_a_stateful_estimator_nothing(tmp_path):
    made = trainer(Ours, tmp_path, ours={"advantage_estimator": "spo"})
    made.train()
    before = made._estimating.state()
    made.model.eval()
    made._prepare_inputs([{"prompt": p} for p in PROMPTS[:2] for _ in range(4)])
    assert made._estimating.state() == before
    assert made._metrics["eval"]["groups/informative_share"]
