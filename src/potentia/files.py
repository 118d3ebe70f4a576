"""Files read and written with care: whole or not there, of a bounded size, and YAML that means what it seems to mean.

A file from anyone is data. Refused, each with its line: YAML and nestings too large to be meant, aliases that expand
without end, a key given twice (YAML would silently keep the last), and texts that are no Unicode.
"""

from __future__ import annotations

import csv
import io
import json
import os
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
    """Return a path of a plain file of at most so many bytes; reading a pipe or a device may never end."""
    if path.exists() and not path.is_file():
        raise error("this is no plain file", where=str(path))
    if path.is_file() and path.stat().st_size > largest:
        raise error(f"larger than {largest // 2**20:,} MiB", where=str(path))
    return path


LARGEST_DATA = 2**30  # bytes of a file of documents or scores, unpacked
MOST_VALUES = 2**24  # in it: lists and objects take far more memory and time than text


@dataclass(frozen=True)
class DecodedText:
    """A text, and how its file was encoded."""

    text: str
    encoding: str


def read_text(
    path: Path,
    error: type[InputError] = DataError,
    *,
    largest: int = LARGEST_DATA,
    most: int = MOST_VALUES,
) -> str:
    """Return a text of bounded size: UTF-8, or UTF-16 where it says so, as spreadsheets save it."""
    return decode_file(path, error, largest=largest, most=most).text


def decode_file(
    path: Path,
    error: type[InputError] = DataError,
    *,
    largest: int = LARGEST_DATA,
    most: int = MOST_VALUES,
    fallback: str | None = None,
) -> DecodedText:
    """Return a text of bounded size with its encoding: UTF-8, UTF-16 where it says so, else the fallback."""
    try:
        data = check_plain_file(path, largest, error).read_bytes()
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror or problem}", where=str(path)) from problem
    is_utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    encoding = "utf-16" if is_utf_16 else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as problem:
        text_by_fallback = None
        if fallback is not None and not is_utf_16 and b"\0" not in data:
            text_by_fallback = _decode_or_none(data, fallback)
        if fallback is None or text_by_fallback is None:
            raise error(
                f"byte {problem.start} is no UTF-8 text", where=str(path), hint="save it as UTF-8"
            ) from None
        text = text_by_fallback
        encoding = fallback
    values = sum(map(text.count, ",[{\n"))
    if values > most:
        raise error(
            f"about {values:,} values, more than {most:,}", where=str(path), hint="divide the file"
        )
    return DecodedText(text, encoding)


