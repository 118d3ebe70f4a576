"""An adapter to take away: exported with its card and a note that says how it is asked, merged, predicted with.

An adapter that ``potentia select`` or ``potentia adapters export`` wrote carries a note: its base, the prompt, the
labels and the columns. ``predict`` asks the rows of a file as the test asked them, with the probability of each label.
The note is data; of what it says about the task only the keys named here are used.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.files import whole_folder, write_file

if TYPE_CHECKING:
    import pandas as pd

    from potentia.engine import LoadedModel
    from potentia.store import CellRecord, Store
    from potentia.tasks import Leaf, Record

NOTE = "potentia.json"


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter was written, what it goes on, and the lines that load it."""

    folder: Path
    base: str
    lines: tuple[str, ...]


def export_adapter(
    store: Store, cell: CellRecord, folder: Path, *, replace: bool = False
) -> ExportedAdapter:
    """Copy a kept adapter out of the store and write its card and a note from which ``predict`` asks it again.

    Where validation kept the untuned model there is no adapter; the note and the card say so. The folder is there when
    all of it is written; with ``replace`` it takes the place of an earlier one.
    """
    kept = store.adapter(cell.key)
    if kept is None and cell.selection.get("tuned", True):
        raise InputError(f"no adapter of {cell.model} on {cell.task} is kept", where=store.where)
    model = cell.manifest.get("model") or {}
    base = str(model.get("source") or cell.model)
    before = [str(model["adapter"])] if model.get("adapter") else []
    if model.get("copy_of"):  # a treated copy: what it was shown comes first
        before += [str(store.adapter(f"treated-{model.get('fingerprint')}"))]
    few = (str(model["quantise"]), str(model.get("dtype"))) if model.get("quantise") else None
    last = str(folder) if kept is not None else None
    lines = loading_lines(base, last, gguf=model.get("gguf_file"), before=before, few=few)
    with whole_folder(folder, replace=replace) as draft:
        for file in kept.iterdir() if kept is not None else ():
            shutil.copy2(file, draft / file.name)
        (draft / "README.md").write_text(
            adapter_card(cell, base, lines, str(folder)), encoding="utf-8"
        )
        place = draft / NOTE
        note = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        note |= {
            "cell": cell.key,
            "task": cell.task,
            "protocol": cell.protocol,
            "selection": dict(cell.selection),
        }
        note |= {
            "model": {**model, "source": base, "before": before},
            "asked": dict(cell.manifest.get("task") or {}),
        }
        note |= {
            "metric": cell.metric,
            "score": cell.score.value,
            "stderr": cell.score.stderr,
            "n": cell.score.n,
        }
        place.write_text(json.dumps(note, indent=1, default=str), encoding="utf-8")
    return ExportedAdapter(folder, base, lines)


def loading_lines(
    base: str,
    folder: str | None,
    *,
    gguf: str | None,
    before: Sequence[str],
    few: tuple[str, str] | None,
) -> tuple[str, ...]:
    """Return Python that loads the adapted model with transformers and PEFT alone; ``few``: bits of the base, dtype."""
    place = f"{base!r}" if gguf is None else f"{base!r}, gguf_file={gguf!r}"
    if base.endswith(".gguf"):
        place = f"{str(Path(base).parent)!r}, gguf_file={Path(base).name!r}"
    bits = ""
    if few is not None:
        kind = f"torch.{few[1]}"
        four = "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
        kept = f"{four} bnb_4bit_compute_dtype={kind}" if few[0] == "4bit" else "load_in_8bit=True"
        bits = f", dtype={kind}, quantization_config=BitsAndBytesConfig({kept})"
    late = bool(before) or ", gguf_file=" in place  # first whole, then in few bits
    return _lines("loading.py.txt", place=place, bits=bits, late=late, before=before, folder=folder)


