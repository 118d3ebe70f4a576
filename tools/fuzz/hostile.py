"""Task files, data, model folders, adapters and tables made to do harm: none may run anything or take without bound.

    python -m fuzz.hostile            # all of them, each in a process of its own
    python -m fuzz.hostile --every 10 # some of them

Each is read as commands read it, in a fork that is ended after 30 s. Counted: how it ended (taken, refused with a
sentence, crash), whether the mark of its code appeared, and memory over 2 GB or time over 30 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS, BYTES = 30.0, 2 * 10**9
ROOT = Path(__file__).resolve().parents[2]
Act = Callable[[], object]
Case = tuple[str, Callable[[Path, Path], Act]]  # name; (folder, mark) → what a command does with it

BOMBS = (
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
FIELDS = ("doc_to_text", "doc_to_choice", "doc_to_target", "description", "gen_prefix")
FUNCTIONS = (
    "lm_eval.tasks.longproc.metrics._evaluate_countdown_final_solution",
    "lm_eval.tasks.cruxeval.utils.check_correctness",
    "lm_eval.tasks.hellaswag.utils.process_docs",
    "mine.run",
    "os.system",
    "subprocess.getoutput",
    "builtins.eval",
    "builtins.exec",
    "pickle.loads",
    "shutil.rmtree",
)
PLACES = (
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
OTHERS = (
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
)
BODY = """task: own
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{q}}"
doc_to_choice: [a, b]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def _code(mark: Path) -> str:
    return f"import os\nos.system('touch {mark}')\ndef run(*a, **k): os.system('touch {mark}')\n"


def _definition(more: str, *, group: bool = False) -> Callable[[Path, Path], Act]:
    def make(folder: Path, mark: Path) -> Act:
        (folder / "data.jsonl").write_text(
            "".join(json.dumps({"q": f"q {n}"}) + "\n" for n in range(20))
        )
        for name in ("mine.py", "metric.py", "loader.py"):
            (folder / name).write_text(_code(mark))
        (folder / "data.pkl").write_bytes(pickle.dumps(_Evil(str(mark))))
        os.mkfifo(folder / "pipe")
        if "bomb.gz" in more:
            import gzip

            (folder / "bomb.gz").write_bytes(gzip.compress(b'{"q": "x"}\n' * 10**7))
        told = more.replace("FOLDER", str(folder)).replace("MARK", str(mark))
        keys = {line.partition(":")[0] for line in told.splitlines()}
        body = [
            line
            for line in BODY.replace("FOLDER", str(folder)).splitlines()
            if line.partition(":")[0] not in keys
        ]
        text = "\n".join([*body, told]) + "\n"
        if group:
            inner = "\n".join(f"    {line}" for line in body if not line.startswith("task:"))
            text = (
                f"group: both\n{told}\ntask:\n  - task: mine\n    process_results: null\n{inner}\n"
            )
        file = folder / "own.yaml"
        file.write_text(text)
        return lambda: _ask(file)

    return make


class _Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def _ask(file: Path) -> None:
    from potentia.tasks import load

    task = load(str(file))
    docs = task.documents("test")
    prompts = task.prompts(docs)
    list(task.examples(task.documents("train")[:5]))
    answers = [
        [(-1.0, False) for _ in prompt.requests] if task.kind == "choice" else ["a" * 50 + "!"]
        for prompt in prompts
    ]
    assert task.fingerprint
    task.score(task.grade(prompts, answers))


def _parquet(make: Callable[[], Any], *, typed: bool, reader: str) -> Callable[[Path, Path], Act]:
    def case(folder: Path, mark: Path) -> Act:
        import pyarrow.parquet as pq

        file = folder / "data.parquet"
        pq.write_table(make(), file, compression="zstd", store_schema=typed)
        if reader == "task":
            return lambda: _ask(file)
        from potentia.evidence import read

        return lambda: read(str(file))

    return case


def _same(columns: str, rows: int, size: int) -> Callable[[], Any]:
    def make() -> Any:
        import pyarrow as pa

        shared = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["a" * size])
        return pa.table(dict.fromkeys(columns.split(), shared))

    return make


