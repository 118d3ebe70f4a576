"""A task definition from anyone is data: it runs no code unless code is allowed."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from potentia import files, limited
from potentia.errors import TaskError
from potentia.tasks import load
from potentia.tasks.consent import FunctionName, apply_consent
from potentia.tasks.data import load_splits
from potentia.tasks.definitions import read_definition, read_user_task, tasks_folder

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


def definition(
    folder: Path, *, text: str = "{{q}}", metric: str = "{metric: acc}", more: str = ""
) -> Path:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"q": f"question {n}"}) + "\n" for n in range(30)))
    file = folder / "own.yaml"
    file.write_text(BODY.format(data=data, text=text, metric=metric, more=more))
    return file


@pytest.fixture(autouse=True)
def cautious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(files.CODE, raising=False)
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


def test_a_function_runs_only_where_code_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef ask(doc): return 'asked ' + doc['q']\n"
    )
    file = definition(tmp_path)
    file.write_text(
        file.read_text().replace('doc_to_text: "{{q}}"', "doc_to_text: !function mine.ask")
    )
    with pytest.raises(TaskError, match="!function mine") as refused:
        load(str(file))
    assert "--allow code" in (refused.value.hint or "")
    assert not mark.exists()
    (tmp_path / "above.yaml").write_text("include: own.yaml\ntask: above\n")
    with pytest.raises(TaskError, match="!function mine"):
        load(str(tmp_path / "above.yaml"))
    monkeypatch.setenv(files.CODE, "1")
    assert ask(file).startswith("asked")
    assert mark.exists()


# Functions of lm-eval that evaluate what they are given, as a definition could have them called.
COUNTDOWN = """custom_dataset: !function lm_eval.tasks.longproc.metrics._evaluate_countdown_final_solution
metadata: {nums: [], target: 1, solution_text: "__import__('os').system('touch MARK')=0\\nx\\ny"}"""
CRUXEVAL = """custom_dataset: !function lm_eval.tasks.cruxeval.utils.check_correctness
metadata: {check_program: "import os; os.system('touch MARK')", timeout: 3, task_id: 1, completion_id: 1}"""
OWN_GROUP = """group: both
process_results: !function lm_eval.tasks.hellaswag.utils.process_docs
metric_list: [{metric: METRIC, hf_evaluate: true}]
task:
  - {task: arc_easy, process_results: null}
  - task: mine
    process_results: null
    dataset_path: json
    dataset_kwargs: {data_files: {test: DATA}}
    output_type: multiple_choice
    test_split: test
    doc_to_text: "{{q}}"
    doc_to_choice: [a, b]
    doc_to_target: 0
"""


@pytest.mark.parametrize("more", [COUNTDOWN, CRUXEVAL])
def test_data_that_a_function_makes_need_consent(tmp_path: Path, more: str):
    file = definition(tmp_path, more=more.replace("MARK", str(tmp_path / "mark")))
    for dropped in ("", "dataset_path: json\n"):
        file.write_text(file.read_text().replace(dropped, ""))
        with pytest.raises(TaskError, match="--allow code"):
            load(str(file))
    assert not (tmp_path / "mark").exists()


def test_a_leaf_is_checked_as_it_is_used(tmp_path: Path):
    definition(tmp_path)
    (tmp_path / "metric.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()")
    text = OWN_GROUP.replace("METRIC", str(tmp_path / "metric.py")).replace(
        "DATA", str(tmp_path / "data.jsonl")
    )
    for given in (
        text,
        text.replace("process_results: !function lm_eval.tasks.hellaswag.utils.process_docs", ""),
    ):
        (tmp_path / "both.yaml").write_text(given)
        with pytest.raises(TaskError, match="fetched and run"):
            load(str(tmp_path / "both.yaml"))
    assert not (tmp_path / "mark").exists()


def _stock_functions() -> list[tuple[str, str, str]]:
    """Return (file, keys, name) of every function that lm-eval's own definitions name."""
    results = []
    for file in sorted(tasks_folder().rglob("*.yaml")):
        module = "lm_eval.tasks." + ".".join(file.parent.relative_to(tasks_folder()).parts)
        for key, name in re.findall(
            r"^(\w+): !function ([\w.]+)", file.read_text("utf-8"), re.MULTILINE
        ):
            results.append((str(file), key, f"{module}.{name}"))
    return results


