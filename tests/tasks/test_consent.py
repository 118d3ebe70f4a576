"""What executes what a model writes needs consent, under any name and however a file is put together."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from potentia import files
from potentia.errors import TaskError
from potentia.tasks import load
from potentia.tasks.consent import check_stock_consent, find_calls_in_module, read_chain
from potentia.tasks.definitions import read_stock_task, read_user_task, tasks_folder

SOLUTION = "<Solution>\\n__import__('os').system('touch MARK')+0=0\\nx\\ny\\n</Solution>"
FILTERS = (
    "[{name: x, filter: [{function: map, mapping_dict: {}, default_value: "
    f'"{SOLUTION}"}}, {{function: take_first}}]}}]'
)
COUNTDOWN = "longproc/countdown_0.5k.yaml"
GRADED = "score/math/non_greedy_robustness_math_algebra.yaml"  # its grader evaluates, and nothing says so


@pytest.fixture(autouse=True)
def cautious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(files.CODE, raising=False)
    monkeypatch.chdir(tmp_path)


def refused(file: Path, text: str) -> TaskError:
    file.write_text(text)
    with pytest.raises(TaskError) as error:
        load(str(file))
    assert "--allow code" in (error.value.hint or ""), error.value
    return error.value


HOSTILE = {
    "group": f"""
group: harmless
task:
  - task: longproc_countdown_0.5k
    unsafe_code: false
    filter_list: {FILTERS}
    generation_kwargs: {{until: ["."], max_gen_toks: 2}}
""",
    "group override": f"""
group: harmless
unsafe_code: false
filter_list: {FILTERS}
task: [longproc_countdown_0.5k]
""",
    "group of groups": """
group: harmless
task:
  - group: inner
    unsafe_code: false
    task: [{task: longproc_countdown_0.5k, unsafe_code: false}]
""",
    "group of a stock group": """
group: harmless
task: [{group: longproc_countdown, unsafe_code: false}]
""",
    "a member by its name": """
group: harmless
unsafe_code: false
task: [cruxeval_input]
""",
    "include": f"include: STOCK/{COUNTDOWN}\ntask: mine\nunsafe_code: false\n",
    "include twice": f"include: [STOCK/{COUNTDOWN}, plain.yaml]\ntask: mine\nunsafe_code: false\n",
    "named after it": """
