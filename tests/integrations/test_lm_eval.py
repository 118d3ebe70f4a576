"""Potentia as a model of lm-eval: whole evaluations give HFLM's metrics to the last digit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from potentia.engine import LoadedModel
from potentia.errors import InputError
from potentia.integrations.lm_eval import PotentiaLM
from scoring_models import ARCHITECTURES, CORPUS, tiny

CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{label}}"
doc_to_choice: "{{choices}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""

WRITE = """
task: tiny_write
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["e", "\\n"], do_sample: false, max_gen_toks: 12}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""

ROLL = """
task: tiny_roll
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json
    import random

    folder = tmp_path_factory.mktemp("tasks")
    rng = random.Random(4)
    words = " ".join(CORPUS[:3]).split()
    data = folder / "data.jsonl"
    with data.open("w") as stream:
        for _ in range(12):
            choices = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(4)]
            question = " ".join(rng.choices(words, k=rng.randint(3, 12)))
            stream.write(
                json.dumps({"question": question, "choices": choices, "label": rng.randrange(4)})
                + "\n"
            )
    for name, text in (("choice", CHOICE), ("write", WRITE), ("roll", ROLL)):
        (folder / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
    return folder


def _evaluate(model: Any, folder: Path, tasks: list[str]) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    evaluate = lm_eval.simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=manager,
        bootstrap_iters=50,
        log_samples=True,
        verbosity="ERROR",
    )
    return evaluate


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_metrics_equal_hflm(kind: str, folder: Path) -> None:
    loaded = tiny(kind, positions=128)
    tasks = ["tiny_choice", "tiny_write"] + ([] if loaded.bos.required else ["tiny_roll"])
    ours = _evaluate(PotentiaLM(loaded), folder, tasks)
    theirs = _evaluate(
        HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=4), folder, tasks
    )
    for task in tasks:
        for metric, value in theirs["results"][task].items():
            if isinstance(value, float):
                assert ours["results"][task][metric] == pytest.approx(value, rel=1e-6), (
                    task,
                    metric,
                )
        for mine, other in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            if task == "tiny_write":
                assert mine["resps"] == other["resps"]
            elif task == "tiny_choice":
                assert mine["acc"] == other["acc"]
                assert mine["acc_norm"] == other["acc_norm"]


def test_sampling_is_refused_with_a_way_out(folder: Path) -> None:
    from lm_eval.api.instance import Instance

    model = PotentiaLM(tiny("llama"))
    with pytest.raises(InputError, match="greedily"):
        model.generate_until(
            [Instance("generate_until", {}, ("a", {"do_sample": True, "temperature": 1.0}), 0)]
        )


def test_chat_templates(folder: Path) -> None:
    loaded: LoadedModel = tiny("llama")
    model = PotentiaLM(loaded)
    loaded.tokenizer.chat_template = (
        "<bos>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    try:
        turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "plants"}]
        text = model.apply_chat_template(turns)
        assert text == "<bos>[user] plants\n[assistant]"
        assert model.tok_encode(text).count(loaded.tokenizer.bos_token_id) == 1
        assert model.chat_template(True) == loaded.tokenizer.chat_template
    finally:
        loaded.tokenizer.chat_template = None


@pytest.mark.slow
def test_command_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """lm-eval's own command line with the model registered, as the documents print it: no device is named."""
    from potentia.integrations.lm_eval import main

    class OwnTasks(TaskManager):
        """The tasks of the test alone: reading ten thousand others takes ten seconds."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options, include_defaults=False)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", OwnTasks)
    loaded = tiny("llama", positions=128)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    arguments = ["--model", "potentia", "--model_args", f"pretrained={tmp_path / 'model'}"]
    monkeypatch.setattr(
        sys,
        "argv",
        ["lm_eval", *arguments, "--tasks", "tiny_choice", "--include_path", str(folder)],
    )
    main()
    result = capsys.readouterr().out
    assert "tiny_choice" in result
    assert "acc_norm" in result
