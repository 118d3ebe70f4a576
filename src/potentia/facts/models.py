"""What is publicly known of models: size, training tokens, date, family, base or instruct, language.

Sources are the tables of the papers that Potentia implements, and model cards where they give no number. A model goes
by many names; ``find`` knows its repository, its short names and the papers' names.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

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
_CHECKPOINT_NAME = re.compile(r"(?P<run>.+)@(?:step)?(?P<step>\d+)")


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
    # benchmarks whose form or data were in its training, where that is known
    exposure: tuple[str, ...] = ()
    compute: float | None = None  # pretraining FLOPs, where they are given as such
    # tokens of one pretraining step, where its checkpoints are public
    step_tokens: float | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind_stated: bool = True  # base is also what an empty field is read as

    @property
    def flops(self) -> float | None:
        """Pretraining compute: as given, else 6 × parameters × tokens; None where one of them is unknown."""
        if self.compute is not None:
            return self.compute
        if self.parameters is None or self.tokens is None:
            return None
        return 6.0 * self.parameters * self.tokens

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that means this model."""
        candidates = (self.name, self.repository, *self.aliases)
        return tuple(dict.fromkeys(name for name in candidates if name))


class ModelTable:
    """Models by name. Later facts replace earlier ones of the same name."""

    def __init__(self, facts: Iterable[ModelFacts]) -> None:
        self._facts_by_name = {model.name: model for model in facts}
        self._facts_by_any_name: dict[str, ModelFacts] = {}
        for model in self._facts_by_name.values():
            for name in model.names:
                full_name = name.casefold()
                short_name = full_name.rpartition("/")[2]
                self._facts_by_any_name[full_name] = model
                self._facts_by_any_name.setdefault(short_name, model)
            self._facts_by_any_name[model.name.casefold()] = model

    def __len__(self) -> int:
        return len(self._facts_by_name)

    def __iter__(self) -> Iterator[ModelFacts]:
        return iter(self._facts_by_name.values())

    def find(self, name: str) -> ModelFacts | None:
        """Return the facts of a model by its repository, its short name or an alias, in any case.

        The organisation may be left out, but not be another one: a copy under another roof may have other weights. A
        path of the file system is known by its last part.
        """
        lookup_name = name.strip().rstrip("/").casefold()
        if lookup_name in self._facts_by_any_name:
            return self._facts_by_any_name[lookup_name]
        checkpoint = _CHECKPOINT_NAME.fullmatch(name.strip())
        if checkpoint is not None:
            return self._find_checkpoint(checkpoint["run"], float(checkpoint["step"]), name)
        organisation, slash, last_part = lookup_name.rpartition("/")
        facts = self._facts_by_any_name.get(last_part)
        if not slash or facts is None:
            return None
        is_path = "/" in organisation or organisation in ("", ".", "..", "~") or Path(name).exists()
        if is_path or facts.repository is None:
            return facts
        return None

    def _find_checkpoint(self, run: str, step: float, name: str) -> ModelFacts | None:
        """Return the facts of a run after so many steps, with the tokens seen by then where they are known."""
        run_facts = self.find(run)
        if run_facts is None:
            return None
        tokens_seen = None
        if run_facts.step_tokens is not None:
            tokens_seen = step * run_facts.step_tokens
        return replace(
            run_facts, name=name, tokens=tokens_seen, compute=None, aliases=(), repository=None
        )

    def search(self, text: str) -> list[ModelFacts]:
        """Return the models one of whose names holds this text, in any case."""
        searched_text = text.strip().casefold()
        matches = []
        for model in self:
            if any(searched_text in name.casefold() for name in model.names):
                matches.append(model)
        return matches

    def families(self) -> list[str]:
        """Return the names of the families."""
        return sorted({model.family for model in self if model.family})


def models(extra_csv: str | Path | None = None) -> ModelTable:
    """Return the known models; ``extra_csv`` adds or replaces facts (``name`` is enough)."""
    if extra_csv is None:
        return _read_shipped_facts()
    return ModelTable((*_read_shipped_facts(), *read_facts(extra_csv)))


