"""The cost model of docs/scaling.md: its counts against real models, its limits, its fit, its page and its command."""

import json
import math
from dataclasses import asdict, replace

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from grouprl.policy import completion_logprobs, matmul
from grouprl.policy.lora import attach_adapter
from grouprl.rollout.shared import SharedPrompts
from grouprl.training import Config
from grouprl.training.memory import saved_bytes
from grouprl.training.optimizer import make_optimizer


@pytest.fixture(scope="module")
def model(scripts):
    return scripts("cost_model")


@pytest.fixture(scope="module")
def plan(scripts):
    return scripts("cost_plan")


@pytest.fixture(scope="module")
def machine(scripts):
    return scripts("cost_machine")


def shape_of_config(model, config, name="tiny"):
    return model.ModelShape(
        name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
        bias=config.model_type == "qwen2",
    )


def config_of(shape):
    """transformers' configuration of a shape."""
    options = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
    }
    return Qwen2Config(**options) if shape.bias else LlamaConfig(**options)


# What is counted


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-32B"])
def test_parameters_are_those_of_transformers_models(model, name):
    (shape,) = [s for s in model.KNOWN if s.name == name]
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config_of(shape))
    assert shape.parameters == sum(p.numel() for p in built.parameters())


def test_parameters_of_the_model_cards(model):
    """Qwen's cards: 1.54B and 1.31B without embeddings, 7.61B and 6.53B, 32.5B and 31.0B."""
    cards = {"Qwen2.5-1.5B": (1.54, 1.31), "Qwen2.5-7B": (7.61, 6.53), "Qwen2.5-32B": (32.5, 31.0)}
    for shape in model.KNOWN:
        if shape.name in cards:
            whole, without = cards[shape.name]
            assert shape.parameters / 1e9 == pytest.approx(whole, rel=0.01)
            assert shape.body / 1e9 == pytest.approx(without, rel=0.01)


@pytest.mark.parametrize("parameters", [3e8, 3e9, 1.4e10, 7e10])
def test_a_shape_of_so_many_parameters(model, parameters):
    shape = model.shape_of(parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.1)
    assert shape.heads % shape.kv_heads == 0
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config_of(shape))
    assert shape.parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_operations_of_a_forward_and_backward_are_those_that_torch_counts(model, family):
    """Of transformers' own model, whose attention looks at all pairs of tokens, hidden or not."""
    config = tiny.policy(family).model.config
    built = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    shape, tokens = shape_of_config(model, config), 24
    work = model.forward(shape, tokens, pairs=tokens**2, predicted=tokens, dtype=4)
    ids = torch.arange(tokens)[None] % config.vocab_size
    with FlopCounterMode(display=False) as forward:
        logits = built(ids).logits
    assert forward.get_total_flops() == work.operations
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == model.BACKWARD * work.operations


