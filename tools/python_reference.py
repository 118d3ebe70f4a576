"""The page on Python of the site, read off ``import potentia``: signatures, arguments, fields, members, examples.

Docstrings have the sections ``Args``, ``Returns`` and ``Example``; the comment beside a field of a dataclass says what
it holds.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

PRIVATE_PATH = re.compile(r"\bpotentia\.[\w.]*\.(?=[A-Z])|<factory>")
MAX_SIGNATURE_WIDTH = 84
GROUPS = {
    "Run a study": ("evaluate", "Result", "select", "SelectedModel", "predict", "Predictions"),
    "Read scores": (
        "read",
        "Evidence",
        "ScoreMatrix",
        "Score",
        "ItemOutcome",
        "Protocol",
        "write_scores",
    ),
    "Ask": (
        "rankings",
        "RankingOptions",
        "compare",
        "benchmark",
        "checkpoints",
        "exposure",
        "answers",
        "Finding",
    ),
    "Show": ("report", "make_report", "write_report", "ReportOptions", "draw"),
    "Studies and stores, step by step": (
        "read_study",
        "make_study",
        "Study",
        "plan_study",
        "run_study",
        "Store",
    ),
    "Single analyses, and those of the papers": (
        "find_rankings",
        "find_pair",
        "find_benchmark",
        "find_classification",
        "find_training",
        "find_training_signal",
        "find_exposure",
        "find_test_task",
        "TestTaskOptions",
        "find_stability",
        "find_consistency",
        "find_ablation",
        "find_proxies",
        "ProxyOptions",
        "read_checkpoints",
        "read_pairs",
        "reproduce_train_before_test",
        "reproduce_task_training",
    ),
    "Errors": ("PotentiaError", "InputError"),
}


def api_page() -> str:
    """Return the reference of every name that ``import potentia`` offers, by what it is for."""
    import potentia

    public_names = set()
    for name in dir(potentia):
        if not name.startswith("_") and not inspect.ismodule(getattr(potentia, name)):
            public_names.add(name)
    parts = [
        "# Python\n",
        "Everything here is there after `import potentia`, and is loaded when first used. Wherever a function takes"
        " evidence, it takes all that `potentia.read` takes: a store, a score table, a folder of lm-eval results, a"
        " DataFrame. The modules `potentia.analysis`, `potentia.engine`, `potentia.facts` and `potentia.tasks` hold"
        " more.\n",
    ]
    for title, names in _group_names(public_names).items():
        parts.append(f"## {title}\n")
        for name in names:
            parts.append(_describe_name(name, getattr(potentia, name)))
    return "\n".join(parts)


def _group_names(public_names: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of each group; a name that no group has stands in the last."""
    groups = dict(GROUPS)
    grouped_names = {name for names in GROUPS.values() for name in names}
    other_names = tuple(sorted(public_names - grouped_names))
    if other_names:
        groups["More"] = other_names
    return groups


def _describe_name(name: str, value: Any) -> str:
    docstring = Docstring.of(value)
    if not inspect.isclass(value):
        signature = _format_signature(f"potentia.{name}", value)
        return f"### {name}\n\n```python\n{signature}\n```\n\n{docstring.to_markdown()}\n"
    parts = [f"### {name}\n", docstring.to_markdown(), ""]
    field_names: set[str] = set(getattr(value, "model_fields", ()))
    if dataclasses.is_dataclass(value) and not issubclass(value, Exception):
        field_names = {field.name for field in dataclasses.fields(value)}
        parts += _tabulate_fields(value)
    for member_name, member in _public_members(value):
        if member_name not in field_names:
            parts.append(_describe_member(member_name, member))
    return "\n".join(parts) + "\n"


# --- docstrings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Docstring:
    """A docstring by its sections."""

    prose: str
    arguments: tuple[tuple[str, str], ...] = ()  # names and what they are
    returns: str = ""
    example: str = ""

    @classmethod
    def of(cls, value: Any) -> Docstring:
        """Read the docstring of a function or class; that which a dataclass is given says nothing."""
        text = inspect.cleandoc(value.__doc__ or "").replace("``", "`")
        if text.startswith(f"{getattr(value, '__name__', '')}("):
            return cls("")
        parts = re.split(r"(?m)^(Args|Returns|Example):\n", text)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        return cls(
            prose=parts[0].strip(),
            arguments=tuple(_parse_arguments(sections.get("Args", ""))),
            returns=_join_lines(sections.get("Returns", "")),
            example=textwrap.dedent(sections.get("Example", "")).strip(),
        )

    def to_markdown(self) -> str:
        """Write it as Markdown: arguments as a table, the example as code."""
        parts = [self.prose]
        if self.arguments:
            rows = [f"| `{name}` | {_escape_cell(text)} |" for name, text in self.arguments]
            parts.append("\n".join(["| argument | |", "|---|---|", *rows]))
        if self.returns:
            parts.append(f"**Returns** {self.returns[:1].lower()}{self.returns[1:]}")
        if self.example:
            lines = [line.removeprefix(">>> ") for line in self.example.splitlines()]
            code = "\n".join(lines)
            parts.append(f"```python\n{code}\n```")
        return "\n\n".join(parts) + "\n"


