"""Files made to do harm: task definitions, data, score tables, models, adapters and stores.

Each case writes one file or folder. ``MARK`` in a text is a file that appears where code of the case has run.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.entrances import FileKind


@dataclass(frozen=True)
class Workshop:
    """Where hostile files are made: a folder for the case, the mark of its code, and harmless files to begin with."""

    folder: Path
    mark: Path
    base: Path  # a tiny model
    adapter: Path  # an adapter of it
    store: Path


@dataclass(frozen=True)
class HostileCase:
    """A hostile file: its name, its kind, and how it is made (returns its path)."""

    name: str
    kind: FileKind
    make: Callable[[Workshop], Path]


class RunsCode:
    """An object whose pickle touches the mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def pickle_that_runs(mark: Path) -> bytes:
    """Return a pickle that touches the mark when it is read."""
    return pickle.dumps(RunsCode(mark))


def module_that_runs(mark: Path) -> str:
    """Return Python that touches the mark when it is imported or called."""
    return f"import os\nos.system('touch {mark}')\ndef run(*a, **k): os.system('touch {mark}')\n"


# --- task definitions ------------------------------------------------------------------------------------------------

TEMPLATE_BOMBS = (
    "{{ 'x'|center(6000000000) }}",
    "{{ '%6000000000d' % 1 }}",
    "{{ 'x'.ljust(6000000000) }}",
    "{{ 'x'.zfill(6000000000) }}",
    "{{ '{:6000000000d}'.format(1) }}",
    "{{ 'x'|indent(6000000000) }}",
    "{{ ('a' * 9000000)|replace('a', 'b' * 9000) }}",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{{ (((10**1000)**1000)**1000) }}",
    "{{ 'a' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ range(10**5)|list * 10**6 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'|regex_replace('(a+)+$', '') }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
)
TEMPLATE_KEYS = ("doc_to_choice", "doc_to_target", "description", "gen_prefix")
FUNCTIONS = (
    "lm_eval.tasks.longproc.metrics._evaluate_countdown_final_solution",
    "lm_eval.tasks.cruxeval.utils.check_correctness",
    "lm_eval.tasks.hellaswag.utils.process_docs",
    "mine.run",
    "os.system",
    "subprocess.getoutput",
    "builtins.eval",
    "pickle.loads",
)
FUNCTION_PLACES = (
    "custom_dataset: FUNCTION\nmetadata: "
    "{nums: [], target: 1, solution_text: \"__import__('os').system('touch MARK')=0\\nx\\ny\"}",
    "custom_dataset: FUNCTION\nmetadata: {check_program: \"import os; os.system('touch MARK')\"}",
    "custom_dataset: FUNCTION\nmetadata: {cmd: 'touch MARK', command: 'touch MARK'}",
    "process_docs: FUNCTION",
    "process_results: FUNCTION",
    "class: FUNCTION",
    "metric_list: [{metric: FUNCTION, aggregation: FUNCTION}]",
    "filter_list: [{name: x, filter: [{function: custom, filter_fn: FUNCTION}]}]",
    "fewshot_config: {samples: FUNCTION, process_docs: FUNCTION}",
    "fewshot_config: {sampler: FUNCTION}",
)
OTHER_KEYS = (
    "metric_list: [{metric: FOLDER/metric.py, hf_evaluate: true}]",
    "metric_list: [{metric: FOLDER/metric.py}]",
    "metric_list: [{metric: evil/metric}]",
    "unsafe_code: true",
    "use_prompt: 'FOLDER/prompts.yaml:x'",
    "use_prompt: 'promptsource:x'",
    "dataset_path: pandas\ndataset_kwargs: {data_files: FOLDER/data.pkl}",
    "dataset_path: webdataset\ndataset_kwargs: {data_files: FOLDER/data.pkl}",
    "dataset_path: sql\ndataset_kwargs: {sql: 'x', con: 'sqlite://'}",
    "dataset_path: FOLDER/loader.py",
    "dataset_path: FOLDER\ndataset_kwargs: {trust_remote_code: true}",
    "dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}, cache_dir: FOLDER/../outside}",
    "dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}, num_proc: 100000}",
    "dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}, storage_options: {x: 1}}",
    "dataset_kwargs: {data_files: {test: FOLDER/pipe}}",
    "dataset_kwargs: {data_files: {test: /dev/zero}}",
    "dataset_kwargs: {data_files: {test: FOLDER/bomb.gz}}",
    "repeats: 1000000000",
    "num_fewshot: 1000000000",
    "doc_to_image: q",
    "include: /dev/zero",
    "include: FOLDER/pipe",
    "include: own.yaml",
    "x: &a [1,1,1,1,1,1,1,1,1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nz: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "u: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\nv: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nw: [*e,*e,*e,*e,*e,*e,*e,*e,*e]",
    "x: " + "[" * 20_000,
    "x: !!python/object/apply:os.system ['touch MARK']",
    "x: !!python/name:os.system",
    "output_type: generate_until\ndoc_to_choice: null\ndoc_to_target: b\n"
    "metric_list: [{metric: exact_match, regexes_to_ignore: ['(a+)+$']}]\n"
    "filter_list: [{name: x, filter: [{function: regex, regex_pattern: '(a+)+$'}]}]",
)
DEFINITION_BODY = """task: own
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{q}}"
doc_to_choice: [a, b]
doc_to_target: 0
metric_list: [{metric: acc}]
"""
SOLUTION = "<Solution>\\n__import__('os').system('touch MARK')+0=0\\nx\\ny\\n</Solution>"
FILTERS = (
    "[{name: x, filter: [{function: map, mapping_dict: {}, default_value: "
    f'"{SOLUTION}"}}, {{function: take_first}}]}}]'
)
# Definitions made of stock tasks that execute what a model writes, or that feed a stock function otherwise.
MADE_OF_STOCK = (
    f"group: x\ntask:\n- task: longproc_countdown_0.5k\n  unsafe_code: false\n  filter_list: {FILTERS}\n",
    f"group: x\nunsafe_code: false\nfilter_list: {FILTERS}\ntask: [longproc_countdown_0.5k]\n",
    "group: x\ntask: [{group: longproc_countdown, unsafe_code: false}]\n",
    "group: x\ntask: [{group: inner, task: [{task: longproc_countdown_0.5k, unsafe_code: false}]}]\n",
    f"include: STOCK/longproc/countdown_0.5k.yaml\ntask: x\nunsafe_code: false\nfilter_list: {FILTERS}\n",
    "include: STOCK/humaneval/humaneval.yaml\ntask: x\nunsafe_code: false\n",
    "include: STOCK/mbpp/mbpp.yaml\ntask: x\nunsafe_code: false\n",
    "include: STOCK/cruxeval/cruxeval_input.yaml\ntask: x\nunsafe_code: false\n",
    "include: STOCK/score/math/non_greedy_robustness_math_algebra.yaml\ntask: x\n",
    f"include: STOCK/truthfulqa/truthfulqa_mc2.yaml\ntask: x\nfilter_list: {FILTERS}\n",
    "include: STOCK/truthfulqa/truthfulqa_mc2.yaml\ntask: x\ndataset_path: json\n"
    "dataset_kwargs: {data_files: {validation: FOLDER/data.jsonl}}\n",
    "include: STOCK/hellaswag/hellaswag.yaml\ntask: x\nfewshot_config: {samples: [{query: x}]}\n",
)


