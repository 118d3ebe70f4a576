"""What is fuzzed: each target makes an input from a seeded stream, hands it over, and says what was wrong."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutate

Act = Callable[[], str | None]
Target = Callable[[Random, Path], Act]

STUDY = """# potentia run study.yaml
name: mine
models:
  - ./m0
  - {name: big, path: org/big, revision: main, parameters: 7.0e+9, tokens: 1e12, date: 2024-11}
  - {name: run, checkpoints: [{step: 1000, revision: step1000}, {step: 2000, path: ./m0, tokens: 1e9}]}
tasks: [arc_easy, "arc_easy:cloze", {name: own, file: q.jsonl}]
protocols: [direct, few_shot:5, train_before_test, adjust]
data_dir: data
caps: {train: 100, validation: 50, test: 60}
tuning: &t {method: lora, rank: 8, dropout: 0.1, learning_rates: [1e-5, 2e-5], epochs: 5, betas: [0.9, 0.999]}
adjust: {data: q.jsonl, tuning: {<<: *t, epochs: 3}, at_steps: [2, 4]}
treat: {data: [own], who: half, seed: 1}
seed: 0
store: potentia.db
"""
TIDY = "protocol,model,benchmark,score,stderr,n,higher_is_better\n" + "".join(
    f"{protocol},m{k},{task},{0.1 * k + 0.05},0.01,100,true\n"
    for protocol in ("direct", "train_before_test")
    for k in range(5)
    for task in ("arc", "boolq", "piqa")
)
WIDE = "model;arc_easy;boolq;piqa\nm0;50,1;60;70\nm1;51;61;71%\nm2;52;;72\n"
MARKDOWN = "## direct\n\n| model | arc_easy | boolq |\n|---|---:|---:|\n| a | 0.5 | 0.6 |\n| b | **0.4** | 0.7 ± 0.01 |\n"  # noqa: E501
STAGED = "stage,step,model,benchmark,metric,value,stderr\nbase,,m,arc,acc,0.5,0.01\ntuned,100,m,arc,acc,0.6,0.01\n"
HARNESS = {
    "results": {
        "arc_easy": {
            "alias": "arc_easy",
            "acc,none": 0.5,
            "acc_stderr,none": 0.01,
            "acc_norm,none": 0.55,
        },
        "mmlu": {"acc,none": 0.3},
    },
    "groups": {"mmlu": {"acc,none": 0.3}},
    "group_subtasks": {"mmlu": ["mmlu_a"]},
    "n-shot": {"arc_easy": 0},
    "higher_is_better": {"arc_easy": {"acc": True}},
    "n-samples": {"arc_easy": {"original": 10, "effective": 10}},
    "config": {"model": "hf", "model_args": "pretrained=org/m,dtype=float32"},
    "model_name": "org/m",
}
PAPER = {
    "direct_eval": {"arc": {"m": 0.5, "n": 0.6}},
    "direct_eval_stderr": {"arc": {"m": 0.01}},
    "train_before_test": {"arc": {"m": 0.7, "n": 0.6}},
}
QUESTIONS: list[dict[str, Any]] = [
    {"question": f"What is {k}?", "choices": ["a", "b", "c"], "answer": k % 3} for k in range(12)
]
PAIRS: list[dict[str, Any]] = [{"prompt": f"Say {k}:", "completion": f" {k}"} for k in range(12)]
TEXTS: list[dict[str, Any]] = [
    {"text": f"This is the text number {k}, and it goes on for a while."} for k in range(12)
]
DEFINITION = {
    "task": "own",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "Q: {{question}}\nA:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "num_fewshot": 0,
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    "metadata": {"version": 1},
    "filter_list": [{"name": "x", "filter": [{"function": "take_first"}]}],
    "fewshot_config": {"split": "train"},
}
FILES: tuple[tuple[str, str | None, Any], ...] = (
    ("s.csv", TIDY, None),
    ("s.csv", WIDE, None),
    ("s.md", MARKDOWN, None),
    ("s.csv", STAGED, None),
    ("results_1.json", None, HARNESS),
    ("p.json", json.dumps(PAPER), PAPER),
    ("r.jsonl", "\n".join(map(json.dumps, QUESTIONS)), None),
    ("rows.json", None, [{"model": "a", "task": "t", "score": 0.5}] * 2),
)
COLUMNS = {
    "protocol": ["direct"] * 3,
    "model": list("abc"),
    "benchmark": ["t"] * 3,
    "score": [0.1, 0.2, 0.3],
}
WORDS = [
    "studies",
    "cells",
    "lanes",
    "items",
    "events",
    "failures",
    "findings",
    "scores",
    "evidence",
    "stream",
    "how",
    "data",
    "assets",
    "report.css",
    "api",
    "metrics",
    "openapi.json",
    "login",
    "made",
]
PATHS = (
    "api/studies/{}/cells",
    "api/studies/{}/lanes",
    "api/studies/{}/events",
    "studies/{}",
    "studies/{}/scores",
)
QUERY = [
    "page",
    "size",
    "model",
    "task",
    "protocol",
    "query",
    "outcome",
    "after",
    "limit",
    "token",
    "study",
    "x",
]
HEADERS = ["accept", "host", "cookie", "authorization", "range", "if-none-match"]
HEADED = ("text/html", "127.0.0.1", "evil", "*/*", "potentia=x", "Bearer y", "bytes=0-")
METHODS = (*["GET"] * 8, "POST", "HEAD", "PUT", "DELETE", "OPTIONS")
# X is anything, other capitals are files that are there.
COMMANDS = [
    line.split()
    for line in """status DB
