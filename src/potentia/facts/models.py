"""What is publicly known of models: size, training tokens, date, family, base or instruct, language.

Sources are the tables of the papers that Potentia implements, and model cards where they give no number. A model goes
by many names; ``find`` knows its repository, its short names and the papers' names.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from potentia.errors import DataError
from potentia.facts.benchmarks import Benchmark, benchmarks
from potentia.files import LARGEST_FILE, read_csv_rows, read_text

COLUMNS = (
    "name",
    "family",
    "kind",
    "parameters_b",
    "size_b",
    "tokens_b",
    "compute",
    "date",
    "base_model",
    "repository",
    "language",
    "aliases",
    "sources",
    "note",
    "exposure",
    "step_tokens",
)
SYNONYMS = {
    "model": "name",
    "params_b": "parameters_b",
    "trained": "date",
    "released": "date",
    "flops": "compute",
}
KINDS = ("base", "instruct")
_CHECKPOINT = re.compile(r"(?P<run>.+)@(?:step)?(?P<step>\d+)")


@dataclass(frozen=True)
class ModelFacts:
    """One model. ``parameters`` and ``tokens`` are counts; ``size`` is the number that the model's name carries.

    ``tokens`` is None where nobody has published it, ``date`` is the month as ``YYYY-MM``, ``language`` is ``en`` or
    ``en+cn`` (appendix D.2 of Training on the Test Task). An instruct model has the tokens of its base model. What
    other columns a table of facts has is in ``extra``.
    """

    name: str
    family: str
    parameters: float | None
    tokens: float | None
    date: str | None
    kind: str
    base_model: str | None
    repository: str | None
    language: str | None
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    size: float | None = None
    note: str = ""
    exposure: tuple[
        str, ...
    ] = ()  # benchmarks whose form or data were in its training, where that is known
    compute: float | None = None  # pretraining FLOPs, where they are given as such
    step_tokens: float | None = (
        None  # tokens of one pretraining step, where its checkpoints are public
    )
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind_stated: bool = True  # base is also what an empty field is read as

    @property
    def flops(self) -> float | None:
        """Pretraining compute: as given, else 6 × parameters × tokens; None where one of them is unknown."""
        if self.compute is not None or self.parameters is None or self.tokens is None:
            return self.compute
        return 6.0 * self.parameters * self.tokens

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that means this model."""
        return tuple(dict.fromkeys(filter(None, (self.name, self.repository, *self.aliases))))


class ModelTable:
    """Models by name. Later facts replace earlier ones of the same name."""

    def __init__(self, facts: Iterable[ModelFacts]) -> None:
        self._facts = {model.name: model for model in facts}
        self._names: dict[str, ModelFacts] = {}
        for model in self._facts.values():
            for name in model.names:
                self._names[name.casefold()] = model
                self._names.setdefault(name.casefold().rpartition("/")[2], model)
            self._names[model.name.casefold()] = model

    def __len__(self) -> int:
        return len(self._facts)

    def __iter__(self) -> Iterator[ModelFacts]:
        return iter(self._facts.values())

    def find(self, name: str) -> ModelFacts | None:
        """Return the facts of a model by its repository, its short name or an alias, in any case.

        The organisation may be left out, but not be another one: a copy under another roof may have other weights. A
        path of the file system is known by its last part.
        """
        wanted = name.strip().rstrip("/").casefold()
        if wanted in self._names:
            return self._names[wanted]
        if (point := _CHECKPOINT.fullmatch(name.strip())) is not None:
            return self._checkpoint(point["run"], float(point["step"]), name)
        organisation, slash, last = wanted.rpartition("/")
        found = self._names.get(last)
        if not slash or found is None:
            return None
        is_path = "/" in organisation or organisation in ("", ".", "..", "~") or Path(name).exists()
        return found if is_path or found.repository is None else None

    def _checkpoint(self, run: str, step: float, name: str) -> ModelFacts | None:
        """Return what is known of a run after so many steps: the tokens seen by then, where a step's are known."""
        whole = self.find(run)
        if whole is None:
            return None
        seen = None if whole.step_tokens is None else step * whole.step_tokens
        return replace(whole, name=name, tokens=seen, compute=None, aliases=(), repository=None)

    def search(self, text: str) -> list[ModelFacts]:
        """Return the models one of whose names holds this text, in any case."""
        wanted = text.strip().casefold()
        return [model for model in self if any(wanted in name.casefold() for name in model.names)]

    def families(self) -> list[str]:
        """Return the names of the families."""
        return sorted({model.family for model in self if model.family})