def _nulls() -> Any:
    import pyarrow as pa

    many = pa.ListArray.from_arrays(pa.array([0, 30_000_000]), pa.nulls(30_000_000))
    return pa.table({"text": ["x"], "more": many})


def _text(
    name: str, content: Callable[[Path, Path], bytes], *, reader: str
) -> Callable[[Path, Path], Act]:
    def case(folder: Path, mark: Path) -> Act:
        file = folder / name
        file.write_bytes(content(folder, mark))
        if reader == "task":
            return lambda: _ask(file)
        from potentia.evidence import read

        return lambda: read(str(file))

    return case


def _special(name: str, kind: str, *, reader: str) -> Callable[[Path, Path], Act]:
    def case(folder: Path, mark: Path) -> Act:
        file = folder / name
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "zero":
            file.symlink_to("/dev/zero")
        else:
            file.symlink_to(file)
        from potentia.evidence import read

        return (lambda: _ask(file)) if reader == "task" else (lambda: read(str(file)))

    return case


def _model(
    change: Callable[[Path, Path], None], *, adapter: bool = False
) -> Callable[[Path, Path], Act]:
    def case(folder: Path, mark: Path) -> Act:
        import tiny  # type: ignore[import-not-found]

        base = folder / "base"
        tiny.save_model(base, seed=0)
        target = base
        if adapter:
            target = folder / "adapter"
            target.mkdir()
            config = {
                "peft_type": "LORA",
                "base_model_name_or_path": str(base),
                "r": 4,
                "lora_alpha": 8,
            }
            (target / "adapter_config.json").write_text(
                json.dumps({**config, "target_modules": ["q_proj"]})
            )
            _safetensors(target / "adapter_model.safetensors", {})
        change(target, mark)

        def act() -> None:
            from potentia.run import plan_study
            from potentia.study import make_study

            asked = [
                {"question": f"Which is {n}?", "choices": ["a", "b"], "answer": n % 2}
                for n in range(20)
            ]
            (folder / "t.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
            model = {
                "name": "m",
                "path": str(base),
                **({"adapter": str(target)} if adapter else {}),
            }
            study = make_study(
                {
                    "name": "hostile",
                    "models": [model],
                    "tasks": [{"name": "t", "file": str(folder / "t.jsonl")}],
                    "protocols": ["direct"],
                    "chat": "always",
                    "device": "cpu",
                    "store": str(folder / "s.db"),
                }
            )
            from potentia.errors import PotentiaError
            from potentia.run import run_study

            result = run_study(plan_study(study))
            if result.failed:
                raise PotentiaError("; ".join(result.reasons))

        return act

    return case


def _safetensors(file: Path, header: dict[str, Any], *, size: int | None = None) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", size if size is not None else len(text)) + text)


def _set(name: str, **values: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, mark: Path) -> None:
        file = folder / name
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, **values}).replace("MARK", str(mark)))
        (folder / "evil.py").write_text(_code(mark))

    return change


def _pickled(name: str, *drop: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, mark: Path) -> None:
        for other in drop:
            (folder / other).unlink(missing_ok=True)
        (folder / name).write_bytes(pickle.dumps(_Evil(str(mark))))

    return change


