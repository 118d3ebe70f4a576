"""A task definition from anyone is data: it runs no code unless code is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potentia import consent
from potentia.errors import TaskError
from potentia.tasks import load
from potentia.tasks.data import load_splits

BODY = """
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}, train: {data}}}}}
output_type: multiple_choice
training_split: train
test_split: test
doc_to_text: "{text}"
doc_to_choice: ["a", "b"]
doc_to_target: 0
metric_list: [{metric}]
{more}
"""
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ ('%s' * 3).format.__globals__ }}",
    "{{ 'a' * 10 ** 12 }}",
)


def definition(folder: Path, *, text: str = "{{q}}", metric: str = "{metric: acc}", more: str = "") -> Path:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"q": f"question {n}"}) + "\n" for n in range(30)))
    file = folder / "own.yaml"
    file.write_text(BODY.format(data=data, text=text, metric=metric, more=more))
    return file


@pytest.fixture(autouse=True)
def cautious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(consent.CODE, raising=False)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def ask(file: Path) -> str:
    task = load(str(file))
    return task.prompts(task.documents("test")[:1])[0].text


def test_a_plain_definition_is_loaded(tmp_path: Path):
    assert ask(definition(tmp_path)).startswith("question")


@pytest.mark.parametrize("text", ESCAPES)
def test_a_template_reads_its_document_and_nothing_else(tmp_path: Path, text: str):
    file = definition(tmp_path, text=text.replace("MARK", str(tmp_path / "mark")))
    with pytest.raises(TaskError):
        ask(file)
    assert not (tmp_path / "mark").exists()


def test_a_function_runs_only_where_code_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef ask(doc): return 'asked ' + doc['q']\n")
    file = definition(tmp_path)
    file.write_text(file.read_text().replace('doc_to_text: "{{q}}"', "doc_to_text: !function mine.ask"))
    with pytest.raises(TaskError, match="!function mine") as refused:
        load(str(file))
    assert "--allow-code" in (refused.value.hint or "")
    assert not mark.exists()
    (tmp_path / "above.yaml").write_text("include: own.yaml\ntask: above\n")
    with pytest.raises(TaskError, match="!function mine"):
        load(str(tmp_path / "above.yaml"))
    monkeypatch.setenv(consent.CODE, "1")
    assert ask(file).startswith("asked")
    assert mark.exists()


def test_functions_of_the_harness_are_no_danger(tmp_path: Path):
    more = "process_docs: !function lm_eval.tasks.hellaswag.utils.process_docs"
    with pytest.raises(TaskError) as unfit:  # it is read and called; these data lack its columns
        load(str(definition(tmp_path, more=more)))
    assert "runs code" not in str(unfit.value)
    for name in ("lm_eval.tasks.hellaswag.utils.re", "lm_eval.tasks.hellaswag.utils.datasets", "os.system"):
        with pytest.raises(TaskError, match=r"no function|runs code"):
            load(str(definition(tmp_path, more=f"process_docs: !function {name}")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "{metric: ./metric.py}"}, "none of lm-eval's"),
        ({"metric": "{metric: acc, hf_evaluate: true}"}, "none of lm-eval's"),
        ({"more": "unsafe_code: true"}, "unsafe_code"),
        ({"more": "include: own.yaml"}, "includes itself"),
        ({"more": "include: {a: b}"}, "is no file"),
        ({"more": "task: twice"}, "`task` is given twice"),
    ],
)
def test_what_would_run_code_is_refused(tmp_path: Path, change: dict[str, str], words: str):
    (tmp_path / "metric.py").write_text("open('mark', 'w').close()")
    with pytest.raises(TaskError, match=words):
        load(str(definition(tmp_path, **change)))
    assert not (tmp_path / "mark").exists()


def test_pickled_data_is_refused(tmp_path: Path):
    file = definition(tmp_path)
    file.write_text(file.read_text().replace("dataset_path: json", "dataset_path: pandas"))
    with pytest.raises(TaskError, match="pandas can run code"):
        load(str(file))


def test_data_that_have_no_name_are_refused(tmp_path: Path):
    file = definition(tmp_path)
    file.write_text(file.read_text().replace("dataset_path: json", "dataset_path: [json]"))
    with pytest.raises(TaskError, match="is no name"):
        load(str(file))


def test_a_split_that_is_no_name_is_absent(tmp_path: Path):
    file = definition(tmp_path)
    file.write_text(file.read_text().replace("training_split: train", "training_split: [train]"))
    assert ask(file).startswith("question")


def test_a_data_set_whose_name_no_disk_takes_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="too long"):
        load_splits({"dataset_path": "é" * 300}, tmp_path)