def definition_case(name: str, keys: str, *, in_group: bool = False) -> HostileCase:
    """Return a definition of plain questions with some keys of its own."""

    def make(workshop: Workshop) -> Path:
        _write_neighbours(workshop, with_gzip_bomb="bomb.gz" in keys)
        own_keys = _fill(keys, workshop)
        own_names = {line.partition(":")[0] for line in own_keys.splitlines()}
        body = []
        for line in _fill(DEFINITION_BODY, workshop).splitlines():
            if line.partition(":")[0] not in own_names:
                body.append(line)
        text = "\n".join([*body, own_keys]) + "\n"
        if in_group:
            inner = "\n".join(f"    {line}" for line in body if not line.startswith("task:"))
            text = f"group: both\n{own_keys}\ntask:\n  - task: mine\n    process_results: null\n{inner}\n"
        file = workshop.folder / "own.yaml"
        file.write_text(text)
        return file

    return HostileCase(name, FileKind.DEFINITION, make)


def stock_case(name: str, text: str) -> HostileCase:
    """Return a definition made of stock tasks."""

    def make(workshop: Workshop) -> Path:
        from potentia.tasks.definitions import tasks_folder

        _write_neighbours(workshop, with_gzip_bomb=False)
        file = workshop.folder / "own.yaml"
        file.write_text(_fill(text, workshop).replace("STOCK", str(tasks_folder())))
        return file

    return HostileCase(name, FileKind.DEFINITION, make)