def adapter_card(cell: CellRecord, base: str, lines: tuple[str, ...], folder: str) -> str:
    """Return the card of an adapter: its base, what it was tuned on and how, what it scores, how to ask it."""
    from huggingface_hub import ModelCard

    tuning = cell.manifest.get("tuning") or (cell.manifest.get("adjust") or {}).get("tuning") or {}
    task = cell.manifest.get("task") or {}
    splits = task.get("splits") or {}
    used = {name: (splits.get(name) or {}).get("used") for name in ("train", "validation", "test")}
    name = f"{cell.model.rpartition('/')[2]}-{cell.task}"
    beside = {
        m: cell.scores[m].value for m in ("macro_f1", "balanced_accuracy") if m in cell.scores
    }
    beside |= {
        what: given.get("acc", math.nan) for what, given in (task.get("baselines") or {}).items()
    }
    body = (
        _templates()
        .get_template("card.md")
        .render(
            name=name,
            base=base,
            cell=cell,
            score=cell.score,
            chosen=cell.selection,
            used=used,
            beside=beside,
            lines=lines,
            tuned=cell.selection.get("tuned", True),
            origin=(splits.get("test") or {}).get("origin", "unknown"),
            seed=splits.get("seed", "unknown"),
            asking=asking_lines(task),
            config=task.get("config") or {},
            labels=task.get("labels") or {},
            folder=shlex.quote(folder),
            recipe={key: value for key, value in tuning.items() if value is not None},
        )
    )
    return str(ModelCard(f"---\n{_card_head(cell, base, name)}\n---\n{body}"))


def _card_head(cell: CellRecord, base: str, name: str) -> str:
    """Return what the hub reads of a card: the base and the score."""
    from huggingface_hub import EvalResult, ModelCardData

    result = EvalResult(
        task_type="text-generation",
        dataset_type=cell.task,
        dataset_name=cell.task,
        metric_type=cell.metric,
        metric_name=f"{cell.metric} ({cell.protocol})",
        metric_value=round(cell.score.value, 6),
        metric_args=None
        if math.isnan(cell.score.stderr)
        else {"stderr": round(cell.score.stderr, 6)},
    )
    on_hub = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    return ModelCardData(
        base_model=base if on_hub else None,
        library_name="peft",
        tags=["potentia", "train-before-test", "lora"],
        model_name=name,
        eval_results=[result],
    ).to_yaml()


