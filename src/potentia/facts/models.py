"""What is publicly known of models: size, training tokens, date, family, base or instruct, language.

The facts are in the shipped ``models.csv``, made of the tables of the papers that Potentia implements and of model
cards, and in files of the same columns that users give. A model goes by many names: ``ModelTable.find`` knows its
repository, its short names and the papers' names.
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
from potentia.facts.model_families import find_families_by_name
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
SYNONYMS = {  # other names of columns
    "model": "name",
    "params_b": "parameters_b",
    "trained": "date",
    "released": "date",
    "flops": "compute",
}
MODEL_KINDS = ("base", "instruct")
_CHECKPOINT_NAME = re.compile(r"(?P<run>.+)@(?:step)?(?P<step>\d+)")


@dataclass(frozen=True)
class ModelFacts:
    """What is known of one model; None if nobody has published it."""

    name: str
    family: str
    parameters: float | None  # a count
    tokens: float | None  # of pretraining; an instruct model has those of its base model
    date: str | None  # the month, YYYY-MM
    kind: str  # base or instruct
    base_model: str | None
    repository: str | None
    language: str | None  # en or en+cn (appendix D.2 of "Training on the test task")
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    size: float | None = None  # the number of parameters that the model's name has
    note: str = ""
    # benchmarks whose form or data were in its training, where that is known
    exposure: tuple[str, ...] = ()
    compute: float | None = None  # pretraining FLOPs, where they are stated as such
    # tokens of one pretraining step, where its checkpoints are public
    step_tokens: float | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)  # other columns of the file
    kind_stated: bool = True  # False where the file leaves the kind empty, which is read as base

    @property
    def flops(self) -> float | None:
        """Pretraining compute: what is stated, else 6 × parameters × tokens; None if one of these is unknown."""
        if self.compute is not None:
            return self.compute
        if self.parameters is None or self.tokens is None:
            return None
        return 6.0 * self.parameters * self.tokens

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model: its own, its repository and the aliases."""
        candidates = (self.name, self.repository, *self.aliases)
        return tuple(dict.fromkeys(candidate for candidate in candidates if candidate))


class ModelTable:
    """Facts on models, to be found by any of their names. Later facts replace earlier ones of the same name."""

    def __init__(self, facts: Iterable[ModelFacts]) -> None:
        self._facts_by_name = {model.name: model for model in facts}
        self._facts_by_any_name: dict[str, ModelFacts] = {}
        for model in self._facts_by_name.values():
            for model_name in model.names:
                full_name = model_name.casefold()
                short_name = full_name.rpartition("/")[2]
                self._facts_by_any_name[full_name] = model
                self._facts_by_any_name.setdefault(short_name, model)
            self._facts_by_any_name[model.name.casefold()] = model

    def __len__(self) -> int:
        return len(self._facts_by_name)

    def __iter__(self) -> Iterator[ModelFacts]:
        return iter(self._facts_by_name.values())

    def find(self, model_name: str) -> ModelFacts | None:
        """Return the facts on a model by its repository, its short name or an alias, in any case; None if unknown.

        The organisation may be left out, but not be another one: another organisation's copy may have other weights. A
        path of the file system is found by its last part, and ``run@1000`` is a run after so many steps.
        """
        lookup_name = model_name.strip().rstrip("/").casefold()
        if lookup_name in self._facts_by_any_name:
            return self._facts_by_any_name[lookup_name]
        checkpoint = _CHECKPOINT_NAME.fullmatch(model_name.strip())
        if checkpoint is not None:
            return self._find_checkpoint(checkpoint["run"], float(checkpoint["step"]), model_name)
        organisation, slash, last_part = lookup_name.rpartition("/")
        facts = self._facts_by_any_name.get(last_part)
        if not slash or facts is None:
            return None
        is_path = (
            "/" in organisation or organisation in ("", ".", "..", "~") or Path(model_name).exists()
        )
        if is_path or facts.repository is None:
            return facts
        return None

    def _find_checkpoint(self, run_name: str, step: float, model_name: str) -> ModelFacts | None:
        """Return the facts on a run after so many steps, with the tokens seen by then if they are known."""
        run_facts = self.find(run_name)
        if run_facts is None:
            return None
        tokens_seen = None
        if run_facts.step_tokens is not None:
            tokens_seen = step * run_facts.step_tokens
        return replace(
            run_facts,
            name=model_name,
            tokens=tokens_seen,
            compute=None,
            aliases=(),
            repository=None,
        )

    def search(self, text: str) -> list[ModelFacts]:
        """Return the models with a name that contains this text, in any case."""
        searched_text = text.strip().casefold()
        matches = []
        for model in self:
            if any(searched_text in name.casefold() for name in model.names):
                matches.append(model)
        return matches

    def families(self) -> list[str]:
        """Return the names of the families, sorted."""
        return sorted({model.family for model in self if model.family})


