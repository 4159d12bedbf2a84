"""Reward models in process: what they read, and that a batch gives what each sequence gives alone."""

import pytest
import tiny
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from grouprl import tasks
from grouprl.errors import ModelError, TaskError
from grouprl.policy import RewardModel, load_reward_model
from grouprl.types import Completion, Group, Prompt

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]


def save(folder, family="llama", *, labels=1, template=tiny.TEMPLATE, safe=True, **overrides):
    """A tiny random sequence classifier on disk."""
    tokenizer = tiny.tokenizer(template=template)
    options = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "num_labels": labels,
        "pad_token_id": None if family != "bert" else 1,
        **overrides,
    }
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def logit(model, ids):
    """Of one sequence by itself, as transformers gives it."""
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([ids])).logits[0, 0].item()


@pytest.mark.parametrize("pad", [None, 1, 0])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "bert"])
def test_a_batch_gives_what_each_sequence_gives_alone(tmp_path, family, pad):
    """Of any lengths: padding is masked, and a decoder reads the last token that is not padding.

    Every conversation here ends in <|im_end|> and a line break; pad 1 is <|im_end|>, as in many a chat model.
    """
    if family == "bert" and pad is None:
        pad = 2
    extra = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128} if family == "gpt2" else {}
    model = load_reward_model(save(tmp_path, family, pad_token_id=pad, **extra), device="cpu")
    texts = ["4", "four, I think", "", "a" * 60, "b" * 7]
    prompts = [CONVERSATION, "2 + 2?", CONVERSATION, "x", "yy"]
    found = model(texts, prompts)
    rows = [model.encode(prompt, text)["input_ids"] for prompt, text in zip(prompts, texts, strict=True)]
    assert found == pytest.approx([logit(model, row) for row in rows], abs=2e-5)
    assert len({round(reward, 3) for reward in found}) == 5
    assert model.model.config.pad_token_id == pad
    small = RewardModel(model.model, model.tokenizer, batch_tokens=1)  # one sequence at a time
    assert small(texts, prompts) == pytest.approx(found, abs=2e-5)


def test_the_completion_is_the_assistants_turn(tmp_path):
    model = load_reward_model(save(tmp_path), device="cpu")
    turns = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n4<|im_end|>\n"
    )
    assert model.tokenizer.decode(model.encode(CONVERSATION, "4")["input_ids"]) == turns
    plain = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    assert model.tokenizer.decode(model.encode("2 + 2?", "4")["input_ids"]) == plain


def test_the_template_writes_the_bos_alone(tmp_path):
    model = load_reward_model(save(tmp_path, template="<bos>" + tiny.TEMPLATE), device="cpu")
    model.tokenizer = tiny.tokenizer(adds_bos=True, template="<bos>" + tiny.TEMPLATE)
    ids = model.encode("q", "a")["input_ids"]
    assert ids.count(model.tokenizer.bos_token_id) == 1
    assert ids[0] == model.tokenizer.bos_token_id


def test_without_a_template_it_is_a_pair(tmp_path):
    model = load_reward_model(save(tmp_path, template=None), device="cpu")
    assert model.tokenizer.decode(model.encode("2 + 2?", "4")["input_ids"]) == "2 + 2?4"
    assert model.tokenizer.decode(model.encode(CONVERSATION, "4")["input_ids"]) == "Be brief.\n\n2 + 2?4"


def test_what_is_too_long_is_unscored_and_the_rest_is_not(tmp_path):
    model = load_reward_model(save(tmp_path), device="cpu")
    assert model.max_tokens == 128
    found = model(["4", "a" * 300], ["2 + 2?"] * 2)
    assert found == [pytest.approx(logit(model, model.encode("2 + 2?", "4")["input_ids"]), abs=2e-5), None]
    assert model([], []) == []


def test_it_scores_groups(tmp_path):
    model = load_reward_model(f"model:{save(tmp_path / 'rm')}", device="cpu")
    completions = tuple(Completion((1,), (-1.0,), (True,), text, "stop") for text in ("4", "five"))
    groups = [Group("g", Prompt("p", tuple(CONVERSATION)), "p", (1,), completions)]
    scores = tasks.score([tasks.Reward(model.name, model)], groups)
    assert model.name == "rm"
    assert scores.components == {"rm": model(["4", "five"], [CONVERSATION] * 2)}