status DB --study X
status DB --json
export DB -o out/X
export CSV -o out/a.csv
import CSV --store new.db --name X
analyze rankings CSV --resamples 20
analyze rankings DB --resamples 20 --study X
analyze consistency CSV
analyze benchmark CSV
analyze exposure DB --study X
compare X X DB
analyze proxy CSV --target X
analyze test-task CSV --newer X
tasks show QUESTIONS
tasks show X
models check X
predict X QUESTIONS
adapters merge X -o out/X
reproduce X CSV
plan STUDY --no-calibrate
plan STUDY --no-calibrate --seed X --learning-rates X
plan --models X --tasks QUESTIONS --no-calibrate
report X
adapters list DB
adapters export DB --model X --task X -o out/X
serve X
track X
analyze X
X""".splitlines()
]


def _write(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def _mixed(stream: Random, text: str | None, value: Any) -> bytes:
    """Mutate the text of a file, or the value that it holds."""
    if text is not None and (value is None or stream.random() < 0.6):
        return mutate.as_bytes(mutate.text(stream, text))
    return mutate.as_json(mutate.value(stream, value))


def study(stream: Random, folder: Path) -> Act:
    """Read a study file, with flags over it."""
    import yaml

    from potentia.study import read_study, study_key

    file = _write(folder / "study.yaml", _mixed(stream, STUDY, yaml.safe_load(STUDY)))
    flags = (
        {"name": stream.choice(mutate.NASTY), "seed": stream.choice(mutate.NASTY)}
        if stream.random() < 0.2
        else {}
    )

    def act() -> None:
        study_read = read_study(file, flags)
        study_key(study_read)
        study_read.rows()

    return act


def scores(stream: Random, folder: Path) -> Act:
    """Read a score file of any layout; write what was read in every format."""
    from potentia.formats import write_scores
    from potentia.formats.read import read_score_files

    name, text, value = stream.choice(FILES)
    if stream.random() < 0.1:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(pa.table(COLUMNS), sink)
        name, content = "s.parquet", mutate.data(stream, sink.getvalue())
    else:
        content = _mixed(stream, text, value)
    file = _write(folder / "in" / name, content)
    source = file if stream.random() < 0.7 or name == "s.csv" else file.parent

    def act() -> None:
        file_scores = read_score_files(
            source, metric=stream.choice((None, None, "acc")), subtasks=stream.random() < 0.2
        ).scores
        for suffix in ("a.csv", "a.parquet", "a.md", "a.tex", "folder"):
            write_scores(
                file_scores, folder / "out" / suffix, "lm-eval" if suffix == "folder" else None
            )

    return act


def tasks(stream: Random, folder: Path) -> Act:
    """Load a task of one's own: a definition, questions, pairs, texts; ask its first documents."""
    from potentia.tasks import load

    kind = stream.randrange(5)
    if kind == 0:
        for split in ("train", "test"):
            rows = "\n".join(map(json.dumps, QUESTIONS)).encode()
            _write(folder / "data" / "json" / "default" / f"{split}.jsonl", rows)
        source = _write(
            folder / "own.yaml", _mixed(stream, json.dumps(DEFINITION, indent=1), DEFINITION)
        )
    elif kind == 4:
        table = "question,choices,answer\n" + "\n".join(f"q{k}?,a|b|c,{k % 3}" for k in range(12))
        source = _write(folder / "own.csv", _mixed(stream, table, None))
    else:
        example_texts = [QUESTIONS, PAIRS, TEXTS][kind - 1]
        if stream.random() < 0.5:
            content = _mixed(stream, "\n".join(map(json.dumps, example_texts)), None)
        else:
            mutated_rows = [
                mutate.value(stream, row) if stream.random() < 0.3 else row for row in example_texts
            ]
            content = b"\n".join(map(mutate.as_json, mutated_rows))
        source = _write(folder / stream.choice(("own.jsonl", "own.json", "own.txt")), content)

    def act() -> None:
        task = load(str(source), data_dir=folder / "data" if kind == 0 else None)
        task.prompts(task.documents("test")[:2])
        list(task.examples(task.documents("train")[:2]))
        assert task.fingerprint

    return act