def test_no_function_that_a_file_can_name_is_called(tmp_path: Path):
    named = sorted({(key, name) for _, key, name in _stock_functions()})
    public = {
        f"{'.'.join(('lm_eval.tasks', *file.relative_to(tasks_folder()).with_suffix('').parts))}.{name}"
        for file in tasks_folder().rglob("*.py")
        for name in re.findall(r"^def (\w+)", file.read_text("utf-8", "replace"), re.MULTILINE)
    }
    assert len(named) > 300
    assert len(public) > 1000
    base = read_definition(definition(tmp_path))[0]
    tried = 0
    for key, name in [
        *named,
        *[(key, name) for name in sorted(public) for key in ("process_docs", "custom_dataset")],
    ]:
        for leaf in (
            {**base, key: FunctionName(name, tmp_path)},
            {
                **base,
                "filter_list": [
                    {
                        "name": "x",
                        "filter": [{"function": "custom", key: FunctionName(name, tmp_path)}],
                    }
                ],
            },
            {**base, "fewshot_config": {key: FunctionName(name, tmp_path)}},
            {
                **base,
                "metric_list": [
                    {
                        "metric": FunctionName(name, tmp_path),
                        "aggregation": FunctionName(name, tmp_path),
                    }
                ],
            },
        ):
            with pytest.raises(TaskError, match="--allow code"):
                apply_consent(leaf, [], "own.yaml")
            tried += 1
    assert tried > 10_000


def test_a_file_keeps_the_functions_of_the_task_that_it_changes(tmp_path: Path):
    stock = tasks_folder() / "hellaswag" / "hellaswag.yaml"
    (tmp_path / "kept.yaml").write_text(f"include: {stock}\ntask: mine\ndescription: 'Finish: '\n")
    (leaf,) = read_user_task(tmp_path / "kept.yaml").subtasks
    assert leaf["process_docs"].__module__ == "lm_eval.tasks.hellaswag.utils"
    name = "lm_eval.tasks.hellaswag.utils.process_docs"
    (tmp_path / "named.yaml").write_text(
        f"include: {stock}\ntask: mine\nprocess_docs: !function {name}\n"
    )
    assert (
        read_user_task(tmp_path / "named.yaml").subtasks[0]["process_docs"].__name__
        == "process_docs"
    )
    for change in (
        "dataset_path: someone/else",  # a stock function on other data
        "dataset_kwargs: {data_files: x.json}",
        "process_results: !function lm_eval.tasks.cruxeval.utils.check_correctness",
        f"doc_to_text: !function {name}",  # at another key
        "fewshot_config: {samples: [{query: x}]}",
    ):
        (tmp_path / "other.yaml").write_text(f"include: {stock}\ntask: mine\n{change}\n")
        with pytest.raises(TaskError, match="not of the task"):
            read_user_task(tmp_path / "other.yaml")