def _bytes(name: str, content: bytes) -> Callable[[Path, Path], None]:
    def change(folder: Path, mark: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def _header(size: int | None, header: dict[str, Any]) -> Callable[[Path, Path], None]:
    return lambda folder, mark: _safetensors(folder / "model.safetensors", header, size=size)


MODELS: dict[str, Callable[[Path, Path], None]] = {
    "pickle": _pickled("pytorch_model.bin", "model.safetensors"),
    "pickle beside": _pickled("pytorch_model.bin"),
    "training args": _pickled("training_args.bin"),
    "own code": _set(
        "config.json",
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
        model_type="evil",
    ),
    "own code 2": _set("config.json", auto_map={"AutoModelForCausalLM": "evil.M"}),
    "own tokenizer": _set("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
    "layers": _set("config.json", num_hidden_layers=10**7),
    "width": _set("config.json", hidden_size=10**9),
    "vocabulary": _set("config.json", vocab_size=10**12),
    "negative": _set("config.json", num_hidden_layers=-5),
    "heads": _set("config.json", num_attention_heads=10**9),
    "chat code": _set(
        "tokenizer_config.json",
        chat_template="{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    ),
    "quantised": _set("config.json", quantization_config={"quant_method": "evil", "x": "../../x"}),
    "text as config": _bytes("config.json", b"[" * 10**5),
    "long header": _header(2**60, {}),
    "negative sizes": _header(None, {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
    "huge tensor": _header(
        None, {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    ),
    "gguf": _bytes("model.gguf", b"GGUF" + b"\xff" * 64),
}
MODELS |= {
    f"chat {n}": _set("tokenizer_config.json", chat_template=bomb)
    for n, bomb in enumerate(BOMBS[:16])
}
ADAPTERS: dict[str, Callable[[Path, Path], None]] = {
    "pickle": _pickled("adapter_model.bin", "adapter_model.safetensors"),
    "bad regex": _set("adapter_config.json", target_modules="("),
    "slow regex": _set("adapter_config.json", target_modules="(([a-z_.0-9]+)+)+!"),
    "slow regex 2": _set("adapter_config.json", target_modules="(.*)*(.*)*(.*)*x!"),
    "many layers": _set(
        "adapter_config.json", layers_to_transform=list(range(10**5)), target_modules=["q_proj"]
    ),
    "many modules": _set("adapter_config.json", target_modules=[f"q{n}" for n in range(10**5)]),
    "huge rank": _set("adapter_config.json", r=10**9),
    "rank pattern": _set("adapter_config.json", rank_pattern={"(a+)+$": 4}),
    "own code": _set(
        "adapter_config.json", auto_mapping={"base_model_class": "M", "parent_library": "evil"}
    ),
    "other kind": _set("adapter_config.json", peft_type="EVIL"),
    "elsewhere": _set("adapter_config.json", base_model_name_or_path="../../../../etc"),
    "corda": _set(
        "adapter_config.json", init_lora_weights="corda", corda_config={"cache_file": "MARK"}
    ),
    "long header": lambda folder, mark: _safetensors(
        folder / "adapter_model.safetensors", {}, size=2**60
    ),
}


def cases() -> Iterator[Case]:
    """Give all of them."""
    for field, (n, bomb) in itertools.product(FIELDS, enumerate(BOMBS)):
        yield f"template {n} as {field}", _definition(f'{field}: "{bomb}"')
    for n, (place, function) in enumerate(itertools.product(PLACES, FUNCTIONS)):
        yield f"function {n}", _definition(place.replace("FUNCTION", f"!function {function}"))
    for n, more in enumerate(OTHERS):
        yield f"definition {n}", _definition(more)
    for n, more in enumerate(
        (
            *OTHERS[:4],
            *(p.replace("FUNCTION", f"!function {f}") for p in PLACES[:6] for f in FUNCTIONS[:3]),
        )
    ):
        yield f"group {n}", _definition(more, group=True)
    evil = "(a+)+$"
    for metric in (
        f"{{metric: exact_match, regexes_to_ignore: ['{evil}']}}",
        "{metric: exact_match}",
    ):
        yield (
            "patterns",
            _definition(
                f"output_type: generate_until\ndoc_to_choice: null\ndoc_to_target: b\nmetric_list: [{metric}]\n"
                f"filter_list: [{{name: x, filter: [{{function: regex, regex_pattern: '{evil}'}}]}}]"
            ),
        )
    for reader, columns in (
        ("task", "text"),
        ("task", "prompt completion"),
        ("table", "model benchmark score"),
    ):
        for typed in (False, True):
            for rows, size in ((2000, 10**6), (1_000_000, 1), (20, 10**8), (5_000_000, 0)):
                yield (
                    f"parquet {rows} × {size} as {reader}",
                    _parquet(_same(columns, rows, size), typed=typed, reader=reader),
                )
        yield f"parquet nulls as {reader}", _parquet(_nulls, typed=True, reader=reader)
    contents: dict[str, Callable[[Path, Path], bytes]] = {
        "deep": lambda *_: b"[" * 10**6,
        "deep objects": lambda *_: b'{"text":' * 10**5,
        "many values": lambda *_: b'{"text": [' + b"[]," * 17_000_000 + b"[]]}",
        "long number": lambda *_: b'{"text": ' + b"9" * 10**6 + b"}",
        "zip": lambda *_: b"PK\x03\x04" + b"\0" * 1000,
        "nul": lambda *_: b"\0" * 10**6,
        "quotes": lambda *_: b'"' * 10**6,
        "wide": lambda *_: b",".join(b"c%d" % n for n in range(10**5)) + b"\n" + b"," * (10**5 - 1),
        "formula": lambda *_: b"model,benchmark,score\n=cmd|' /C touch MARK'!A0,t,0.5\n",
        "pickle": lambda folder, mark: pickle.dumps(_Evil(str(mark))),
        "not UTF-8": lambda *_: b"\xff\xfe" * 1000 + b"\xff",
        "newlines": lambda *_: b"\n" * 10**7,
    }
    for reader in ("task", "table"):
        for suffix in ("jsonl", "json", "csv"):
            for what, content in contents.items():
                yield f"{what}.{suffix} as {reader}", _text(f"own.{suffix}", content, reader=reader)
        for suffix, kind in itertools.product(
            ("jsonl", "csv", "parquet", "yaml"), ("pipe", "zero", "loop")
        ):
            yield f"{kind}.{suffix} as {reader}", _special(f"own.{suffix}", kind, reader=reader)
    for name, change in MODELS.items():
        yield f"model: {name}", _model(change)
    for name, change in ADAPTERS.items():
        yield f"adapter: {name}", _model(change, adapter=True)


def judge(make: Callable[[Path, Path], Act], root: Path) -> tuple[str, float, int, str]:
    """Do it in a fork: return how it ended, seconds, bytes of the largest process, and words."""
    folder, mark = root / "case", root / "mark"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    act = make(folder, mark)
    (root / "outside").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        outcome = _act(act)
        most = max(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        os.write(writing, json.dumps([*outcome, most * 1024]).encode()[:4000])
        os._exit(0)
    os.close(writing)
    while time.monotonic() - began < SECONDS and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.005)
    seconds = time.monotonic() - began
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    ended, words, most = (
        json.loads(told) if told else ("ended" if seconds < SECONDS else "hang", "", 0)
    )
    if mark.exists() or any((root / "outside").iterdir()):
        mark.unlink(missing_ok=True)
        shutil.rmtree(root / "outside")
        ended = "RAN"
    return ended, seconds, most, words


def _act(act: Act) -> tuple[str, str]:
    from potentia.errors import PotentiaError

    try:
        act()
        return "taken", ""
    except PotentiaError as error:
        return "refused", str(error)[:300]
    except BaseException as error:
        return "crash", f"{type(error).__name__}: {error}"[:300]


def main() -> int:
    """Go through them and print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many-th")
    parser.add_argument("--from", dest="first", type=int, default=0, help="how many to pass over")
    parser.add_argument("--only", default="", help="those whose name holds this")
    chosen = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    import peft
    import pyarrow.parquet

    import potentia.engine
    import potentia.evidence
    import potentia.run
    import potentia.tasks

    assert all((peft, pyarrow, potentia))
    counts: Counter[str] = Counter()
    bad, slowest, largest = 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        root = Path(place)
        os.environ["HF_DATASETS_CACHE"] = str(root / "cache")
        for name, make in list(cases())[chosen.first :: chosen.every]:
            if chosen.only not in name:
                continue
            ended, seconds, most, words = judge(make, root)
            over = seconds >= SECONDS or most > BYTES or ended in ("RAN", "crash", "ended", "hang")
            counts["over" if over else ended] += 1
            bad += over
            slowest, largest = max(slowest, seconds), max(largest, most)
            if over:
                print(f"{name}: {ended}, {seconds:.1f} s, {most / 1e9:.2f} GB {words}", flush=True)
    total = sum(counts.values())
    print(
        f"{total} hostile files: {dict(counts)}; slowest {slowest:.1f} s, largest {largest / 1e9:.2f} GB"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