def _fill(text: str, workshop: Workshop) -> str:
    return text.replace("FOLDER", str(workshop.folder)).replace("MARK", str(workshop.mark))


def _write_neighbours(workshop: Workshop, *, with_gzip_bomb: bool) -> None:
    """Write what a definition can name beside itself: data, modules, pickles, a pipe."""
    folder = workshop.folder
    lines = [json.dumps({"q": f"q {number}"}) + "\n" for number in range(20)]
    (folder / "data.jsonl").write_text("".join(lines))
    for name in ("mine.py", "metric.py", "loader.py"):
        (folder / name).write_text(module_that_runs(workshop.mark))
    (folder / "data.pkl").write_bytes(pickle_that_runs(workshop.mark))
    os.mkfifo(folder / "pipe")
    if with_gzip_bomb:
        (folder / "bomb.gz").write_bytes(gzip.compress(b'{"q": "x"}\n' * 10**7))


def definition_cases() -> Iterator[HostileCase]:
    """Give the hostile task definitions."""
    for number, bomb in enumerate(TEMPLATE_BOMBS):
        yield definition_case(f"template {number} as doc_to_text", f'doc_to_text: "{bomb}"')
    for number, key in itertools.product(range(0, len(TEMPLATE_BOMBS), 4), TEMPLATE_KEYS):
        yield definition_case(f"template {number} as {key}", f'{key}: "{TEMPLATE_BOMBS[number]}"')
    for number, (function_place, function) in enumerate(
        itertools.product(FUNCTION_PLACES, FUNCTIONS)
    ):
        keys = function_place.replace("FUNCTION", f"!function {function}")
        yield definition_case(f"function {number}", keys)
    for number, keys in enumerate(OTHER_KEYS):
        yield definition_case(f"definition {number}", keys)
    for number, keys in enumerate(OTHER_KEYS[:4]):
        yield definition_case(f"group {number}", keys, in_group=True)
    for number, (function_place, function) in enumerate(
        itertools.product(FUNCTION_PLACES[:6], FUNCTIONS[:2])
    ):
        keys = function_place.replace("FUNCTION", f"!function {function}")
        yield definition_case(f"function in a group {number}", keys, in_group=True)
    for number, text in enumerate(MADE_OF_STOCK):
        yield stock_case(f"made of stock {number}", text)


# --- data and score tables -------------------------------------------------------------------------------------------

CONTENTS: dict[str, Callable[[Workshop], bytes]] = {
    "deep": lambda _: b"[" * 10**6,
    "deep objects": lambda _: b'{"text":' * 10**5,
    "many values": lambda _: b'{"text": [' + b"[]," * 17_000_000 + b"[]]}",
    "long number": lambda _: b'{"text": ' + b"9" * 10**6 + b"}",
    "zip": lambda _: b"PK\x03\x04" + b"\0" * 1000,
    "nul": lambda _: b"\0" * 10**6,
    "quotes": lambda _: b'"' * 10**6,
    "wide": lambda _: b",".join(b"c%d" % n for n in range(10**5)) + b"\n" + b"," * (10**5 - 1),
    "formula": lambda _: b"model,benchmark,score\n=cmd|' /C touch MARK'!A0,t,0.5\n",
    "pickle": lambda workshop: pickle_that_runs(workshop.mark),
    "not UTF-8": lambda _: b"\xff\xfe" * 1000 + b"\xff",
    "newlines": lambda _: b"\n" * 10**7,
}


def content_case(kind: FileKind, content: str, suffix: str) -> HostileCase:
    """Return a file of hostile bytes."""

    def make(workshop: Workshop) -> Path:
        file = workshop.folder / f"own.{suffix}"
        file.write_bytes(CONTENTS[content](workshop))
        return file

    return HostileCase(f"{content}.{suffix} as {kind}", kind, make)