def read_facts(path: str | Path) -> ModelTable:
    """Read a CSV of facts: the columns of the shipped table, or ``model, params_b, tokens_b, trained``, in any order.

    Columns of other names are kept, so that models can be divided by them; a name close to a known one is a slip.
    """
    text = read_text(Path(path), largest=LARGEST_FILE)
    rows = tuple(_parse_facts(text, str(path)))
    uses_of_name = Counter(model.name for model in rows)
    repeated = sorted(name for name, uses in uses_of_name.items() if uses > 1)
    if repeated:
        raise DataError(
            f"a model is named twice in the facts: {', '.join(repeated[:3])}", where=str(path)
        )
    return ModelTable(rows)


@cache
def _read_shipped_facts() -> ModelTable:
    text = resources.files("potentia.facts").joinpath("models.csv").read_text(encoding="utf-8")
    return ModelTable(tuple(_parse_facts(text, "potentia/facts/models.csv")))


def _parse_facts(text: str, source: str) -> Iterator[ModelFacts]:
    for location, row in read_csv_rows(text, source, _rename_columns):
        yield _facts_from_row(row, location)


def _rename_columns(header: list[str], source: str) -> list[str]:
    """Return the columns by the names that Potentia uses; refuse a table without names, a column twice, and slips."""
    columns = [SYNONYMS.get(column, column) for column in header]
    if "name" not in columns:
        hint = "the first line names the columns: model,family,params_b,tokens_b,trained"
        raise DataError("no column names the models", where=source, hint=hint)
    repeated = next((column for column in columns if columns.count(column) > 1), None)
    if repeated is not None:
        raise DataError(f"the column {repeated} is there twice", where=source)
    accepted_names = (*COLUMNS, *SYNONYMS)
    for column in header:
        if column in accepted_names:
            continue
        near_names = difflib.get_close_matches(column, accepted_names, n=1, cutoff=0.85)
        if near_names:
            raise DataError(
                f"unknown column {column}; did you mean {near_names[0]}?",
                where=source,
                hint=f"the columns are {', '.join(COLUMNS)}, and any that look like none of these",
            )
    return columns


_BILLION = 1e9


def _facts_from_row(row: dict[str, str], location: str) -> ModelFacts:
    if not row["name"]:
        raise DataError("a model has no name", where=location)
    kind = row.get("kind") or "base"
    if kind not in KINDS:
        raise DataError(f"the kind is base or instruct, not {kind!r}", where=location)
    date = row.get("date", "")
    if date and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])(-\d\d)?", date):
        raise DataError(
            f"the date {date!r} is no month", where=location, hint="write it as 2024-07"
        )
    parameters = _read_number(row, "parameters_b", _BILLION, location)
    size = _read_number(row, "size_b", _BILLION, location)
    return ModelFacts(
        name=row["name"],
        family=row.get("family", ""),
        parameters=size if parameters is None else parameters,
        tokens=_read_number(row, "tokens_b", _BILLION, location),
        date=date[:7] or None,
        kind=kind,
        base_model=row.get("base_model") or None,
        repository=row.get("repository") or None,
        language=row.get("language") or None,
        aliases=_read_list(row, "aliases"),
        sources=_read_list(row, "sources"),
        size=parameters if size is None else size,
        note=row.get("note", ""),
        exposure=_read_list(row, "exposure"),
        compute=_read_number(row, "compute", 1.0, location),
        step_tokens=_read_number(row, "step_tokens", 1.0, location),
        extra={column: value for column, value in row.items() if column not in COLUMNS},
        kind_stated=bool(row.get("kind")),
    )


def _read_list(row: dict[str, str], column: str) -> tuple[str, ...]:
    """Read a list whose members are divided by semicolons; empty members are left out."""
    members = [member.strip() for member in row.get(column, "").split(";")]
    return tuple(member for member in members if member)


def _read_number(row: dict[str, str], column: str, unit: float, location: str) -> float | None:
    """Read a positive number in this unit; empty means that it is not known."""
    text = row.get(column, "")
    if not text:
        return None
    in_billions = unit > 1
    try:
        if in_billions and re.fullmatch(r"[\d.]+", text):
            # By way of decimal text, so that 8.03 billion is exactly 8030000000.0.
            value = float(f"{text}e9")
        else:
            value = float(text) * unit
    except ValueError:
        value = -1.0
    if value <= 0 or math.isinf(value):
        expected = "number of billions" if in_billions else "number"
        raise DataError(f"{text!r} is no {expected}", where=f"{location}, column {column}")
    if math.isnan(value):
        return None
    return value


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
    for name in names:
        known_facts = facts.find(name)
        if known_facts is not None and known_facts.kind_stated:
            return Kind(_kind_word(known_facts.kind == "instruct"), "the facts")
    for name in names:
        last_part = name.rstrip("/").rpartition("/")[2]
        words = set(re.split(r"[^a-z0-9]+", last_part.casefold()))
        has_instruct_word = not words.isdisjoint(INSTRUCT_WORDS)
        has_base_word = not words.isdisjoint(BASE_WORDS)
        if has_instruct_word != has_base_word:
            return Kind(_kind_word(has_instruct_word), "its name")
    if template is None:
        return None
    return Kind(_kind_word(template), "its tokenizer")