def models(extra_csv: str | Path | None = None) -> ModelTable:
    """Return the shipped facts on models, with those of a user's file added or in their place."""
    if extra_csv is None:
        return _read_shipped_facts()
    return ModelTable((*_read_shipped_facts(), *read_facts(extra_csv)))


def read_facts(facts_path: str | Path) -> ModelTable:
    """Read a user's CSV of facts: the columns of ``COLUMNS`` or their synonyms, of which only the name is needed.

    Other columns are kept as ``extra``, so that models can be grouped by them; a name that is nearly one of ``COLUMNS``
    is taken for a slip and refused.
    """
    text = read_text(Path(facts_path), largest=LARGEST_FILE)
    rows = tuple(_parse_facts(text, str(facts_path)))
    uses_of_name = Counter(model.name for model in rows)
    repeated = sorted(model_name for model_name, uses in uses_of_name.items() if uses > 1)
    if repeated:
        raise DataError(
            f"a model is named twice in the facts: {', '.join(repeated[:3])}", where=str(facts_path)
        )
    return ModelTable(rows)


@cache
def _read_shipped_facts() -> ModelTable:
    text = resources.files("potentia.facts").joinpath("models.csv").read_text(encoding="utf-8")
    return ModelTable(tuple(_parse_facts(text, "potentia/facts/models.csv")))


def _parse_facts(text: str, source: str) -> Iterator[ModelFacts]:
    for location, row in read_csv_rows(text, source, _rename_columns):
        yield _parse_row(row, location)


def _rename_columns(header: list[str], source: str) -> list[str]:
    """Return the header with synonyms replaced; raise if it has no column of names, or one twice or misspelt."""
    columns = [SYNONYMS.get(column, column) for column in header]
    if "name" not in columns:
        hint = "the first line names the columns: model,family,params_b,tokens_b,trained"
        raise DataError("no column names the models", where=source, hint=hint)
    repeated = next((column for column in columns if columns.count(column) > 1), None)
    if repeated is not None:
        raise DataError(f"the column {repeated} appears twice", where=source)
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


def _parse_row(row: dict[str, str], location: str) -> ModelFacts:
    if not row["name"]:
        raise DataError("a model has no name", where=location)
    kind = row.get("kind") or "base"
    if kind not in MODEL_KINDS:
        raise DataError(f"the kind is base or instruct, not {kind!r}", where=location)
    date = row.get("date", "")
    if date and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])(-\d\d)?", date):
        raise DataError(
            f"the date {date!r} is not a month", where=location, hint="write it as 2024-07"
        )
    parameters = _read_number(row, "parameters_b", _BILLION, location)
    stated_size = _read_number(row, "size_b", _BILLION, location)
    return ModelFacts(
        name=row["name"],
        family=row.get("family", ""),
        parameters=stated_size if parameters is None else parameters,
        tokens=_read_number(row, "tokens_b", _BILLION, location),
        date=date[:7] or None,
        kind=kind,
        base_model=row.get("base_model") or None,
        repository=row.get("repository") or None,
        language=row.get("language") or None,
        aliases=_read_list(row, "aliases"),
        sources=_read_list(row, "sources"),
        size=parameters if stated_size is None else stated_size,
        note=row.get("note", ""),
        exposure=_read_list(row, "exposure"),
        compute=_read_number(row, "compute", 1.0, location),
        step_tokens=_read_number(row, "step_tokens", 1.0, location),
        extra={column: value for column, value in row.items() if column not in COLUMNS},
        kind_stated=bool(row.get("kind")),
    )