def asking_lines(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return Python that classifies a text with the loaded model and no Potentia; none for other kinds of tasks."""
    labels, config = task.get("labels"), task.get("config") or {}
    template = str(config.get("doc_to_text", ""))
    fields = [name for name in ("text", "text_pair") if "{{" + name + "}}" in template]
    if not labels or not fields or template.count("{{") != len(fields):
        return ()
    for name in fields:
        template = template.replace("{{" + name + "}}", f"<{name}>")
    return _lines(
        "asking.py.txt",
        labels=json.dumps(labels, ensure_ascii=False),
        fields=fields,
        prompt=template,
    )


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    how: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }
    made = Environment(
        loader=PackageLoader("potentia.integrations"), undefined=StrictUndefined, **how
    )
    made.filters.update(repr=repr, plain=_plain)
    return made


def _lines(template: str, **context: Any) -> tuple[str, ...]:
    return tuple(_templates().get_template(template).render(**context).splitlines())


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    if value is None or value != value:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


Progress = Callable[[int], None]
# What of a definition says how to ask; metrics and functions are not taken from a note.
_ASKED = (
    "output_type",
    "doc_to_text",
    "doc_to_choice",
    "doc_to_target",
    "target_delimiter",
    "generation_kwargs",
    "labels",
)
_ANSWERS = ("label", "answer", "completion")  # fields that a file to predict may lack
_METRICS = {"multiple_choice": "acc", "generate_until": "exact_match"}  # by what is asked


@dataclass(frozen=True)
class Predictions:
    """The answer of each row in its order: a label (or a written text) and, for choices, the probability of each."""

    rows: tuple[Mapping[str, Any], ...]  # the user's rows
    predicted: tuple[str | None, ...]  # None where a row could not be used
    probabilities: tuple[Mapping[str, float], ...]
    gold: tuple[str | None, ...]  # where the file has labels
    tested: float | None  # what the test gave, by `metric`
    metric: str

    @property
    def accuracy(self) -> float:
        """The share of right answers among rows with a known label; NaN where there is none."""
        known = [
            p == g
            for p, g in zip(self.predicted, self.gold, strict=True)
            if p is not None and g is not None
        ]
        return sum(known) / len(known) if known else math.nan

    def frame(self) -> pd.DataFrame:
        """Return the rows with ``predicted``, ``probability`` and, for labels, a column ``p(label)`` each."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the same as plain records."""
        return [
            {**row, "predicted": predicted, "probability": max(shares.values(), default=None)}
            | {f"p({label})": share for label, share in shares.items()}
            for row, predicted, shares in zip(
                self.rows, self.predicted, self.probabilities, strict=True
            )
        ]

    def write(self, path: Path) -> None:
        """Write them as CSV, JSON or JSON lines, by the file's name."""
        if path.suffix == ".csv":
            write_file(path, self.frame().to_csv(index=False).encode())
        elif path.suffix in (".json", ".jsonl"):
            lines = [json.dumps(record, ensure_ascii=False) for record in self.records()]
            whole = (
                "\n".join(lines) if path.suffix == ".jsonl" else "[\n" + ",\n".join(lines) + "\n]"
            )
            write_file(path, (whole + "\n").encode())
        else:
            raise InputError(
                f"cannot write {path.suffix or path.name!r}",
                hint="name a .csv, .json or .jsonl file",
            )


def predict(
    adapter: str | Path,
    data: str | Path | Sequence[str] | Sequence[Mapping[str, Any]],
    *,
    base: str | None = None,
    device: str = "auto",
    dtype: str | None = None,
    drop_bad_rows: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Predict the rows of a file (or texts, or records) with an adapter that Potentia tuned on your own data.

    ``base`` is where its base model is now, if not where it was. ``dtype`` is that of the test where absent.
    """
    from potentia.tasks import Leaf, bad_rows, from_records, unanswered

    note = read_note(Path(adapter))
    config = _definition(note, str(adapter))
    bad: list[Any] = []
    rows, records = _rows(data, (note.get("asked") or {}).get("columns") or {}, bad)
    documents = unanswered(config, records, bad)
    if bad and not drop_bad_rows:
        raise bad_rows(bad, len(records))
    usable = [document for document in documents if document is not None]
    if not usable:
        raise InputError(
            "there is no row to predict",
            where=None if isinstance(data, (list, tuple)) else str(data),
        )
    leaf = Leaf(config, {"test": from_records(usable, where=config["task"])})
    loaded = load_adapted(Path(adapter), note, base=base, device=device, dtype=dtype)
    try:
        answers = iter(_answers(leaf, usable, loaded, note, progress))
    finally:
        loaded.close()
    told = [(None, {}) if document is None else next(answers) for document in documents]
    return Predictions(
        rows=tuple(map(dict, rows)),
        predicted=tuple(label for label, _ in told),
        probabilities=tuple(shares for _, shares in told),
        gold=tuple(_gold(config, record) for record in records),
        tested=note.get("score"),
        metric=str(note.get("metric")),
    )


def _definition(note: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return how the task is asked, of what a note says; its metric plays no part."""
    config = {
        k: v for k, v in ((note.get("asked") or {}).get("config") or {}).items() if k in _ASKED
    }
    task, metric = str(note.get("task")), _METRICS.get(str(config.get("output_type")))
    if metric is None:
        raise InputError(
            f"{task} cannot be asked with rows of a file",
            where=where,
            hint="predict takes adapters tuned on your own labelled texts, questions or prompts",
        )
    listed = [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]
    return {**config, "task": task, "test_split": "test", "metric_list": listed}


def _answers(
    leaf: Leaf,
    documents: Sequence[dict[str, Any]],
    loaded: LoadedModel,
    note: Mapping[str, Any],
    progress: Any,
) -> list[tuple[str, dict[str, float]]]:
    """Ask the model: the label (or text) of each document, chosen as the test chooses, and the share of each label."""
    from potentia.engine import chat_template
    from potentia.engine.scoring import Scorer
    from potentia.tasks import best

    chat = (
        chat_template(loaded.tokenizer)
        if (note.get("selection") or {}).get("style") == "chat"
        else None
    )
    requests = [leaf.requests(document, shots=0, chat=chat) for document in documents]
    flat: list[Any] = [request for several in requests for request in several]
    if leaf.kind == "generation":
        return [
            (str(text).strip(), {}) for text in Scorer(loaded).generate(flat, progress=progress)
        ]
    given = iter(Scorer(loaded).loglikelihood(flat, progress=progress))
    labels = list(leaf.config.get("labels") or {})
    answers = []
    for document, several in zip(documents, requests, strict=True):
        names, logprobs = labels or leaf.choices(document), [next(given).logprob for _ in several]
        weights = [math.exp(value - max(logprobs)) for value in logprobs]
        shares = {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True)}
        place = best(str(note.get("metric")), names, [(value, False) for value in logprobs])
        answers.append((names[place], shares))
    return answers


def _gold(config: Mapping[str, Any], record: Record) -> str | None:
    if config["output_type"] == "generate_until":
        value = record.get("completion")
        return str(value).strip() if value not in (None, "") else None
    value = str(record.get("label", "")).strip()
    return value if value in (config.get("labels") or ()) else None


def _rows(
    data: Any, columns: Mapping[str, Any], bad: list[Any]
) -> tuple[list[Record], list[Record]]:
    """Return the user's rows, and the same with the fields of the task; answers may be absent."""
    from potentia.tasks import Record, file_records, map_columns

    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if not path.is_file():
            raise InputError(
                f"there is no file {data}", hint="give a csv, jsonl, json or parquet file"
            )
        rows = file_records(path, bad)
    else:
        field = columns.get("text", "text")
        plain = [{field: one} if isinstance(one, str) else dict(one) for one in data]
        rows = [Record(f"row {n}", row) for n, row in enumerate(plain, start=1)]
    there = {key for row in rows for key in row}
    wanted = {
        f: c for f, c in columns.items() if f not in _ANSWERS or (isinstance(c, str) and c in there)
    }
    return rows, map_columns(rows, wanted)


def read_note(folder: Path) -> dict[str, Any]:
    """Read what an exported adapter says of itself."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "give the folder that potentia select or potentia adapters export wrote"
        raise InputError(f"{folder} has no {NOTE}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(folder / NOTE)) from error
    if not isinstance(note, dict) or not isinstance(note.get("model"), dict):
        raise InputError(
            "it does not say which model it goes on",
            where=str(folder / NOTE),
            hint="export it again",
        )
    return note


def load_adapted(
    folder: Path,
    note: Mapping[str, Any],
    *,
    base: str | None,
    device: str = "auto",
    dtype: str | None = None,
) -> LoadedModel:
    """Load the base of an exported adapter with the adapter merged into it."""
    from potentia.engine import load

    model = note["model"]
    own = [str(folder)] if (folder / "adapter_config.json").is_file() else []
    return load(
        base or str(model["source"]),
        device=device,
        dtype=dtype or str(model.get("dtype") or "auto"),
        revision=None if base else model.get("revision"),
        gguf_file=None if base else model.get("gguf_file"),
        adapters=(*map(str, model.get("before") or ()), *own),
        quantise=model.get("quantise"),
    )


def merge(
    adapter: str | Path, output: str | Path, *, base: str | None = None, dtype: str | None = None
) -> Path:
    """Write the base with the adapter merged into it: a model like any other, with its tokenizer."""
    folder, output = Path(adapter), Path(output)
    with whole_folder(output) as draft:
        note = read_note(folder)
        whole = {
            **note,
            "model": {**note["model"], "quantise": None},
        }  # few bits cannot be merged into
        loaded = load_adapted(folder, whole, base=base, device="cpu", dtype=dtype)
        try:
            loaded.model.save_pretrained(draft)
            loaded.tokenizer.save_pretrained(draft)
        finally:
            loaded.close()
    return output