def special_case(kind: FileKind, special: str, suffix: str) -> HostileCase:
    """Return something that is no plain file: a pipe, a device, a link to itself."""

    def make(workshop: Workshop) -> Path:
        file = workshop.folder / f"own.{suffix}"
        if special == "pipe":
            os.mkfifo(file)
        elif special == "zero":
            file.symlink_to("/dev/zero")
        else:
            file.symlink_to(file)
        return file

    return HostileCase(f"{special}.{suffix} as {kind}", kind, make)


def parquet_case(
    kind: FileKind, name: str, make_table: Callable[[], Any], *, typed: bool
) -> HostileCase:
    """Return a Parquet file that unpacks to far more than its size."""

    def make(workshop: Workshop) -> Path:
        import pyarrow.parquet as pq

        file = workshop.folder / "data.parquet"
        pq.write_table(make_table(), file, compression="zstd", store_schema=typed)
        return file

    return HostileCase(f"parquet {name} as {kind}", kind, make)


def _repeated_text(columns: str, rows: int, size: int) -> Callable[[], Any]:
    def make() -> Any:
        import pyarrow as pa

        shared = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["a" * size])
        return pa.table(dict.fromkeys(columns.split(), shared))

    return make


def _many_nulls() -> Any:
    import pyarrow as pa

    nulls = pa.ListArray.from_arrays(pa.array([0, 30_000_000]), pa.nulls(30_000_000))
    return pa.table({"text": ["x"], "more": nulls})


PARQUET_SIZES = ((2000, 10**6), (1_000_000, 1), (20, 10**8), (5_000_000, 0))
COLUMNS = {FileKind.DATA: "text", FileKind.TABLE: "model benchmark score"}


def file_cases(kind: FileKind) -> Iterator[HostileCase]:
    """Give hostile data, or hostile score tables."""
    for suffix, content in itertools.product(("jsonl", "json", "csv"), CONTENTS):
        yield content_case(kind, content, suffix)
    for suffix, content in itertools.product(
        ("jsonl", "csv", "parquet", "yaml"), ("pipe", "zero", "loop")
    ):
        yield special_case(kind, content, suffix)
    for typed, (rows, size) in itertools.product((False, True), PARQUET_SIZES):
        table = _repeated_text(COLUMNS[kind], rows, size)
        yield parquet_case(kind, f"{rows} × {size} typed {typed}", table, typed=typed)
    yield parquet_case(kind, "nulls", _many_nulls, typed=True)


# --- models ----------------------------------------------------------------------------------------------------------

Change = Callable[[Path, Path], None]
"""Change a folder for the worse; the second path is the mark."""


def write_safetensors(file: Path, header: dict[str, Any], *, size: int | None = None) -> None:
    """Write a safetensors file of a header alone, which may lie about its size."""
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", size if size is not None else len(text)) + text)


def set_keys(name: str, **values: Any) -> Change:
    """Set keys of a JSON file of the folder."""

    def change(folder: Path, mark: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text()) if file.exists() else {}
        text = json.dumps({**content, **values})
        file.write_text(text.replace("MARK", str(mark)).replace("FOLDER", str(folder)))
        (folder / "evil.py").write_text(module_that_runs(mark))

    return change


def put_pickle(name: str, *dropped: str) -> Change:
    """Put a pickle into the folder, and drop other files."""

    def change(folder: Path, mark: Path) -> None:
        for other_file in dropped:
            (folder / other_file).unlink(missing_ok=True)
        (folder / name).write_bytes(pickle_that_runs(mark))

    return change