class Products(TorchDispatchMode):
    """Operations of matrix products, by torch's own formulas. `FlopCounterMode` hooks into autograd, where
    grouprl's gated MLP is at work itself."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


@pytest.mark.parametrize("dead", [0, 1])
def test_operations_of_training_on_shared_prompts_are_those_that_torch_counts(model, monkeypatch, dead):
    """grouprl's own rows, through torch's own products, which its counter knows. Of two groups one may be dead."""
    monkeypatch.setattr(matmul, "onednn_is_faster", lambda: False)
    monkeypatch.setattr("grouprl.policy.layers.onednn_is_faster", lambda: False)
    policy = tiny.policy("llama")
    batch = model.Batch(prompts=2, G=3, prompt_tokens=7, completion_tokens=5, dead_share=dead / 2)
    groups = [tiny_group(batch, number) for number in range(2 - dead)]
    rows = policy.rows([[(i, g, c) for i, c in enumerate(g.completions)] for g in groups], share_prefix=True)
    with Products() as products:
        logprobs, _ = completion_logprobs(policy, rows)
        logprobs.sum().backward()
    work = model.training(shape_of_config(model, policy.model.config), batch)
    assert rows.tokens == model.training_tokens(batch)[0]
    assert products.total == work.body + work.head


def tiny_group(batch, number):
    from grouprl.types import Completion, Group, Prompt

    n = int(batch.completion_tokens)
    completions = tuple(
        Completion(tuple(range(5 + k, 5 + k + n)), (0.0,) * n, (True,) * n, "", "length")
        for k in range(batch.G)
    )
    prompt = tuple(range(3, 3 + int(batch.prompt_tokens)))
    return Group(str(number), Prompt(str(number), ""), "", prompt, completions)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_token_keeps_for_backward_is_what_it_really_keeps(model, family, checkpointing):
    policy = tiny.policy(family, hidden_size=64, intermediate_size=160, num_hidden_layers=3)
    shape = shape_of_config(model, policy.model.config)
    if checkpointing:
        policy.checkpoint_layers()
    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 2)):
        found, once = saved_bytes(policy.in_dtype(dtype))
        assert shape.saved_bytes(width, checkpointing=checkpointing) == pytest.approx(found, rel=0.03)
        if width == 2 and not checkpointing:
            assert once == pytest.approx(2 * shape.body, rel=0.1)  # autocast's copies of the weights


def test_weights_gradients_and_moments_are_sixteen_bytes_a_weight(model, plan):
    policy = tiny.policy("llama")
    shape = shape_of_config(model, policy.model.config)
    optimizer = make_optimizer(policy, Config().optimizer)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = sum(
        state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    )
    batch = model.Batch(prompts=1, G=2, prompt_tokens=4, completion_tokens=4)
    found = plan.memory(plan.Plan(shape, batch))
    assert found.training["weights"] == sum(p.nbytes for p in policy.parameters())
    assert found.training["gradients"] == sum(p.grad.nbytes for p in policy.parameters())
    assert found.training["moments"] == moments
    assert found.training["the sampler's weights"] == sum(
        p.nbytes for p in policy.copy(torch.bfloat16).model.parameters()
    )


def test_keys_and_values_are_those_of_the_sampler(model, plan):
    policy = tiny.policy("llama")
    shape = shape_of_config(model, policy.model.config)
    batch = model.Batch(prompts=1, G=4, prompt_tokens=9, completion_tokens=3, longest_tokens=6)
    state = SharedPrompts(policy, [tuple(range(3, 12))], batch.G, batch.longest)
    with torch.inference_mode():
        state.start()
    held = sum(x.nbytes for layer in state._layers for x in (*layer.prompts, *layer._own))
    _, group = plan.cache_bytes(plan.Plan(shape, batch))
    assert 2 * group == held  # the policy's cache is in float32, the plan's in bfloat16


def test_weights_of_adapters_are_those_of_peft(model):
    policy = tiny.policy("llama")
    shape = shape_of_config(model, policy.model.config)
    attach_adapter(policy.model, rank=4, alpha=8)
    assert shape.lora_parameters(4) == sum(p.numel() for p in policy.parameters())


# The law of lengths, and tokens


@pytest.mark.parametrize("longest", [100, 150, 400])
def test_lengths_have_the_mean_and_the_square_that_are_used(model, longest):
    """∫ S = mean, and E[t²] = 2 ∫ t S, by a sum over a thousand parts."""
    batch = model.Batch(prompts=1, G=1, prompt_tokens=1, completion_tokens=100, longest_tokens=longest)
    width = longest / 1000
    middles = [(k + 0.5) * width for k in range(1000)]
    going = [batch.going(t) for t in middles]
    assert sum(going) * width == pytest.approx(100, rel=1e-3)
    own = sum(t * s for t, s in zip(middles, going)) / sum(going)
    assert model._mean_own_tokens(batch) == pytest.approx(own, rel=1e-3)
    assert batch.going(0) == 1
    assert batch.going(longest) == 0


@pytest.mark.parametrize("at_once", [0, 16, 40])
def test_each_completion_is_decoded_once(model, at_once):
    """Rows over all forwards are the completions' tokens but their first, however many run at a time."""
    batch = model.Batch(prompts=8, G=8, prompt_tokens=30, completion_tokens=50, longest_tokens=125)
    steps = list(model.decode(model.SMOLLM2, batch, at_once=at_once))
    tokens = sum(n * work.head for n, work in steps) / (2 * model.SMOLLM2.head)
    assert tokens == pytest.approx(64 * 49, rel=0.02)
    assert all(work.head / (2 * model.SMOLLM2.head) <= (at_once or 64) + 1e-9 for _, work in steps)


def test_attention_of_decoding_and_of_training_sees_the_same_pairs(model):
    """Causal attention over a completion, once token by token and once at once; nobody is of another length."""
    batch = model.Batch(prompts=2, G=4, prompt_tokens=20, completion_tokens=30)
    shape = model.SMOLLM2
    decoded = sum(n * work.attention for n, work in model.decode(shape, batch, parts=1000))
    prompts = model.prefill(shape, batch).attention
    _, pairs, _ = model.training_tokens(batch)
    assert decoded + prompts == pytest.approx(4 * shape.q_width * shape.layers * pairs, rel=1e-9)