def test_it_has_no_gradient_and_no_dropout(tmp_path):
    model = load_reward_model(save(tmp_path, attention_dropout=0.5), device="cpu")
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    assert model(["a"], ["b"]) == model(["a"], ["b"])


def test_bfloat16(tmp_path):
    """Within bfloat16's 8 bits of the float32 scores, relative to the logits' own size."""
    folder = save(tmp_path)
    exact = load_reward_model(folder, device="cpu")(["4", "five"], ["q"] * 2)
    model = load_reward_model(folder, device="cpu", dtype="bfloat16")
    assert model.model.dtype == torch.bfloat16
    assert model(["4", "five"], ["q"] * 2) == pytest.approx(exact, abs=0.1 * max(map(abs, exact)))


@pytest.mark.parametrize(
    ("labels", "message"), [(2, "it has 2 labels, expected 1"), (3, "it has 3 labels, expected 1")]
)
def test_several_labels_are_no_reward(tmp_path, labels, message):
    with pytest.raises(ModelError, match=message):
        load_reward_model(save(tmp_path, labels=labels), device="cpu")


def test_a_head_that_would_be_random_is_refused(tmp_path, tiny_model):
    import json
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "lm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_labels": 1, "id2label": {"0": "r"}}))
    with pytest.raises(ModelError, match=r"its weights lack score.weight, which would be random"):
        load_reward_model(str(folder), device="cpu")


def test_pickled_weights_are_refused(tmp_path):
    folder = save(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_reward_model(folder, device="cpu")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("model:", "reward 'model:': no name after it"),
        ("./nowhere", "reward model './nowhere': there is no such folder"),
        ("model:/no/such/folder", "reward 'model:/no/such/folder': there is no such folder"),
        ("model:nobody/nothing", "reward 'model:nobody/nothing': neither a folder nor in the hub's cache"),
    ],
)
def test_a_model_that_is_not_there_is_named_as_it_was_given(name, begins):
    """Not as the policy's, and with what a reward model is, in place of the policies that there are."""
    with pytest.raises(ModelError) as raised:
        load_reward_model(name)
    assert str(raised.value).startswith(begins)
    assert "sequence classifier with one label" in str(raised.value)
    assert "bundled" not in str(raised.value)


def test_one_that_fails_is_named_as_it_was_given(tmp_path, monkeypatch):
    """Whatever is wrong with it: a file, a folder without a model, other labels, damaged weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    save(tmp_path / "labels", labels=2)
    save(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"no weights")
    for folder in ("file", "empty", "labels", "damaged"):
        with pytest.raises(ModelError, match=rf"^reward 'model:{folder}': "):
            load_reward_model(f"model:{folder}", device="cpu")


def test_it_is_called_after_the_folder_that_tells_it_from_others(tmp_path, monkeypatch):
    save(tmp_path / "rm" / "model")
    assert load_reward_model(f"model:{tmp_path}/rm/model", device="cpu").name == "rm"
    assert load_reward_model(str(tmp_path / "rm" / "model"), device="cpu").name == "rm"
    monkeypatch.chdir(tmp_path / "rm" / "model")
    assert load_reward_model("model:.", device="cpu").name == "rm"
    save(tmp_path / "other")
    assert load_reward_model(f"model:{tmp_path}/other/", device="cpu").name == "other"


def test_a_template_that_refuses_a_prompt_stops_before_training(tmp_path):
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system prompts') }}{% endif %}x"
    )
    model = load_reward_model(save(tmp_path, template=template), device="cpu")
    prompts = [Prompt("p1", "q"), Prompt("p2", tuple(CONVERSATION))]
    task = tasks.Task("t", prompts, [], (tasks.Reward("rm", model),))
    with pytest.raises(
        TaskError, match=r"prompt 'p2': the chat template .* refuses it \(no system prompts\)"
    ):
        tasks.check_rewards(task)


def test_tasks_alone_do_not_load_models():
    with pytest.raises(TaskError, match="a reward model needs torch"):
        tasks.reward_from_spec("model:some/folder")