def _read_list(row: dict[str, str], column: str) -> tuple[str, ...]:
    """Return the members of a list that is written with semicolons between them; empty ones are left out."""
    members = [member.strip() for member in row.get(column, "").split(";")]
    return tuple(member for member in members if member)


def _read_number(row: dict[str, str], column: str, unit: float, location: str) -> float | None:
    """Return a positive number that is written in this unit; None for an empty field or ``nan``."""
    text = row.get(column, "")
    if not text:
        return None
    in_billions = unit > 1
    try:
        if in_billions and re.fullmatch(r"[\d.]+", text):
            # 8.03e9 is exactly 8030000000.0, which 8.03 × 1e9 need not be
            number = float(f"{text}e9")
        else:
            number = float(text) * unit
    except ValueError:
        number = -1.0
    if number <= 0 or math.isinf(number):
        expected = "number of billions" if in_billions else "number"
        raise DataError(f"{text!r} is not a {expected}", where=f"{location}, column {column}")
    if math.isnan(number):
        return None
    return number


# --- base or instruct ------------------------------------------------------------------------------------------------

# A chat template alone does not make an instruct model: base models of some families have one, and would be tried with
# and without it, twice as often as others.
INSTRUCT_WORDS = frozenset(
    {"instruct", "instruction", "chat", "it", "sft", "dpo", "ppo", "rlhf", "rlvr", "assistant"}
)
BASE_WORDS = frozenset({"base", "pt", "pretrain", "pretrained", "foundation"})


@dataclass(frozen=True)
class Kind:
    """Whether a model is a base or an instruct model, and what decided it."""

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
    """Return whether a model is a base or an instruct model, by the first that says it.

    These are the study (``stated``, or ``instruct_of`` naming its base model), the facts, a word in its name, and its
    tokenizer (``template``: whether it has a chat template). None if only the tokenizer can say it and ``template``
    is None.
    """
    if stated == "base":
        return Kind("base", "the study")
    if stated == "instruct" or instruct_of:
        return Kind("instruct", "the study")
    names = list(names)
    for model_name in names:
        known_facts = facts.find(model_name)
        if known_facts is not None and known_facts.kind_stated:
            return Kind(_name_kind(known_facts.kind == "instruct"), "the facts")
    for model_name in names:
        last_part = model_name.rstrip("/").rpartition("/")[2]
        words = set(re.split(r"[^a-z0-9]+", last_part.casefold()))
        has_instruct_word = not words.isdisjoint(INSTRUCT_WORDS)
        has_base_word = not words.isdisjoint(BASE_WORDS)
        if has_instruct_word != has_base_word:
            return Kind(_name_kind(has_instruct_word), "its name")
    if template is None:
        return None
    return Kind(_name_kind(template), "its tokenizer")


def _name_kind(is_instruct: bool) -> Literal["base", "instruct"]:
    return "instruct" if is_instruct else "base"


# --- what the analyses take ------------------------------------------------------------------------------------------

# A quantised model, a revision or step (``run@1000``), a checkpoint of a folder (``ckpt/step1``), an exposed copy.
_VARIANT = re.compile(
    r"(?P<run>.+?)(?:@[^/@]+|[/_-](?:step|checkpoint|ckpt|iter|epoch)[-_]?\d+|\+exposed)+",
    re.IGNORECASE,
)