def put_bytes(name: str, content: bytes) -> Change:
    """Put bytes in the place of a file."""

    def change(folder: Path, mark: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def put_header(name: str, size: int | None, header: dict[str, Any]) -> Change:
    """Put weights that are a header alone in the place of a file."""
    return lambda folder, mark: write_safetensors(folder / name, header, size=size)


def cut_file(name: str, size: int) -> Change:
    """Cut a file."""

    def change(folder: Path, mark: Path) -> None:
        file = folder / name
        file.write_bytes(file.read_bytes()[:size])

    return change


def link_to_zero(name: str) -> Change:
    """Put a link to an endless device in the place of a file."""

    def change(folder: Path, mark: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return change


WEIGHTS = "model.safetensors"
NEGATIVE = {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}
HUGE = {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
MODEL_CHANGES: dict[str, Change] = {
    "pickle": put_pickle("pytorch_model.bin", WEIGHTS),
    "pickle beside": put_pickle("pytorch_model.bin"),
    "training args": put_pickle("training_args.bin"),
    "own code": set_keys(
        "config.json",
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
        model_type="evil",
    ),
    "own code 2": set_keys("config.json", auto_map={"AutoModelForCausalLM": "evil.M"}),
    "own tokenizer": set_keys(
        "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}
    ),
    "layers": set_keys("config.json", num_hidden_layers=10**7),
    "width": set_keys("config.json", hidden_size=10**9),
    "vocabulary": set_keys("config.json", vocab_size=10**12),
    "negative": set_keys("config.json", num_hidden_layers=-5),
    "heads": set_keys("config.json", num_attention_heads=10**9),
    "nested layers": set_keys("config.json", text_config={"num_hidden_layers": 10**7}),
    "positions": set_keys("config.json", max_position_embeddings=10**12),
    "text of numbers": set_keys("config.json", hidden_size="32", num_hidden_layers=[2]),
    "chat code": set_keys(
        "tokenizer_config.json",
        chat_template="{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    ),
    "quantised": set_keys(
        "config.json", quantization_config={"quant_method": "evil", "x": "../../x"}
    ),
    "deep config": put_bytes("config.json", b"[" * 10**5),
    "deep tokenizer config": put_bytes("tokenizer_config.json", b"[" * 10**5),
    "deep generation config": put_bytes("generation_config.json", b"[" * 10**5),
    "slow tokenizer": set_keys(
        "tokenizer.json",
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(([A-Za-z ]+)+)+!"},
            "behavior": "Isolated",
            "invert": False,
        },
    ),
    "endless config": link_to_zero("config.json"),
    "long header": put_header(WEIGHTS, 2**60, {}),
    "negative sizes": put_header(WEIGHTS, None, NEGATIVE),
    "huge tensor": put_header(WEIGHTS, None, HUGE),
    "cut weights": cut_file(WEIGHTS, 5_000),
    "gguf": put_bytes("model.gguf", b"GGUF" + b"\xff" * 64),
    "is an adapter too": set_keys(
        "adapter_config.json",
        peft_type="LORA",
        base_model_name_or_path="FOLDER",
        target_modules="(([a-z_.0-9]+)+)+!",
    ),
}


def model_case(name: str, change: Change) -> HostileCase:
    """Return a tiny model with a change."""

    def make(workshop: Workshop) -> Path:
        folder = workshop.folder / "model"
        shutil.copytree(workshop.base, folder)
        change(folder, workshop.mark)
        return folder

    return HostileCase(f"model: {name}", FileKind.MODEL, make)


def model_cases() -> Iterator[HostileCase]:
    """Give the hostile models."""
    for name, change in MODEL_CHANGES.items():
        yield model_case(name, change)
    for number, bomb in enumerate(TEMPLATE_BOMBS[:16:2]):
        change = set_keys("tokenizer_config.json", chat_template=bomb)
        yield model_case(f"chat {number}", change)


# --- adapters --------------------------------------------------------------------------------------------------------

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
NOTE = "potentia.json"
SLOW = "(([a-z_.0-9]+)+)+!"
ADAPTER_CHANGES: dict[str, Change] = {
    "pickle": put_pickle("adapter_model.bin", ADAPTER_WEIGHTS),
    "bad regex": set_keys(ADAPTER, target_modules="("),
    "slow regex": set_keys(ADAPTER, target_modules=SLOW),
    "slow regex 2": set_keys(ADAPTER, target_modules="(.*)*(.*)*(.*)*x!"),
    "slow exclusion": set_keys(ADAPTER, exclude_modules=SLOW),
    "slow layers": set_keys(ADAPTER, layers_to_transform=[0], layers_pattern=SLOW),
    "slow rank": set_keys(ADAPTER, rank_pattern={SLOW: 4}),
    "slow alpha": set_keys(ADAPTER, alpha_pattern={SLOW: 4}),
    "many layers": set_keys(ADAPTER, layers_to_transform=list(range(10**5))),
    "many modules": set_keys(ADAPTER, target_modules=[f"q{n}" for n in range(10**5)]),
    "many patterns": set_keys(ADAPTER, rank_pattern={f"q{n}": 4 for n in range(1000)}),
    "huge rank": set_keys(ADAPTER, r=10**9),
    "huge rank of one": set_keys(ADAPTER, rank_pattern={"q_proj": 10**9}),
    "no rank": set_keys(ADAPTER, r=None),
    "rank of text": set_keys(ADAPTER, r="8"),
    "replication": set_keys(ADAPTER, layer_replication=[[0, 10**7]]),
    "own code": set_keys(ADAPTER, auto_mapping={"base_model_class": "M", "parent_library": "evil"}),
    "imports": set_keys(ADAPTER, megatron_config={"x": 1}, megatron_core="evil"),
    "tokenizer's code": set_keys(
        ADAPTER,
        peft_type="PROMPT_TUNING",
        task_type="CAUSAL_LM",
        num_virtual_tokens=4,
        prompt_tuning_init="TEXT",
        prompt_tuning_init_text="x",
        tokenizer_name_or_path="FOLDER",
        tokenizer_kwargs={"trust_remote_code": True},
    ),
    "many virtual tokens": set_keys(ADAPTER, peft_type="PREFIX_TUNING", num_virtual_tokens=10**9),
    "other kind": set_keys(ADAPTER, peft_type="EVIL"),
    "elsewhere": set_keys(ADAPTER, base_model_name_or_path="../../../../etc"),
    "corda": set_keys(ADAPTER, init_lora_weights="corda", corda_config={"cache_file": "MARK"}),
    "deep config": put_bytes(ADAPTER, b"[" * 10**5),
    "endless config": link_to_zero(ADAPTER),
    "long header": put_header(ADAPTER_WEIGHTS, 2**60, {}),
    "huge tensor": put_header(ADAPTER_WEIGHTS, None, HUGE),
    "cut weights": cut_file(ADAPTER_WEIGHTS, 500),
    "no weights": put_bytes(ADAPTER_WEIGHTS, b""),
    "deep note": put_bytes(NOTE, b"[" * 10**5),
    "endless note": link_to_zero(NOTE),
    "note of a list": put_bytes(NOTE, b"[1]"),
    "note: before": set_keys(NOTE, model={"source": "FOLDER", "before": 5}),
    "note: asked": set_keys(NOTE, asked=[1]),
    "note: selection": set_keys(NOTE, selection="chat"),
    "note: model": set_keys(NOTE, model="x"),
    "note: base": set_keys(NOTE, base=5),
    "note: itself before": set_keys(NOTE, model={"source": "FOLDER", "before": ["FOLDER"] * 50}),
    "note: no base": set_keys(NOTE, base=None),
}


def adapter_case(name: str, change: Change) -> HostileCase:
    """Return an adapter of the tiny model with a change."""

    def make(workshop: Workshop) -> Path:
        folder = workshop.folder / "adapter"
        shutil.copytree(workshop.adapter, folder)
        change(folder, workshop.mark)
        return folder

    return HostileCase(f"adapter: {name}", FileKind.ADAPTER, make)


def _note_with(key: str, template: str) -> Change:
    def change(folder: Path, mark: Path) -> None:
        note = json.loads((folder / NOTE).read_text())
        note["asked"]["config"][key] = template.replace("MARK", str(mark)) + "{{text}}"
        (folder / NOTE).write_text(json.dumps(note))

    return change


def adapter_cases() -> Iterator[HostileCase]:
    """Give the hostile adapters."""
    for name, change in ADAPTER_CHANGES.items():
        yield adapter_case(name, change)
    for number, key in itertools.product(
        range(0, len(TEMPLATE_BOMBS), 3), ("doc_to_text", "doc_to_choice")
    ):
        change = _note_with(key, TEMPLATE_BOMBS[number])
        yield adapter_case(f"note: template {number} as {key}", change)


# --- stores ----------------------------------------------------------------------------------------------------------

ENDLESS_ROWS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
STORE_STATEMENTS: dict[str, str] = {
    "endless view": "ALTER TABLE cells RENAME TO old; CREATE VIEW cells AS "
    f"{ENDLESS_ROWS} x AS id, x AS key, 'a' AS study, 'm' AS model, 't' AS task, 'direct' AS protocol, "
    "'acc' AS metric, '' AS created, 0.0 AS seconds, 0.1 AS direct_value, 0.1 AS gain, 1 AS item_count, "
    "'' AS data, '' AS recipe, '' AS identity, '' AS source, '' AS path, 0 AS shots FROM n",
    "endless studies": "PRAGMA foreign_keys=OFF; DROP TABLE studies; CREATE VIEW studies AS "
    f"{ENDLESS_ROWS} x AS key, 'n' AS name, '' AS opened, '{{}}' AS spec, '' AS created FROM n",
    "deep provenance": "UPDATE provenances SET provenance = replace(hex(zeroblob(50000)), '00', '[')",
    "deep spec": "UPDATE studies SET spec = replace(hex(zeroblob(50000)), '00', '[')",
    "provenance of a list": "UPDATE provenances SET provenance = '[1]', selection = '5'",
    "spec of a number": "UPDATE studies SET spec = '5'",
    "items elsewhere": "UPDATE settings SET value = '/etc'",
    "long names": "UPDATE cells SET model = hex(zeroblob(5000000))",
    "no scores": "UPDATE scores SET value = 'x', stderr = 'y', n = 'z'",
    "trigger": "CREATE TRIGGER t AFTER UPDATE ON studies BEGIN SELECT writefile('MARK', 'x'); END",
}


def store_case(name: str, statements: str) -> HostileCase:
    """Return a store that was changed by SQL."""

    def make(workshop: Workshop) -> Path:
        file = workshop.folder / "store.db"
        shutil.copyfile(workshop.store, file)
        items = workshop.store.with_name(workshop.store.name + ".items")
        if items.is_dir():
            shutil.copytree(items, file.with_name("store.db.items"))
        with sqlite3.connect(file) as connection:
            connection.executescript(statements.replace("MARK", str(workshop.mark)))
        connection.close()
        return file

    return HostileCase(f"store: {name}", FileKind.STORE, make)


def store_bytes_case(name: str, content: bytes) -> HostileCase:
    """Return bytes that are taken for a store."""

    def make(workshop: Workshop) -> Path:
        file = workshop.folder / "store.db"
        file.write_bytes(content)
        return file

    return HostileCase(f"store: {name}", FileKind.STORE, make)


def store_cases() -> Iterator[HostileCase]:
    """Give the hostile stores."""
    for name, statements in STORE_STATEMENTS.items():
        yield store_case(name, statements)
    yield store_bytes_case("no database", b"SQLite format 3\0" + b"\xff" * 10_000)
    yield store_bytes_case("zeros", b"\0" * 10**6)
    yield special_case(FileKind.STORE, "pipe", "db")
    yield special_case(FileKind.STORE, "zero", "db")


def all_cases() -> Iterator[HostileCase]:
    """Give all hostile files."""
    yield from definition_cases()
    yield from file_cases(FileKind.DATA)
    yield from file_cases(FileKind.TABLE)
    yield from model_cases()
    yield from adapter_cases()
    yield from store_cases()


# --- harmless ones ---------------------------------------------------------------------------------------------------


def _no_change(folder: Path, mark: Path) -> None:
    """Change nothing."""


def harmless_cases() -> Iterator[HostileCase]:
    """Give a file of each kind that every entrance must take: a suite that refuses all would prove nothing."""
    yield definition_case("harmless definition", 'description: "x"')
    yield model_case("harmless", _no_change)
    yield adapter_case("harmless", _no_change)
    yield store_case("harmless", "SELECT 1")
    rows = "".join(json.dumps({"text": f"a fine day {n}"}) + "\n" for n in range(40))
    scores = "model,benchmark,score\n"
    for model, task in itertools.product("abc", "xyz"):
        scores += f"{model},{task},0.5\n"
    for kind, name, text in (
        (FileKind.DATA, "own.jsonl", rows),
        (FileKind.TABLE, "own.csv", scores),
    ):
        yield HostileCase(f"harmless {kind}", kind, _text_maker(name, text))


def _text_maker(name: str, text: str) -> Callable[[Workshop], Path]:
    def make(workshop: Workshop) -> Path:
        file = workshop.folder / name
        file.write_text(text)
        return file

    return make