BOMBS = (
    "{{ 'x'|center(6000000000) }}",
    "{{ '%6000000000d' % 1 }}",
    "{{ 'x'.ljust(6000000000) }}",
    "{{ '{:6000000000d}'.format(1) }}",
    "{{ 'x'|indent(6000000000) }}",
    "{{ ('a' * 9000000)|replace('a', 'b' * 9000) }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "{{ (((10**1000)**1000)**1000) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'|regex_replace('(a+)+$', '') }}",
)


@pytest.mark.parametrize(
    "where", ["doc_to_text", "description", "gen_prefix", "doc_to_choice", "doc_to_target"]
)
def test_a_template_has_limits_wherever_it_stands(tmp_path: Path, where: str):
    file = definition(tmp_path)
    lines = [line for line in file.read_text().splitlines() if not line.startswith(where)]
    file.write_text("\n".join([*lines, f'{where}: "{BOMBS[0]}"']))
    with pytest.raises(TaskError, match="memory"):
        ask(file)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_has_limits_of_memory_and_time(
    tmp_path: Path, bomb: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limited, "DEADLINE", 1.0)
    with pytest.raises(limited.LimitError, match=r"memory|it takes"):
        limited.render_template(bomb, {"q": "x"})
    with pytest.raises(limited.LimitError):  # and is not tried again
        limited.render_template(bomb, {"q": "x"})
    assert limited.render_template("{{ q }}!", {"q": "x"}) == "x!"


def test_a_template_that_is_slow_on_every_document_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limited, "MAX_EXTRA_SECONDS", 0.3)
    slow = "{% for i in range(60000) %}{% for j in range(2) %}{% endfor %}{% endfor %}{{ q }}"
    with pytest.raises(limited.LimitError, match="too long"):
        [limited.render_template(slow, {"q": str(k)}) for k in range(1000)]
    monkeypatch.setattr(limited, "MAX_EXTRA_CHARACTERS", 5_000_000)
    with pytest.raises(limited.LimitError, match="too much"):
        [limited.render_template("{{ 'x' * 1000000 }}{{ q }}", {"q": str(k)}) for k in range(100)]


def test_the_limited_process_renders_as_lm_eval_does():
    from jinja2 import Environment
    from lm_eval import utils

    assert set(utils.env.filters) - set(Environment().filters) == {"regex_replace"}
    docs = [{"q": f"Wer ist {k}?\n", "c": ["a", {"b": 1.5}, None], "n": k} for k in range(3)]
    for template in (
        "{{q}}",
        "{{q.strip()}}\n{% for x in c %}{{loop.index}}. {{x}}\n{% endfor %}\n",
        "{{q|regex_replace('W.r', 'Who')|upper}}{{n + 1}}",
        "{{c[1]['b']}} {{c|tojson}}",
    ):
        for doc in docs:
            assert limited.render_template(template, doc) == utils.apply_template(template, doc)
    assert limited.render_template("{{c}}", docs[0], literal=True) == docs[0]["c"]


def test_patterns_of_filters_and_metrics_have_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limited, "DEADLINE", 1.0)
    evil, answer = "(a+)+$", "a" * 40 + "!"
    body = """
output_type: generate_until
filter_list: [{name: x, filter: [{function: regex, regex_pattern: 'FILTER'}, {function: take_first}]}]
"""
    metric = "{metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ['METRIC']}"
    for at, pattern in (("FILTER", evil), ("METRIC", evil), ("FILTER", "(b+)"), ("METRIC", "c+")):
        file = definition(tmp_path, metric=metric)
        text = (
            file.read_text()
            .replace("output_type: multiple_choice\n", body)
            .replace('doc_to_choice: ["a", "b"]', "")
        )
        text = text.replace("doc_to_target: 0", 'doc_to_target: "b"')
        file.write_text(text.replace(at, pattern).replace("FILTER", "(.+)").replace("METRIC", ","))
        task = load(str(file))
        prompts = task.prompts(task.documents("test")[:1])
        if pattern == evil:
            with pytest.raises(TaskError, match="regular expression"):
                task.grade(prompts, [[answer]])
        else:
            assert task.grade(prompts, [["ccb" if at == "METRIC" else "a b c"]])[0].value == 1.0


def test_data_have_limits(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    same = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["a" * 10**6])
    empty = pa.DictionaryArray.from_arrays(pa.array([0] * 1_500_000, pa.int32()), [""])
    nulls = pa.ListArray.from_arrays(pa.array([0, 5_000_000]), pa.nulls(5_000_000))
    bombs = {  # by whether the file says that its texts are shared
        "texts": (pa.table({"text": same}), False),
        "rows": (pa.table({"text": empty}), False),
        "dictionary": (pa.table({"text": same}), True),
        "lists": (pa.table({"text": ["x"], "more": nulls}), True),
    }
    for name, (table, typed) in bombs.items():
        file = tmp_path / f"{name}.parquet"
        pq.write_table(table, file, compression="zstd", store_schema=typed)
        assert file.stat().st_size < 100_000
        with pytest.raises(TaskError, match=r"unpacks|memory|rows"):
            load(str(file))
        own = definition(tmp_path)
        text = own.read_text().replace("dataset_path: json", "dataset_path: parquet")
        own.write_text(text.replace("data.jsonl", file.name))
        with pytest.raises(TaskError, match=r"unpacks|memory|rows"):
            load(str(own))
    packed = tmp_path / "data.jsonl"
    definition(tmp_path)
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    with pytest.raises(TaskError, match="packed"):
        load(str(tmp_path / "own.yaml"))
    (tmp_path / "many.jsonl").write_text('{"text": [' + "[]," * 17_000_000 + "[]]}")
    with pytest.raises(TaskError, match="values"):
        load(str(tmp_path / "many.jsonl"))