def _parse_arguments(section: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a section describes, ``name: what it is`` with further lines indented."""
    for entry in re.split(r"(?m)^(?=\S)", textwrap.dedent(section)):
        name, _, description = entry.partition(":")
        if description:
            yield name.strip(), _join_lines(description)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _escape_cell(text: str) -> str:
    return _join_lines(text).replace("|", "\\|")


# --- classes ----------------------------------------------------------------------------------------------------------


def _tabulate_fields(record: type) -> list[str]:
    """Return the fields of a dataclass as a table: name, type, default, and what the comment beside it says."""
    comments = _read_field_comments(record)
    rows = []
    for field in dataclasses.fields(record):
        if field.name.startswith("_"):
            continue
        default = ""
        if field.default is not dataclasses.MISSING and _is_plain(field.default):
            default = f"`{field.default!r}`"
        type_text = _escape_cell(_format_type(field.type))
        description = _escape_cell(comments.get(field.name, ""))
        rows.append(f"| `{field.name}` | `{type_text}` | {default} | {description} |")
    if not rows:
        return []
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""]


def _is_plain(default: Any) -> bool:
    """Whether a default can be read where it stands: a number, a text, an empty collection."""
    return default is None or default == () or isinstance(default, (str, int, float, bool))


def _read_field_comments(record: type) -> dict[str, str]:
    """Return what the comments beside or above the fields of a class say, by the field's name."""
    source = textwrap.dedent(inspect.getsource(record))
    lines = source.splitlines()
    (class_node,) = ast.parse(source).body
    assert isinstance(class_node, ast.ClassDef)
    comments = {}
    for node in class_node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        last_line = lines[(node.end_lineno or node.lineno) - 1]
        comment = last_line[node.end_col_offset :].partition("#")[2].strip().replace("``", "`")
        line_above = lines[node.lineno - 2].strip()
        if not comment and line_above.startswith("#"):
            comment = line_above.lstrip("# ").replace("``", "`")
        comments[node.target.id] = comment
    return comments


def _public_members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties of a class that people may use; constants are none."""
    for name, member in vars(value).items():
        is_member = inspect.isfunction(member) or isinstance(
            member, (property, classmethod, staticmethod, cached_property)
        )
        if is_member and not name.startswith("_"):
            yield name, member


def _describe_member(name: str, member: Any) -> str:
    function = _function_behind(member)
    docstring = Docstring.of(function)
    summary = docstring.prose.partition("\n\n")[0]
    shown = name
    if not isinstance(member, (property, cached_property)):
        shown = _join_lines(_format_signature(name, function)).replace("( ", "(")
        shown = shown.replace(", )", ")")
    return f"- `{shown}`: {_join_lines(summary)}"


def _function_behind(member: Any) -> Any:
    """Return the function behind a property, a class method or a cached property."""
    for attribute in ("fget", "__func__", "func"):
        function = getattr(member, attribute, None)
        if function is not None:
            return function
    return member


# --- signatures -------------------------------------------------------------------------------------------------------


def _format_signature(name: str, function: Any) -> str:
    """Write a signature in one line, or with a line for each parameter."""
    signature = inspect.signature(function)
    parameters = []
    has_star = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        has_star = has_star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parameters.append("*")
            has_star = True
        parameters.append(_format_parameter(parameter))
    arrow = ""
    if signature.return_annotation is not inspect.Signature.empty:
        arrow = f" -> {_format_type(signature.return_annotation)}"
    one_line = f"{name}({', '.join(parameters)}){arrow}"
    if len(one_line) <= MAX_SIGNATURE_WIDTH:
        return one_line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){arrow}"])


def _format_parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        text = f"*{text}"
    if parameter.annotation is not parameter.empty:
        text += f": {_format_type(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default) if _is_plain(parameter.default) else "…"
    return f"{text} = {default}"


def _format_type(annotation: Any) -> str:
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__name__", str(annotation))
    return PRIVATE_PATH.sub("", annotation)