def test_savings_are_their_closed_forms(model):
    batch = model.Batch(prompts=4, G=8, prompt_tokens=50, completion_tokens=11, dead_share=0.25)
    found = model.savings(batch)
    assert found["prefill"] == 8
    assert found["shared prompt"] == pytest.approx(8 * (50 + 10) / (50 + 80))
    assert found["dead groups"] == pytest.approx(4 / 3)
    assert found["training"] == pytest.approx(found["shared prompt"] * found["dead groups"])
    alone = model.savings(replace(batch, G=1, dead_share=0.0))
    assert alone["training"] == alone["prefill"] == 1
    endless = model.savings(replace(batch, prompt_tokens=10**9, dead_share=0.0))
    assert endless["training"] == pytest.approx(8)


# Limits


def test_decoding_waits_for_bytes_in_small_batches_and_for_arithmetic_in_large_ones(model, machine):
    """The turn is where 2 B operations a weight take as long as its bytes: B = bytes · rate / (2 · bandwidth)."""
    shape = replace(model.QWEN_7B, vocabulary=1)
    rates = machine.Rates(
        body=1e12, head=1e12, attention=math.inf, weights=1e10, cache=math.inf, activations=math.inf,
        logits=math.inf, stream=1.0, call_s=0.0, asynchronous=True,
    )  # fmt: skip
    turn = 2 * 1e12 / (2 * 1e10)

    def seconds(rows):
        return rates.seconds(model.forward(shape, rows, 0, rows, dtype=2))

    assert seconds(1) == seconds(turn / 2) == pytest.approx(2 * (shape.body + shape.head) / 1e10)
    assert seconds(4 * turn) == pytest.approx(2 * seconds(2 * turn))
    assert seconds(1.01 * turn) > seconds(0.99 * turn) == seconds(1)


def test_the_host_and_a_device_that_it_calls_ahead(model, machine):
    work = model.Work(body=1e9, calls=10)
    rates = machine.Rates(1e9, 1e9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, call_s=0.01)
    assert rates.seconds(work) == pytest.approx(1.1)
    assert replace(rates, asynchronous=True).seconds(work) == pytest.approx(1.0)
    assert replace(rates, asynchronous=True, call_s=0.2).seconds(work) == pytest.approx(2.0)


def test_transfers_within_and_between_machines(machine):
    gpu = replace(machine.H100, link=100.0, network=5.0, in_machine=8)
    assert gpu.transfer_s(1000, 1, 1.0) == 0
    assert gpu.transfer_s(1000, 8, 1.0) == pytest.approx(10)
    assert gpu.transfer_s(1000, 8, 0.5) == pytest.approx(20)
    assert gpu.transfer_s(1000, 64, 1.0) == pytest.approx(
        1000 * 7 / 8 / 40
    )  # eight adapters of 5 take seven eighths


@pytest.fixture
def seven(model, plan):
    return plan.Plan(
        model.QWEN_7B,
        model.Batch(128, 8, 200, 800, 2048, 0.4),
        gpus=8,
        sharded=True,
    )


def test_a_step_takes_longer_with_more_to_do(machine, plan, seven):
    for reached in machine.BAND:
        base = plan.step(seven, reached).total
        for more in (
            {"prompts": 256},
            {"G": 16},
            {"prompt_tokens": 2000},
            {"completion_tokens": 1600},
            {"dead_share": 0.0},
        ):
            assert plan.step(replace(seven, batch=replace(seven.batch, **more)), reached).total > base, more
        assert plan.step(replace(seven, beta=True), reached).total > base
        assert plan.step(replace(seven, gpus=16), reached).total < base


def test_the_fast_end_is_the_fast_one(machine, plan, model):
    fast, slow = machine.BAND
    for shape in model.KNOWN:
        for one in plan.placements(shape, model.Batch(64, 8, 200, 400, 1024, 0.3), 8):
            assert plan.step(one, fast).total < plan.step(one, slow).total, one.name


def test_memory_is_cut_by_sharding_alone(plan, seven):
    whole = plan.memory(replace(seven, sharded=False)).training
    cut = plan.memory(seven).training
    for what in ("weights", "gradients", "moments"):
        assert cut[what] == pytest.approx(whole[what] / 8)
    assert cut["the sampler's weights"] == whole["the sampler's weights"] == 2 * seven.shape.parameters
    more = plan.memory(replace(seven, gpus=64)).needed
    assert more < plan.memory(seven).needed