@pytest.mark.parametrize(
    "name", ["own.yaml", "own.jsonl", "own.parquet", "own.csv", "own.txt", "own.json"]
)
def test_a_pipe_is_no_file(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / name)
    with pytest.raises(TaskError, match="not a plain file"):
        load(str(tmp_path / name))


def test_a_definition_of_a_pipe_is_refused(tmp_path: Path):
    file = definition(tmp_path)
    (tmp_path / "data.jsonl").unlink()
    os.mkfifo(tmp_path / "data.jsonl")
    with pytest.raises(TaskError, match="not a plain file"):
        load(str(file))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "{metric: ./metric.py}"}, "not one of lm-eval's"),
        ({"metric": "{metric: acc, hf_evaluate: true}"}, "not one of lm-eval's"),
        ({"more": "unsafe_code: true"}, "unsafe_code"),
        ({"more": "use_prompt: 'x.yaml:a'"}, "use_prompt"),
        ({"more": "class: !function task.Task"}, "class"),
        ({"more": "repeats: 1000000000"}, "repeats"),
        ({"more": "doc_to_image: q"}, "only text"),
        ({"more": "include: own.yaml"}, "includes itself"),
        ({"more": "include: {a: b}"}, "is not a file"),
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
    with pytest.raises(TaskError, match="is not a name"):
        load(str(file))


def test_a_split_that_is_no_name_is_absent(tmp_path: Path):
    file = definition(tmp_path)
    file.write_text(file.read_text().replace("training_split: train", "training_split: [train]"))
    assert ask(file).startswith("question")


def test_a_data_set_whose_name_no_disk_takes_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="too long"):
        load_splits({"dataset_path": "é" * 300}, tmp_path)


def test_an_empty_template_is_one_like_any_other():
    """A corpus asks nothing, so its question is the empty template."""
    assert limited.render_template("{{q}}", {"q": "x"}) == "x"
    assert limited.render_template("", {"q": "x"}) == ""


def test_a_machine_that_is_busy_makes_no_template_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits count what the child's processor does, not the clock: here the child gets none for a while."""
    monkeypatch.setattr(limited, "MAX_EXTRA_SECONDS", 0.3)
    template = "{{ name }} waits"
    assert limited.render_template(template, {"name": "first"}) == "first waits"
    child = limited._child.process.pid
    for k in range(2):
        os.kill(child, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (child, signal.SIGCONT)).start()
        assert limited.render_template(template, {"name": k}) == f"{k} waits"


def test_templates_are_rendered_also_after_parquet_was_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    limited._child.stop()
    pq.write_table(pa.table({"q": ["x"] * 1000}), tmp_path / "rows.parquet")
    assert limited.read_parquet(str(tmp_path / "rows.parquet")).num_rows == 1000
    assert [limited.render_template("{{ q }} after", {"q": k}) for k in range(50)] == [
        f"{k} after" for k in range(50)
    ]


def test_packages_that_a_stock_task_lacks_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As minerva_math without its version of antlr4: lm-eval's own text names a wrong purpose and two commands."""
    from lm_eval.tasks import _yaml_loader

    def refuse(path: Path) -> None:
        raise AssertionError(
            "`antlr4-python3-runtime==4.11` is required for translation prompt templates. "
            "Please install the required packages via pip install lm-eval[math]"
        )

    monkeypatch.setattr(_yaml_loader, "load_yaml", refuse)
    path = tasks_folder() / "minerva_math" / "minerva_math_algebra.yaml"
    with pytest.raises(
        TaskError, match="lm-eval computes it with packages that are not here"
    ) as caught:
        read_definition(path)
    assert caught.value.hint == "pip install 'lm_eval[math]'"