def models(extra_csv: str | Path | None = None) -> ModelTable:
    """Return the known models; ``extra_csv`` adds or replaces facts (``name`` is enough)."""
    return _shipped() if extra_csv is None else ModelTable((*_shipped(), *read_facts(extra_csv)))


def read_facts(path: str | Path) -> ModelTable:
    """Read a CSV of facts: the columns of the shipped table, or ``model, params_b, tokens_b, trained``, in any order.

    Columns of other names are kept, so that models can be divided by them; a name close to a known one is a slip.
    """
    rows = tuple(_parse(read_text(Path(path), largest=LARGEST_FILE), str(path)))
    names = [model.name for model in rows]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(
            f"a model is named twice in the facts: {', '.join(twice[:3])}", where=str(path)
        )
    return ModelTable(rows)


@cache
def _shipped() -> ModelTable:
    text = resources.files("potentia.facts").joinpath("models.csv").read_text(encoding="utf-8")
    return ModelTable(tuple(_parse(text, "potentia/facts/models.csv")))


def _parse(text: str, where: str) -> Iterator[ModelFacts]:
    return (_facts(row, place) for place, row in read_csv_rows(text, where, _columns))


def _columns(given: list[str], where: str) -> list[str]:
    """Return the columns by the names that Potentia uses; refuse a table without names, a column twice, and slips."""
    columns = [SYNONYMS.get(column, column) for column in given]
    if "name" not in columns:
        hint = "the first line names the columns: model,family,params_b,tokens_b,trained"
        raise DataError("no column names the models", where=where, hint=hint)
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"the column {twice} is there twice", where=where)
    known = (*COLUMNS, *SYNONYMS)
    for column in given:
        near = difflib.get_close_matches(column, known, n=1, cutoff=0.85)
        if column not in known and near:
            raise DataError(
                f"unknown column {column}; did you mean {near[0]}?",
                where=where,
                hint=f"the columns are {', '.join(COLUMNS)}, and any that look like none of these",
            )
    return columns


# Fields of a model that are numbers: column, unit. Further those that are lists, and those that are text or unknown.
_NUMBERS = {
    "parameters": ("parameters_b", 1e9),
    "size": ("size_b", 1e9),
    "tokens": ("tokens_b", 1e9),
    "compute": ("compute", 1.0),
    "step_tokens": ("step_tokens", 1.0),
}
_LISTS = ("aliases", "sources", "exposure")
_TEXTS = ("base_model", "repository", "language")


def _facts(row: dict[str, str], place: str) -> ModelFacts:
    if not row["name"]:
        raise DataError("a model has no name", where=place)
    kind, date = row.get("kind") or "base", row.get("date", "")
    if kind not in KINDS:
        raise DataError(f"the kind is base or instruct, not {kind!r}", where=place)
    if date and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])(-\d\d)?", date):
        raise DataError(f"the date {date!r} is no month", where=place, hint="write it as 2024-07")
    given: dict[str, Any] = {name: _number(row, *told, place) for name, told in _NUMBERS.items()}
    for one, other in (("parameters", "size"), ("size", "parameters")):
        given[one] = given[other] if given[one] is None else given[one]
    given |= {
        name: tuple(filter(None, map(str.strip, row.get(name, "").split(";")))) for name in _LISTS
    }
    given |= {name: row.get(name) or None for name in _TEXTS}
    return ModelFacts(
        name=row["name"],
        family=row.get("family", ""),
        kind=kind,
        kind_stated=bool(row.get("kind")),
        date=date[:7] or None,
        note=row.get("note", ""),
        extra={column: value for column, value in row.items() if column not in COLUMNS},
        **given,
    )


def _number(row: dict[str, str], column: str, unit: float, place: str) -> float | None:
    """Read a positive number in this unit; empty means that it is not known."""
    text = row.get(column, "")
    if not text:
        return None
    try:
        # By way of decimal text, so that 8.03 billion is exactly 8030000000.0.
        value = (
            float(f"{text}e9") if unit > 1 and re.fullmatch(r"[\d.]+", text) else float(text) * unit
        )
    except ValueError:
        value = -1.0
    if value <= 0 or math.isinf(value):
        what = "number of billions" if unit > 1 else "number"
        raise DataError(f"{text!r} is no {what}", where=f"{place}, column {column}")
    return None if math.isnan(value) else value


# --- base or instruct ------------------------------------------------------------------------------------------------

# A chat template alone does not make an instruct model: base models of some families carry one, and would be asked,
# tuned and chosen in twice as many ways as others.
INSTRUCT_WORDS = frozenset(
    {"instruct", "instruction", "chat", "it", "sft", "dpo", "ppo", "rlhf", "rlvr", "assistant"}
)
BASE_WORDS = frozenset({"base", "pt", "pretrain", "pretrained", "foundation"})