def test_what_cannot_fit_does_not(plan, model, seven):
    """16 bytes a weight are 114 GiB for 7.6 billion, on a GPU of 80."""
    alone = replace(seven, gpus=1, sharded=False)
    assert not plan.memory(alone).fits
    assert "training needs" in plan.memory(alone).lacking
    assert plan.memory(seven).fits
    assert plan.memory(seven).lacking == ""
    big = plan.placements(model.QWEN_32B, seven.batch, 8, modes=("full",))
    assert {one.way.name for one in big if plan.memory(one).fits} == {"verl"}
    assert plan.best([one for one in big if one.way is model.GROUPRL]) is None
    assert plan.best(big).way is model.VERL


@pytest.mark.parametrize("parameters", [1.5e9, 7e9, 1.4e10, 3e10])
@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_what_is_filled_fits_too(plan, model, parameters, gpus):
    """With the micro-batch and the cache that the times are of, no GPU holds more than it has room for."""
    batch = model.Batch(128, 8, 200, 800, 2048, 0.4)
    for one in plan.placements(model.shape_of(parameters), batch, gpus):
        found = plan.memory(one)
        if not found.fits:
            continue
        activations = found.training["activations"] * found.micro_batch_tokens / plan.FEWEST_TOKENS
        cache = plan.cache_bytes(one)[0] * found.at_once
        training = sum(found.training.values()) - found.training["activations"] + activations
        sampling = sum(found.sampling.values()) - found.sampling["keys and values"] + cache
        if one.way is model.GROUPRL_VLLM:  # its cache stays beside training
            training += cache - found.training["keys and values"]
        assert max(training, sampling) <= found.room * (1 + 1e-9), one.name
        assert found.at_once >= min(batch.G, 8)
        assert found.micro_batch_tokens >= plan.FEWEST_TOKENS


def test_checkpointing_keeps_less_and_works_more(model, plan, seven):
    without = replace(seven, checkpointing=False)
    fast = plan.step(seven, plan.BAND[0]), plan.step(without, plan.BAND[0])
    assert fast[0].seconds["training"] > fast[1].seconds["training"]
    bytes_kept = [seven.shape.saved_bytes(2, checkpointing=kind) for kind in (True, False)]
    assert bytes_kept[0] < bytes_kept[1] / 10


def test_kl_leaves_no_group_out_and_adds_a_forward(plan, seven):
    with_kl = plan.step(replace(seven, beta=True), plan.BAND[0]).seconds
    without = plan.step(seven, plan.BAND[0]).seconds
    assert with_kl["log-probs, KL"] > 0 == without["log-probs, KL"]
    assert with_kl["training"] == pytest.approx(without["training"] / 0.6, rel=0.05)


# The fit


@pytest.fixture(scope="module")
def points(scripts):
    return scripts("scaling_fit").load()["points"]


def test_rates_that_made_the_numbers_are_found_again(scripts, points):
    """Of numbers without noise, from a start far off."""
    fit, shapes = scripts("scaling_fit"), scripts("scaling_points").SHAPES
    truth = {
        "body": 3e11, "weights": 1.2e10, "activations": 4e9, "logits": 3e8, "stream": 2e10,
        "call_s": 1e-4,
    }  # fmt: skip
    made = [
        point
        | {
            "seconds": fit.predicted(
                shapes[point["model"]], scripts("cost_model").Batch(**point["batch"]), fit.rates(truth)
            )
        }
        for point in points
    ]
    found = fit.fit(made, shapes)
    for name, value in truth.items():
        assert found[name] == pytest.approx(value, rel=0.01), name
    assert fit.errors(made, shapes, fit.rates(found))["held out"]["step"]["most"] < 0.01


def test_held_out_points_are_not_looked_at(scripts, points):
    fit, shapes = scripts("scaling_fit"), scripts("scaling_points").SHAPES
    spoilt = [
        point if point["fitted"] else point | {"seconds": dict.fromkeys(point["seconds"], 1e6)}
        for point in points
    ]
    assert fit.fit(spoilt, shapes) == fit.fit(points, shapes)
    with pytest.raises(ValueError, match="no fitted point"):
        fit.fit([point for point in points if not point["fitted"]], shapes)


def test_the_written_rates_are_those_of_the_written_points(scripts, points):
    fit, shapes = scripts("scaling_fit"), scripts("scaling_points").SHAPES
    written = fit.load()["rates"]
    for name, value in fit.fit(points, shapes).items():
        assert written[name] == pytest.approx(value, rel=1e-3), name