def _kind_word(is_instruct: bool) -> Literal["base", "instruct"]:
    return "instruct" if is_instruct else "base"


# --- what the analyses take ------------------------------------------------------------------------------------------

# A model in few bits, at a revision or a step (``run@1000``), a folder of checkpoints (``ckpt/step1``), a treated copy.
_VARIANT = re.compile(
    r"(?P<run>.+?)(?:@[^/@]+|[/_-](?:step|checkpoint|ckpt|iter|epoch)[-_]?\d+|\+exposed)+",
    re.IGNORECASE,
)


def variant_of(model: str) -> str:
    """Return the model that this one is a variant of, by its name; the model itself where it is none."""
    match = _VARIANT.fullmatch(model.strip().rstrip("/"))
    if match is None:
        return model
    return match["run"]


@dataclass(frozen=True)
class Background:
    """Facts by model and by task; whatever is unknown is simply absent."""

    families: dict[str, str] = field(default_factory=dict)
    # the base model, for itself and what was made from it
    lineages: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # base or instruct
    billions: dict[str, float] = field(default_factory=dict)  # parameters, as the name carries them
    flops: dict[str, float] = field(default_factory=dict)  # of pretraining
    categories: dict[str, str] = field(default_factory=dict)
    # of the public split, before carving and caps
    train_examples: dict[str, float] = field(default_factory=dict)
    # accuracy of a guess, where studies or the user say it
    chance: dict[str, float] = field(default_factory=dict)
    # the group of tasks that count as one, where the user says it
    task_groups: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        models: Iterable[str],
        *,
        table: ModelTable | None = None,
        tasks: Iterable[Benchmark] = (),
    ) -> Background:
        """Look the models up in the shipped facts (or ``table``); ``tasks`` add to the shipped facts, the last wins."""
        if not table:
            table = _read_shipped_facts()
        model_names = list(models)
        facts_by_model: dict[str, ModelFacts] = {}
        for name in model_names:
            facts = table.find(name)
            if facts is not None:
                facts_by_model[name] = facts
        given_tasks = tuple(tasks)
        all_tasks = (*benchmarks(), *given_tasks)
        return cls(
            families=_find_families(model_names, facts_by_model, table),
            lineages={name: _find_root(facts, table) for name, facts in facts_by_model.items()},
            kinds={name: facts.kind for name, facts in facts_by_model.items()},
            billions={
                name: facts.size / 1e9 for name, facts in facts_by_model.items() if facts.size
            },
            flops={name: facts.flops for name, facts in facts_by_model.items() if facts.flops},
            categories={task.task: task.category for task in all_tasks if task.category},
            train_examples={
                task.task: float(task.train_size)
                for task in all_tasks
                if task.train_size is not None
            },
            chance={task.task: task.chance for task in given_tasks if task.chance is not None},
            task_groups={task.task: task.group for task in given_tasks if task.group},
        )


def _find_families(
    models: Sequence[str], facts_by_model: Mapping[str, ModelFacts], table: ModelTable
) -> dict[str, str]:
    """Return the family of every model that has one: by facts, else that of what it is a variant of."""
    families = {model: facts.family for model, facts in facts_by_model.items() if facts.family}
    for model in models:
        original = variant_of(model)
        if model in families or original == model:
            continue
        original_facts = table.find(original)
        families[model] = (original_facts and original_facts.family) or original
    return families


def _find_root(facts: ModelFacts, table: ModelTable) -> str:
    """Return the base model that a model was made from, through as many steps as facts know; else the model itself."""
    visited_names = {facts.name}
    while facts.base_model:
        base_facts = table.find(facts.base_model)
        if base_facts is None or base_facts.name in visited_names:
            break
        visited_names.add(base_facts.name)
        facts = base_facts
    if facts.base_model is None or facts.base_model in visited_names:
        return facts.name
    return facts.base_model