@dataclass(frozen=True)
class Kind:
    """What a model is, and what decided it."""

    value: Literal["base", "instruct"]
    by: Literal["the study", "the facts", "its name", "its tokenizer"]


def decide_kind(
    stated: str,
    names: Iterable[str],
    facts: ModelTable,
    *,
    instruct_of: str | None = None,
    template: bool | None = None,
) -> Kind | None:
    """Decide what a model is; None where only its tokenizer can tell and ``template`` is not known yet."""
    if stated == "base":
        return Kind("base", "the study")
    if stated == "instruct" or instruct_of:
        return Kind("instruct", "the study")
    names = list(names)
    for found in map(facts.find, names):
        if found is not None and found.kind_stated:
            return Kind("instruct" if found.kind == "instruct" else "base", "the facts")
    for name in names:
        words = set(re.split(r"[^a-z0-9]+", name.rstrip("/").rpartition("/")[2].casefold()))
        instruct, base = not words.isdisjoint(INSTRUCT_WORDS), not words.isdisjoint(BASE_WORDS)
        if instruct != base:
            return Kind("instruct" if instruct else "base", "its name")
    if template is None:
        return None
    return Kind("instruct" if template else "base", "its tokenizer")


# --- what the analyses take ------------------------------------------------------------------------------------------

# A model in few bits, at a revision or a step (``run@1000``), a folder of checkpoints (``ckpt/step1``), a treated copy.
_VARIANT = re.compile(
    r"(?P<run>.+?)(?:@[^/@]+|[/_-](?:step|checkpoint|ckpt|iter|epoch)[-_]?\d+|\+exposed)+",
    re.IGNORECASE,
)


def variant_of(model: str) -> str:
    """Return what a model is a variant of, by its name; the model itself where it is none."""
    found = _VARIANT.fullmatch(model.strip().rstrip("/"))
    return found["run"] if found is not None else model


@dataclass(frozen=True)
class Background:
    """Facts by model and by task; whatever is unknown is simply absent."""

    families: dict[str, str] = field(default_factory=dict)
    lineages: dict[str, str] = field(
        default_factory=dict
    )  # the base model, for itself and what was made from it
    kinds: dict[str, str] = field(default_factory=dict)  # base or instruct
    billions: dict[str, float] = field(default_factory=dict)  # parameters, as the name carries them
    flops: dict[str, float] = field(default_factory=dict)  # of pretraining
    categories: dict[str, str] = field(default_factory=dict)
    train_examples: dict[str, float] = field(
        default_factory=dict
    )  # of the public split, before carving and caps
    chance: dict[str, float] = field(
        default_factory=dict
    )  # accuracy of a guess, where studies or the user say it

    @classmethod
    def of(
        cls,
        models: Iterable[str],
        *,
        table: ModelTable | None = None,
        tasks: Iterable[Benchmark] = (),
    ) -> Background:
        """Look the models up in the shipped facts (or ``table``); ``tasks`` add to the shipped facts, the last wins."""
        table, models = table or _shipped(), list(models)
        given = tuple(tasks)
        every = (*benchmarks(), *given)
        found = {m: f for m in models if (f := table.find(m)) is not None}
        return cls(
            families=_families(models, found, table),
            lineages={m: _root(f, table) for m, f in found.items()},
            kinds={m: f.kind for m, f in found.items()},
            billions={m: f.size / 1e9 for m, f in found.items() if f.size},
            flops={m: f.flops for m, f in found.items() if f.flops},
            categories={b.task: b.category for b in every if b.category},
            train_examples={b.task: float(b.train_size) for b in every if b.train_size is not None},
            chance={b.task: b.chance for b in given if b.chance is not None},
        )


def _families(
    models: Iterable[str], found: dict[str, ModelFacts], table: ModelTable
) -> dict[str, str]:
    """Return the family of every model that has one: by facts, else that of what it is a variant of."""
    families = {m: f.family for m, f in found.items() if f.family}
    for model in models:
        if model not in families and (base := variant_of(model)) != model:
            known = table.find(base)
            families[model] = (known and known.family) or base
    return families


def _root(facts: ModelFacts, table: ModelTable) -> str:
    """Return the base model that a model was made from, through as many steps as facts know; else the model itself."""
    seen = {facts.name}
    while (
        facts.base_model
        and (base := table.find(facts.base_model)) is not None
        and base.name not in seen
    ):
        seen.add(base.name)
        facts = base
    return facts.name if facts.base_model is None or facts.base_model in seen else facts.base_model
