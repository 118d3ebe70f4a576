"""Reading and writing files with care.

What is written is there whole or not at all. What is read may come from anyone: its size is bounded, and it runs no
code. YAML that is too large or too deeply nested, whose aliases expand without end, that gives a key twice (YAML would
silently keep the last) or has text that is no Unicode, is refused with its line.

What a user allows beyond that (``--allow code`` …) is said by ``is_allowed``.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from potentia.errors import DataError, InputError, PotentiaError, first_line

if TYPE_CHECKING:
    from pydantic import ValidationError


def check_plain_file(path: Path, largest: int, error: type[PotentiaError] = InputError) -> Path:
    """Return a path; raise if there is a pipe or device, which may never end, or a file of more than so many bytes."""
    if path.exists() and not path.is_file():
        raise error("this is not a plain file", where=str(path))
    if path.is_file() and path.stat().st_size > largest:
        raise error(f"larger than {largest // 2**20:,} MiB", where=str(path))
    return path


LARGEST_DATA = 2**30  # bytes of a file of documents or scores, unpacked
MOST_VALUES = (
    2**24
)  # values in such a file: as objects they take far more memory and time than as text


UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, *UTF_16_MARKS)


@dataclass(frozen=True)
class DecodedText:
    """A text, and the encoding of its file."""

    text: str
    encoding: str
    has_mark: bool = (
        False  # whether the file begins with a byte order mark, as spreadsheets write it
    )


def read_text(
    path: Path,
    error: type[InputError] = DataError,
    *,
    largest: int = LARGEST_DATA,
    max_values: int = MOST_VALUES,
) -> str:
    """Return the text of a file of bounded size: UTF-8, or UTF-16 with a byte order mark, as spreadsheets save it."""
    return decode_file(path, error, largest=largest, max_values=max_values).text


def decode_file(
    path: Path,
    error: type[InputError] = DataError,
    *,
    largest: int = LARGEST_DATA,
    max_values: int = MOST_VALUES,
    fallback: str | None = None,
) -> DecodedText:
    """Return the text of a file of bounded size with its encoding: UTF-8, marked UTF-16, else ``fallback``."""
    try:
        file_bytes = check_plain_file(path, largest, error).read_bytes()
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror or problem}", where=str(path)) from problem
    is_utf_16 = file_bytes.startswith(UTF_16_MARKS)
    encoding = "utf-16" if is_utf_16 else "utf-8-sig"
    try:
        text = file_bytes.decode(encoding)
    except UnicodeDecodeError as problem:
        text_by_fallback = None
        if fallback is not None and not is_utf_16 and b"\0" not in file_bytes:
            text_by_fallback = _decode_or_none(file_bytes, fallback)
        if fallback is None or text_by_fallback is None:
            raise error(
                f"byte {problem.start} is not UTF-8 text", where=str(path), hint="save it as UTF-8"
            ) from None
        text = text_by_fallback
        encoding = fallback
    # an estimate that needs no parsing: each value has a comma, a bracket or a line break before it
    value_count = sum(map(text.count, ",[{\n"))
    if value_count > max_values:
        raise error(
            f"about {value_count:,} values, more than {max_values:,}",
            where=str(path),
            hint="divide the file",
        )
    return DecodedText(text, encoding, has_mark=file_bytes.startswith(BYTE_ORDER_MARKS))


def _decode_or_none(file_bytes: bytes, encoding: str) -> str | None:
    try:
        return file_bytes.decode(encoding)
    except UnicodeDecodeError:
        return None


def read_json(path: Path, largest: int, error: type[PotentiaError] = InputError) -> Any:
    """Return what a JSON file of bounded size holds.

    Raise ``error`` if it is too large or too deeply nested, ``ValueError`` if it is no JSON, and ``OSError`` if it
    cannot be read.
    """
    text = check_plain_file(path, largest, error).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except RecursionError:
        raise error("the JSON is nested too deeply", where=str(path)) from None


def read_json_object(
    path: Path, largest: int, error: type[PotentiaError] = InputError
) -> dict[str, Any]:
    """Return the object that a JSON file holds; raise ``error`` whatever is wrong with the file."""
    try:
        content = read_json(path, largest, error)
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror or problem}", where=str(path)) from problem
    except ValueError as problem:
        if isinstance(problem, PotentiaError):
            raise
        raise error(f"this is not valid JSON: {first_line(problem)}", where=str(path)) from None
    if not isinstance(content, dict):
        raise error("the JSON does not hold an object", where=str(path))
    return content


def describe_invalid(error: ValidationError) -> str:
    """Return the first problem that pydantic found, with the keys that lead to it."""
    first = error.errors(include_url=False, include_input=False)[0]
    field_path = ".".join(str(key) for key in first["loc"])
    return f"{field_path[:100]}: {first['msg']}"[:300]


def write_file(path: Path, *parts: bytes | str, synced: bool = False) -> None:
    """Write a file, and its folder if that is missing; if it fails or is killed midway, the old file stays.

    With ``synced`` the new file also survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_path(path)
    try:
        with draft.open("wb") as file:
            for content_part in parts:
                file.write(content_part.encode() if isinstance(content_part, str) else content_part)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> None:
    """Write a text only if the file has another one, so that caches that look at the time of its change stay valid."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes the folder ``path`` when the block ends without an error.

    There may be an empty folder at that path before; ``replace`` allows any folder.
    """
    path = path.resolve()
    if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("the folder is not empty", where=str(path), hint="give a new folder")
    draft = _draft_path(path)
    old_folder = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if replace and path.exists():
            path.rename(old_folder)  # it is deleted when the new one is there, not before
        try:
            draft.rename(path)
        except OSError:  # the path is a mount point, which cannot be replaced
            shutil.copytree(draft, path, dirs_exist_ok=True)
        shutil.rmtree(old_folder, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def make_folder_name(name: str) -> str:
    """Return a name for the folder of a model, as lm-eval makes it; different names stay different."""
    with_underscores = name.replace("/", "__")
    plain_text = re.sub(r"[^0-9A-Za-z._-]", "_", with_underscores).strip(".") or "_"
    if plain_text == with_underscores and len(plain_text) <= 120:
        return plain_text
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain_text[:100]}-{digest[:8]}"