def test_the_points_are_those_of_the_plan(scripts, points):
    planned = {
        (name, json.dumps(asdict(batch), sort_keys=True)): fitted
        for name, batch, fitted in scripts("scaling_points").POINTS
    }
    measured = {(p["model"], json.dumps(p["batch"], sort_keys=True)): p["fitted"] for p in points}
    assert measured == planned
    assert {p["model"] for p in points if not p["fitted"]} - {p["model"] for p in points if p["fitted"]} == {
        "middle"
    }


def test_what_was_not_fitted_is_foretold(scripts, points):
    """What docs/scaling.md claims, with room: the page has the numbers."""
    fit, shapes = scripts("scaling_fit"), scripts("scaling_points").SHAPES
    found = fit.errors(points, shapes, fit.rates(fit.load()["rates"]))["held out"]
    assert found["points"] >= 6
    assert found["step"]["median"] < 0.2
    growth = [
        abs(
            fit.step_seconds(p["shape"], p["batch"], fit.rates(fit.load()["rates"])) / p["ours"]["seconds"]
            - 1
        )
        for p in fit.growth_points()
    ]
    assert sorted(growth)[len(growth) // 2] < 0.2


def test_a_stage_is_measured_by_running_it(scripts):
    """The measuring code on a model of a kilobyte: four stages, each of some time."""
    measure = scripts("scaling_measure")
    policy = tiny.policy("llama")
    policy.__class__ = measure.Endless
    batch = scripts("cost_model").Batch(prompts=2, G=2, prompt_tokens=6, completion_tokens=4)
    seconds = measure.measure(policy, batch, repeats=2)
    assert set(seconds) == set(scripts("scaling_fit").STAGES)
    assert all(value > 0 for stage, value in seconds.items() if stage != "decode")
    groups, _ = measure.sampling_stages(policy, batch, seed=1)
    assert [len(c.token_ids) for g in groups for c in g.completions] == [4] * 4
    assert {len(g.prompt_token_ids) for g in groups} == {6}


# The page


def test_the_page_is_what_the_model_says(scripts):
    page = scripts("scaling_page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text) == text, "docs/scaling.md is stale: make figures"
    names = {match["name"] for match in page.MARKER.finditer(text)}
    assert names == set(page.PARTS)


# The command


def run(scripts, *arguments):
    return scripts("scaling").main(list(arguments))


def test_the_command_prints_placements_and_stages(scripts, capsys):
    assert run(scripts, "--parameters", "7e9", "--gpus", "8") == 0
    said = capsys.readouterr().out
    assert said.startswith("Qwen2.5-7B: 7.62B parameters")
    assert "| grouprl | FSDP |" in said
    assert "| grouprl | DP | does not fit | training needs " in said
    assert "| verl | FSDP, vLLM over 2 |" in said
    assert "| prefill | decode | reward |" in said
    assert "tokens of the plain way over grouprl's" in said


def test_a_model_of_ones_own(scripts, capsys, tmp_path):
    tiny.policy("qwen2").model.config.save_pretrained(tmp_path)
    assert (
        run(scripts, "--config", str(tmp_path / "config.json"), "--gpus", "1", "--mode", "full", "--lengths")
        == 0
    )
    said = capsys.readouterr().out
    assert "2 layers of 32" in said
    assert "| 8,192 |" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parameters", "7"], "--parameters 7: expected 1e7 to 1e12"),
        (["--parameters", "nan"], "--parameters nan: expected 1e7 to 1e12"),
        (["--parameters", "seven"], "argument --parameters: invalid float value: 'seven'"),
        (["--gpus", "0"], "--gpus 0: expected at least 1"),
        (["--dead-share", "1"], "--dead-share 1: expected a share"),
        (["--longest-tokens", "10"], "--longest-tokens 10: expected at least --completion-tokens, 800"),
        (["--reward-seconds", "inf"], "--reward-seconds inf: expected 0 or more"),
        (["--gpu", "tpu"], "argument --gpu: invalid choice: 'tpu'"),
        (["--config", "nowhere/config.json"], "--config nowhere/config.json: cannot be read"),
        (["--model", "qwen2.5-7b", "--parameters", "7e9"], "not allowed with argument"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(scripts, capsys, arguments, said):
    try:
        code = run(scripts, *arguments)
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.startswith("scaling: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("text", ["[1]", "{}", '{"num_attention_heads": 0}', "not JSON"])
def test_a_config_of_another_kind(scripts, capsys, tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert run(scripts, "--config", str(path)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_teaches(scripts, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(scripts, "--help")
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "python benchmarks/scaling.py --parameters 7e9 --gpus 8" in said
    assert "No GPU is needed" in said