task: longproc_countdown_0.5k
unsafe_code: false
dataset_path: PrincetonPli/LongProc
dataset_name: countdown_0.5k
output_type: generate_until
test_split: test
process_docs: !function lm_eval.tasks.longproc.utils.process_docs
process_results: !function lm_eval.tasks.longproc.metrics.process_results_countdown
""",
    "programs": "include: STOCK/humaneval/humaneval.yaml\ntask: mine\nunsafe_code: false\n",
    "graded": f"include: STOCK/{GRADED}\ntask: mine\n",
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_no_file_switches_consent_off(tmp_path: Path, kind: str):
    (tmp_path / "plain.yaml").write_text("unsafe_code: false\n")
    text = HOSTILE[kind].replace("STOCK", str(tasks_folder())).replace("MARK", "mark")
    refused(tmp_path / "own.yaml", text)
    assert not (tmp_path / "mark").exists()


def test_what_one_file_of_a_chain_calls_unsafe_stays_unsafe(tmp_path: Path):
    (tmp_path / "below.yaml").write_text("unsafe_code: true\noutput_type: generate_until\n")
    error = refused(tmp_path / "own.yaml", "include: below.yaml\ntask: mine\nunsafe_code: false\n")
    assert "unsafe_code" in error.message


@pytest.mark.parametrize(
    "name",
    [
        "longproc_countdown_0.5k",
        "longproc",
        "humaneval",
        "humaneval_64_instruct",
        "mbpp_plus",
        "cruxeval_input",
        "non_greedy_robustness_math_algebra",
        "longproc_countdown_0.5k:generate",
        "humaneval:cloze",
    ],
)
def test_a_stock_task_that_executes_answers_needs_consent(name: str):
    with pytest.raises(TaskError, match="executes what a model writes") as error:
        load(name)
    assert "--allow code" in (error.value.hint or "")
    assert "it would run" in error.value.message


def test_a_stock_task_is_read_where_code_is_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(files.CODE, "1")
    (definition,) = read_stock_task("longproc_countdown_0.5k").subtasks
    assert definition["process_results"].__name__ == "process_results_countdown"


def test_the_data_of_such_a_task_can_be_named():
    (definition,) = read_stock_task("humaneval", as_data=True).subtasks
    assert definition["dataset_path"] == "openai/openai_humaneval"


EXECUTING_FOLDERS = ("humaneval", "mbpp", "cruxeval", "longproc", "score")


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
def test_stock_definitions_are_judged_and_few_are_refused(every: int):
    """Every task that lm-eval marks is refused; of the others those alone whose modules execute a text."""
    marked, other, fine = set(), set(), 0
    definitions = sorted(tasks_folder().rglob("*.yaml"))
    chosen = set(definitions[::every])
    for folder in EXECUTING_FOLDERS:
        chosen |= set((tasks_folder() / folder).rglob("*.yaml"))
    for file in sorted(chosen):
        try:
            chain = read_chain(file)
        except yaml.YAMLError:
            continue
        unsafe = any(definition.get("unsafe_code") for definition in chain)
        try:
            check_stock_consent(file)
            assert not unsafe, file
            fine += 1
        except TaskError:
            (marked if unsafe else other).add(file.relative_to(tasks_folder()).parts[0])
    assert {"humaneval", "mbpp", "cruxeval", "longproc"} <= marked
    assert other == {"score"}
    assert fine > 5_000 // every


def test_calls_are_found_through_imports():
    calls = find_calls_in_module(tasks_folder() / "score" / "math" / "utils_math.py")
    assert calls == ("parse_expr in math/math_grader.py",)
    assert find_calls_in_module(tasks_folder() / "hellaswag" / "utils.py") == ()


CHANGES = (
    f"filter_list: {FILTERS}",
    "filter_list: [{name: x, filter: [{function: take_first}]}]",
    "doc_to_text: '{{question}}'",
    "doc_to_target: 'x'",
    "doc_to_choice: [a, b]",
    "process_docs: null",
    "generation_kwargs: {until: ['.'], max_gen_toks: 2}",
    "output_type: generate_until",
    "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]",
    "repeats: 5",
    "gen_prefix: x",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_function_that_reads_results_is_kept_only_where_all_that_reaches_it_is_stock(
    tmp_path: Path, change: str
):
    stock = tasks_folder() / "truthfulqa" / "truthfulqa_mc2.yaml"  # it has `process_results`
    file = tmp_path / "own.yaml"
    file.write_text(f"include: {stock}\ntask: mine\ndescription: 'Think. '\nnum_fewshot: 0\n")
    (kept,) = read_user_task(file).subtasks
    assert callable(kept["process_results"])
    file.write_text(f"include: {stock}\ntask: mine\n{change}\n")
    stock_value = kept.get(change.partition(":")[0])
    if stock_value == yaml.safe_load(change)[change.partition(":")[0]]:
        assert callable(read_user_task(file).subtasks[0]["process_results"])
    else:
        refused(file, file.read_text())
        group = f"group: both\n{change}\ntask: [truthfulqa_mc2]\n"
        refused(tmp_path / "group.yaml", group)


def test_a_function_that_reads_documents_lets_a_file_ask_otherwise(tmp_path: Path):
    stock = tasks_folder() / "hellaswag" / "hellaswag.yaml"
    file = tmp_path / "own.yaml"
    file.write_text(f"include: {stock}\ntask: mine\ndoc_to_text: 'Q: {{{{query}}}}'\n")
    (kept,) = read_user_task(file).subtasks
    assert kept["process_docs"].__name__ == "process_docs"


def test_a_file_with_the_name_of_an_unsafe_task_and_no_function_is_data(tmp_path: Path):
    (tmp_path / "own.yaml").write_text(
        "task: humaneval\ndataset_path: json\noutput_type: generate_until\ndoc_to_text: q\n"
    )
    (definition,) = read_user_task(tmp_path / "own.yaml").subtasks
    assert definition["task"] == "humaneval"