def remove_path(path: Path) -> None:
    """Delete a file, or a folder with everything in it; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _draft_path(path: Path) -> Path:
    """Return the path at which a file or folder is written before it is renamed to its own."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


LARGEST_FILE = 2 * 2**20  # bytes of a file of settings or facts
DEEPEST_YAML = 50  # levels; a study has six
MOST_YAML_VALUES = 100_000  # with the values of aliases counted wherever they are used


def read_yaml(
    file: Path,
    *,
    description: str,
    error: type[InputError] = InputError,
    loader: type[yaml.SafeLoader] = yaml.SafeLoader,
) -> tuple[Any, yaml.Node | None]:
    """Return what a YAML file holds, and its root node, whose nodes know their lines; both None for an empty file.

    ``description`` names the file in an error.
    """
    try:
        text = check_plain_file(file, LARGEST_FILE, error).read_bytes().decode("utf-8-sig")
        yaml_loader = _bound_nesting(loader)(text)
        root_node = yaml_loader.get_single_node()
        if root_node is None:
            return None, None
        _NodeCheck(file, description, error).measure(root_node)
        return yaml_loader.construct_document(root_node), root_node
    except UnicodeDecodeError:
        raise error(f"{description} is not UTF-8 text", where=str(file)) from None
    except (OSError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        reason = problem.strerror if isinstance(problem, OSError) else str(problem).splitlines()[0]
        raise error(
            f"cannot read {description}: {reason or type(problem).__name__}", where=str(file)[:300]
        ) from None
    except yaml.YAMLError as problem:
        error_mark = getattr(problem, "problem_mark", None)
        words = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        location = f"{file}:{error_mark.line + 1}" if error_mark else str(file)
        raise error(f"not valid YAML: {words}", where=location) from None
    except RecursionError:
        raise error(f"{description} is nested too deeply", where=str(file)) from None


def _bound_nesting(loader: type[yaml.SafeLoader]) -> Any:
    """Return a loader that raises at too deep a nesting while it scans, which takes time by the square of the depth."""

    class BoundedLoader(loader):  # type: ignore[misc, valid-type]
        def fetch_flow_collection_start(self, token: Any) -> None:
            self.check_depth(self.flow_level)
            super().fetch_flow_collection_start(token)

        def add_indent(self, column: int) -> bool:
            self.check_depth(len(self.indents))
            return bool(super().add_indent(column))

        def check_depth(self, depth: int) -> None:
            if depth >= DEEPEST_YAML:
                raise yaml.scanner.ScannerError(
                    None, None, "it is nested too deeply", self.get_mark()
                )

    return BoundedLoader


class _NodeCheck:
    """Checks the nodes of one file; a node that aliases repeat is visited once and counted every time."""

    def __init__(self, file: Path, description: str, error: type[InputError]) -> None:
        self.file = file
        self.description = description
        self.error = error
        self.size_by_node: dict[int, int] = {}
        self.nodes_above: set[int] = set()  # of the node that is being checked

    def measure(self, node: yaml.Node) -> int:
        """Return how many values a node holds, itself included; raise for a node that is not allowed."""
        if id(node) in self.nodes_above:
            raise self.error_at(node, "an alias that holds itself")
        if id(node) not in self.size_by_node:
            self.nodes_above.add(id(node))
            size = 1 + sum(map(self.measure, self.inner_nodes(node)))
            self.size_by_node[id(node)] = size
            if size > MOST_YAML_VALUES:
                raise self.error_at(
                    node,
                    f"{self.description} holds more than {MOST_YAML_VALUES:,} values, its aliases written out",
                )
            self.nodes_above.discard(id(node))
        return self.size_by_node[id(node)]

    def inner_nodes(self, node: yaml.Node) -> list[yaml.Node]:
        """Check a node itself, and return the nodes right below it."""
        if isinstance(node, yaml.MappingNode):
            self.check_keys(node)
            inner: list[yaml.Node] = []
            for pair in node.value:
                inner += pair
            return inner
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self.check_text(node)
        return []

    def check_keys(self, node: yaml.MappingNode) -> None:
        """Raise for a key that is given twice: YAML would silently keep the last."""
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            is_plain = isinstance(key, yaml.ScalarNode)
            name = (key.tag, key.value) if is_plain else ("", str(id(key)))
            if name in names:
                raise self.error_at(key, f"the key `{key.value}` is given twice")
            names.add(name)

    def check_text(self, node: yaml.Node) -> None:
        """Raise for a text that is no Unicode, or has a NUL character in it."""
        if "\0" in node.value:
            raise self.error_at(node, "a text with a NUL character in it")
        try:
            node.value.encode()
        except UnicodeEncodeError:
            raise self.error_at(node, "a text with half of a Unicode character") from None

    def error_at(self, node: yaml.Node, words: str) -> InputError:
        """Return an error that names the line of a node."""
        return self.error(words, where=f"{self.file}:{node.start_mark.line + 1}")


def read_csv_rows(
    text: str, source: str, check_header: Callable[[list[str], str], list[str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV of facts, each with its place: ``facts.csv, line 7``.

    ``check_header(columns, source)`` returns the names of the columns to use, or raises.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        header = [str(column).strip() for column in reader.fieldnames or ()]
        reader.fieldnames = check_header(header, source)
        for row in reader:
            location = f"{source}, line {reader.line_num}"
            if None in row:
                raise DataError("more fields than the header has", where=location)
            yield location, {key: (value or "").strip() for key, value in row.items()}
    except csv.Error as error:
        raise DataError(
            f"this is not valid CSV: {error}", where=f"{source}, line {reader.line_num}"
        ) from None


FORMULA_STARTS = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
)  # of a text that a spreadsheet takes for a formula
_ESCAPED_STARTS = tuple("'" + start for start in FORMULA_STARTS)


def escape_formula(value: Any) -> Any:
    """Return a value for a table that spreadsheets open: a text that looks like a formula gets an apostrophe."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def unescape_formula(text: str) -> str:
    """Return a field of a table without the apostrophe that ``escape_formula`` puts before a formula."""
    return text[1:] if text.startswith(_ESCAPED_STARTS) else text


# The file in an exported folder that says what is in it: the base's fingerprint, data, recipe, scores.
ADAPTER_NOTE = "potentia.json"

# Permissions, as variables of the environment: worker processes inherit them, and no file can set them.
CODE = "POTENTIA_ALLOW_CODE"  # task definitions may run code
PICKLE = "POTENTIA_ALLOW_PICKLE"  # weights may be pickled
MISSING_WEIGHTS = "POTENTIA_ALLOW_MISSING_WEIGHTS"  # a model's files may lack weights


def is_allowed(permission: str) -> bool:
    """Whether the user has given this permission."""
    return os.environ.get(permission, "") not in ("", "0")


def allow(permission: str) -> None:
    """Give a permission to this process and to those that it starts."""
    os.environ[permission] = "1"