def _decode_or_none(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def read_json(path: Path, largest: int, error: type[PotentiaError] = InputError) -> Any:
    """Return what a JSON file of bounded size holds; one that is nested without end is refused.

    Raises ``ValueError`` where it is no JSON and ``OSError`` where it cannot be read.
    """
    text = check_plain_file(path, largest, error).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except RecursionError:
        raise error("the JSON is nested too deeply", where=str(path)) from None


def read_json_object(
    path: Path, largest: int, error: type[PotentiaError] = InputError
) -> dict[str, Any]:
    """Return the object that a JSON file from anyone holds; whatever is wrong with it is told as ``error``."""
    try:
        content = read_json(path, largest, error)
    except OSError as problem:
        raise error(f"cannot be read: {problem.strerror or problem}", where=str(path)) from problem
    except ValueError as problem:
        if isinstance(problem, PotentiaError):
            raise
        raise error(f"this is no JSON: {first_line(problem)}", where=str(path)) from None
    if not isinstance(content, dict):
        raise error("the JSON holds no object", where=str(path))
    return content


def describe_invalid(error: ValidationError) -> str:
    """Return the first thing that is wrong with a foreign file, with the keys that lead there."""
    first = error.errors(include_url=False, include_input=False)[0]
    keys = ".".join(str(key) for key in first["loc"])
    return f"{keys[:100]}: {first['msg']}"[:300]


def write_file(path: Path, *parts: bytes | str, synced: bool = False) -> None:
    """Write a file, and its folder where that is missing: a full disk or a kill leaves the old one.

    With ``synced`` it survives a power cut as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_path(path)
    try:
        with draft.open("wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> None:
    """Write a text only where it changed, so that dataset caches keyed by time of change stay valid."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill, which then takes this name: that of an empty folder, or with ``replace`` of any."""
    path = path.resolve()
    if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("the folder is not empty", where=str(path), hint="give a new folder")
    draft = _draft_path(path)
    old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if replace and path.exists():
            path.rename(old)  # the old one is gone when the new one is there, not before
        try:
            draft.rename(path)
        except OSError:  # a mount point keeps its name
            shutil.copytree(draft, path, dirs_exist_ok=True)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; one that is not there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _draft_path(path: Path) -> Path:
    """Return the name under which a file is written before it takes its own."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


LARGEST_FILE = 2 * 2**20  # bytes of a file
DEEPEST_YAML = 50  # levels; a study has six
MOST_YAML_VALUES = 100_000  # values, aliases written out


def read_yaml(
    file: Path,
    *,
    description: str,
    error: type[InputError] = InputError,
    loader: type[yaml.SafeLoader] = yaml.SafeLoader,
) -> tuple[Any, yaml.Node | None]:
    """Return what a YAML file holds, and its nodes, which know their lines; ``description`` names it in an error."""
    try:
        text = check_plain_file(file, LARGEST_FILE, error).read_bytes().decode("utf-8-sig")
        yaml_loader = _bound_nesting(loader)(text)
        node = yaml_loader.get_single_node()
        if node is None:
            return None, None
        _NodeCheck(file, description, error).measure(node)
        return yaml_loader.construct_document(node), node
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
        mark = getattr(problem, "problem_mark", None)
        words = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise error(f"not valid YAML: {words}", where=where) from None
    except RecursionError:
        raise error(f"{description} is nested too deeply", where=str(file)) from None


def _bound_nesting(loader: type[yaml.SafeLoader]) -> Any:
    """Return the loader with an end to nesting, seen while it scans: its time grows with the square of the depth."""

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
    """Goes through the nodes once; what aliases repeat is counted, not visited."""

    def __init__(self, file: Path, description: str, error: type[InputError]) -> None:
        self.file = file
        self.description = description
        self.error = error
        self.sizes: dict[int, int] = {}
        self.above: set[int] = set()

    def measure(self, node: yaml.Node) -> int:
        """Return how many values there are from here on."""
        if id(node) in self.above:
            raise self.error_at(node, "an alias that holds itself")
        if id(node) not in self.sizes:
            self.above.add(id(node))
            size = 1 + sum(map(self.measure, self.inner_nodes(node)))
            self.sizes[id(node)] = size
            if size > MOST_YAML_VALUES:
                raise self.error_at(
                    node,
                    f"{self.description} holds more than {MOST_YAML_VALUES:,} values, its aliases written out",
                )
            self.above.discard(id(node))
        return self.sizes[id(node)]

    def inner_nodes(self, node: yaml.Node) -> list[yaml.Node]:
        """Return the nodes right below, after a look at the node itself."""
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
        """Refuse a key that is given twice: YAML would silently keep the last."""
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            is_plain = isinstance(key, yaml.ScalarNode)
            name = (key.tag, key.value) if is_plain else ("", str(id(key)))
            if name in names:
                raise self.error_at(key, f"the key `{key.value}` is given twice")
            names.add(name)

    def check_text(self, node: yaml.Node) -> None:
        """Refuse a text that is no Unicode, or has a NUL in it."""
        if "\0" in node.value:
            raise self.error_at(node, "a text with a NUL character in it")
        try:
            node.value.encode()
        except UnicodeEncodeError:
            raise self.error_at(node, "a text with half of a Unicode character") from None

    def error_at(self, node: yaml.Node, words: str) -> InputError:
        """Make an error that names the line of a node."""
        return self.error(words, where=f"{self.file}:{node.start_mark.line + 1}")


def read_csv_rows(
    text: str, where: str, rename: Callable[[list[str], str], list[str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Give the rows of a CSV of facts, each with its place; ``rename`` says what its columns are, or refuses them."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        reader.fieldnames = rename(
            [str(column).strip() for column in reader.fieldnames or ()], where
        )
        for row in reader:
            place = f"{where}, line {reader.line_num}"
            if None in row:
                raise DataError("more fields than the header has", where=place)
            yield place, {key: (value or "").strip() for key, value in row.items()}
    except csv.Error as error:
        raise DataError(
            f"this is no CSV: {error}", where=f"{where}, line {reader.line_num}"
        ) from None


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute
_ESCAPED_STARTS = tuple("'" + start for start in FORMULA_STARTS)


def escape_formula(value: Any) -> Any:
    """Return a value for a table that spreadsheets open: a text that one would compute gets an apostrophe."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


def unescape_formula(text: str) -> str:
    """Return a field of a table without the apostrophe that ``escape_formula`` puts before a formula."""
    return text[1:] if text.startswith(_ESCAPED_STARTS) else text


# What the user has allowed files by name is kept in the environment: worker processes know it, and no file that someone
# else wrote can say it. Code of task definitions, pickled weights, and weights that are missing.
CODE = "POTENTIA_ALLOW_CODE"
PICKLE = "POTENTIA_ALLOW_PICKLE"
MISSING_WEIGHTS = "POTENTIA_ALLOW_MISSING_WEIGHTS"


def is_allowed(permission: str) -> bool:
    """Say whether this was allowed."""
    return os.environ.get(permission, "") not in ("", "0")


def allow(permission: str) -> None:
    """Allow it, here and in the processes started from here."""
    os.environ[permission] = "1"