def variant_of(model: str) -> str:
    """Return the model that a model is a variant of, such as a checkpoint of it; the model itself if it is none."""
    match = _VARIANT.fullmatch(model.strip().rstrip("/"))
    if match is None:
        return model
    return match["run"]


@dataclass(frozen=True)
class Background:
    """What analyses need to know of models and tasks, by their names; what is unknown is left out."""

    # by model
    families: dict[str, str] = field(default_factory=dict)
    lineages: dict[str, str] = field(
        default_factory=dict
    )  # the base model that it was made of, or itself
    kinds: dict[str, str] = field(default_factory=dict)  # base or instruct
    billions: dict[str, float] = field(
        default_factory=dict
    )  # parameters, as the model's name has them
    flops: dict[str, float] = field(default_factory=dict)  # of pretraining
    # by task
    categories: dict[str, str] = field(default_factory=dict)
    train_examples: dict[str, float] = field(
        default_factory=dict
    )  # of the public split, before carving and caps
    chance: dict[str, float] = field(
        default_factory=dict
    )  # guess accuracies that studies or the user state
    task_groups: dict[str, str] = field(default_factory=dict)  # groups that the user states
    # models whose family is not known but inferred from their names
    named_families: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        models: Iterable[str],
        *,
        table: ModelTable | None = None,
        tasks: Iterable[Benchmark] = (),
    ) -> Background:
        """Return what is known of these models in ``table`` (the shipped facts, if there is none), and of all tasks.

        ``tasks`` are facts that studies and users state; they overrule the shipped ones, a later one an earlier one.
        """
        if not table:
            table = _read_shipped_facts()
        model_names = list(models)
        facts_by_model: dict[str, ModelFacts] = {}
        for model_name in model_names:
            facts = table.find(model_name)
            if facts is not None:
                facts_by_model[model_name] = facts
        stated_tasks = tuple(tasks)
        all_tasks = (*benchmarks(), *stated_tasks)
        billions: dict[str, float] = {}
        flops: dict[str, float] = {}
        for model_name, facts in facts_by_model.items():
            if facts.size:
                billions[model_name] = facts.size / 1e9
            if facts.flops:
                flops[model_name] = facts.flops
        train_examples: dict[str, float] = {}
        for task in all_tasks:
            if task.train_size is not None:
                train_examples[task.task] = float(task.train_size)
        roots = {}
        kinds = {}
        for model_name, facts in facts_by_model.items():
            roots[model_name] = _find_root(facts, table)
            kinds[model_name] = facts.kind
        families = _find_families(model_names, facts_by_model, table)
        without_family = [model for model in model_names if model not in families]
        by_name = find_families_by_name(without_family, families, table.families())
        return cls(
            families={**families, **by_name},
            lineages=roots,
            kinds=kinds,
            billions=billions,
            flops=flops,
            categories={task.task: task.category for task in all_tasks if task.category},
            train_examples=train_examples,
            chance={task.task: task.chance for task in stated_tasks if task.chance is not None},
            task_groups={task.task: task.group for task in stated_tasks if task.group},
            named_families=frozenset(by_name),
        )


def _find_families(
    models: Sequence[str], facts_by_model: Mapping[str, ModelFacts], table: ModelTable
) -> dict[str, str]:
    """Return the family of every model that has one: by the facts on it, else by those on what it is a variant of.

    A variant of an unknown model is of the family of that model's name.
    """
    families = {model: facts.family for model, facts in facts_by_model.items() if facts.family}
    for model in models:
        original_name = variant_of(model)
        if model in families or original_name == model:
            continue
        original_facts = table.find(original_name)
        families[model] = (original_facts and original_facts.family) or original_name
    return families


def _find_root(facts: ModelFacts, table: ModelTable) -> str:
    """Return the base model that a model was made of, over as many steps as are known; the model itself if none is."""
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
