"""Every built-in name makes a reward that scores a batch, and is found before a module of its name."""

from pathlib import Path

import pytest

from grouprl.errors import TaskError
from grouprl.tasks import reward_from_spec, score
from grouprl.tasks.named_rewards import is_named, signatures
from grouprl.types import Completion, Group, Prompt

OPTIONS = {
    "cosine_length": ":last_number,64",
    "length_linear": ":64",
    "soft_overlong": ":64,8",
}


@pytest.mark.parametrize("name", [form.partition(":")[0].partition("[")[0] for form in signatures()])
@pytest.mark.parametrize(
    "content", ["2 + 2?", ({"role": "system", "content": "Sum."}, {"role": "user", "content": "2+2?"})]
)
def test_each_scores_plain_prompts_and_conversations(name: str, content: object) -> None:
    reward = reward_from_spec(name + OPTIONS.get(name, ""))
    assert reward.name == name
    completion = Completion((5,), (-0.1,), (True,), "#### 4", "stop")
    group = Group("g", Prompt("p", content, {"answer": "4"}), "2 + 2?", (1,), (completion,) * 2)  # type: ignore[arg-type]
    first, second = score([reward], [group]).components[name]
    assert first is not None
    assert first == second


def test_a_name_goes_before_a_module_but_not_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tags.py").write_text("def think(completions):\n    return [7.0] * len(completions)\n")
    assert reward_from_spec("tags:think").function(completions=["a"]) == [0.0]
    assert reward_from_spec("tags.py:think").function(completions=["a"]) == [7.0]
    assert is_named("math")
    assert not is_named("tags.py:think")


def test_a_near_miss_is_named() -> None:
    with pytest.raises(TaskError, match=r"did you mean 'length_linear'\?"):
        reward_from_spec("length_lineal")