def store(stream: Random, folder: Path) -> Act:
    """Open a damaged store, and read from it what commands read."""
    from potentia.evidence import read
    from potentia.run import read_store_status
    from potentia.store import Store

    store_file = _made_store(folder.parent)
    copy = _write(folder / "made.db", mutate.data(stream, store_file.read_bytes()))
    items = sorted(store_file.with_name("made.db.items").rglob("*.parquet"))
    if items and stream.random() < 0.5:
        shutil.copyfile(store_file, copy)
        chosen = stream.choice(items)
        within = chosen.relative_to(store_file.with_name("made.db.items"))
        _write(folder / "made.db.items" / within, mutate.data(stream, chosen.read_bytes()))

    def act() -> None:
        read_store_status(str(copy))
        with Store.open(copy, readonly=True) as opened:
            for cell in opened.cells.read(limit=3):
                opened.lanes.read(cell=cell.key)
            list(opened.scores.read_outcomes())
        read(str(copy))

    return act


def _made_store(root: Path) -> Path:
    store_file = root / "seed" / "made.db"
    if not store_file.exists():
        from made_store import make_store  # type: ignore[import-not-found]

        store_file.parent.mkdir(parents=True, exist_ok=True)
        make_store(store_file)
    return store_file


_CLIENTS: dict[Path, Any] = {}


def _client(root: Path) -> Any:
    if root not in _CLIENTS:
        from concurrent.futures import ThreadPoolExecutor

        from starlette.testclient import TestClient

        from potentia.show.board.app import create_app

        app = create_app(str(_made_store(root)), executor=ThreadPoolExecutor(1))
        _CLIENTS[root] = TestClient(
            app, base_url="http://127.0.0.1", raise_server_exceptions=True
        ).__enter__()
    return _CLIENTS[root]


def api(stream: Random, folder: Path) -> Act:
    """Ask the board for anything."""
    from urllib.parse import quote

    client = _client(folder.parent)
    from made_store import STUDY as KEY

    nasty = [str(n) for n in mutate.NASTY if len(str(n)) < 3000]
    parts = [
        stream.choice([*WORDS, KEY]) if stream.random() < 0.8 else stream.choice(nasty)
        for _ in range(5)
    ]
    path = (
        "/".join(parts[: stream.randrange(6)])
        if stream.random() < 0.5
        else stream.choice(PATHS).format(KEY)
    )
    query = {stream.choice(QUERY): stream.choice(nasty) for _ in range(stream.randrange(4))}
    headers = {stream.choice(HEADERS): stream.choice(HEADED)}
    method = stream.choice(METHODS)

    def act() -> str | None:
        safe = "/" + quote(path.encode("utf-8", "surrogatepass"), safe="/%").lstrip("/")
        if safe.endswith("/stream"):  # it never ends, rightly
            return None
        clean = {k: v.encode("utf-8", "replace").decode() for k, v in query.items()}
        code = client.request(method, safe, params=clean, headers=headers).status_code
        return f"status {code} of {safe[:100]}" if code >= 500 and code != 503 else None

    return act


def cli(stream: Random, folder: Path) -> Act:
    """Run a command line in this process."""
    from potentia.cli import app, output

    csv = _write(
        folder / "s.csv",
        mutate.as_bytes(mutate.text(stream, TIDY) if stream.random() < 0.5 else TIDY),
    )
    questions = _write(folder / "q.jsonl", "\n".join(map(json.dumps, QUESTIONS)).encode())
    small = "models: [./m0]\ntasks: [q.jsonl]\nstore: s.db\n"
    study_file = _write(folder / "study.yaml", mutate.as_bytes(mutate.text(stream, small)))
    known_exits = {
        "DB": str(_made_store(folder.parent)),
        "CSV": str(csv),
        "QUESTIONS": str(questions),
        "STUDY": str(study_file),
    }
    words = [str(n).replace("\0", "") for n in mutate.NASTY if len(str(n)) < 20_000]
    argv = [
        known_exits.get(part) or part.replace("X", stream.choice(words))
        for part in stream.choice(COMMANDS)
    ]
    more_words = [
        *words,
        "--json",
        "--all",
        "--metric",
        "--protocol",
        "--tasks",
        "--map",
        "--",
        "-h",
    ]
    for _ in range(stream.choice((0, 0, 1, 2))):
        argv.insert(stream.randrange(len(argv) + 1), stream.choice(more_words))

    def act() -> str | None:
        printed = io.StringIO()
        before = sys.argv, output.console.file, output.error_console.file
        sys.argv = ["potentia", *argv]
        output.console.file = output.error_console.file = printed
        code: Any = 0
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                app.run_command_line()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv, output.console.file, output.error_console.file = before
        if code not in (0, 1, 2, None):
            return f"exit code {code}"
        return (
            f"a traceback of {argv[:2]}" if "Traceback (most recent" in printed.getvalue() else None
        )

    return act


TARGETS: dict[str, Target] = {
    "study": study,
    "scores": scores,
    "tasks": tasks,
    "store": store,
    "api": api,
    "cli": cli,
}
SHARES = {
    "study": 30,
    "scores": 30,
    "tasks": 8,
    "store": 8,
    "api": 20,
    "cli": 4,
}  # by what an input costs
