"""The names of all harness tasks and the file behind each, found once per lm-eval version and kept on disk.

lm-eval's own index reads 14,000 YAML files in full, about 12 s in every process. Only four top-level keys decide a
task's name and kind, so this one reads no more than those, follows includes, and caches the answer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from potentia.errors import TaskError
from potentia.files import write_file

Kind = Literal["task", "group", "tag", "class"]
_KEYS = ("task", "group", "tag", "class", "include")
_TOP = re.compile(rf"^[\"']?({'|'.join(_KEYS)})[\"']?[ \t]*:[ \t]*(.*)$", re.MULTILINE)
_PLAIN = re.compile(r"^[A-Za-z_][\w./+-]*$|^\"[\w./+-]+\"$|^'[\w./+-]+'$")
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the harness: a task, a group of tasks, a tag, or a task written as a Python class."""

    kind: Kind
    path: str  # relative to lm_eval/tasks; empty for a tag
    members: tuple[str, ...] = ()  # a tag's tasks


def tasks_folder() -> Path:
    """Return the folder of task definitions, without importing lm-eval."""
    found = find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise TaskError("lm-eval is not installed", hint="pip install 'lm-eval>=0.4.13'")
    return Path(next(iter(found.submodule_search_locations))) / "tasks"


def cache_folder() -> Path:
    """Return the user's cache folder of Potentia (``POTENTIA_CACHE`` moves it)."""
    if own := os.environ.get("POTENTIA_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potentia"


@cache
def index() -> dict[str, Entry]:
    """Return every name of the installed harness; a few seconds on the first call ever, milliseconds afterwards."""
    folder = tasks_folder()
    stamp = {"format": _FORMAT, "lm_eval": version("lm_eval"), "folder": str(folder)}
    file = cache_folder() / f"tasks-lm_eval-{stamp['lm_eval']}.json"
    try:
        kept = json.loads(file.read_text("utf-8"))
        if kept["stamp"] == stamp:
            return {name: Entry(e["kind"], e["path"], tuple(e["members"])) for name, e in kept["names"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    names = build(folder)
    _keep(file, {"stamp": stamp, "names": {name: asdict(entry) for name, entry in names.items()}})
    return names


def build(folder: Path) -> dict[str, Entry]:
    """Read the names under one folder of task definitions, in lm-eval's order: the first of two equal names counts."""
    heads: dict[Path, dict[str, Any]] = {}
    names: dict[str, Entry] = {}
    tagged: dict[str, list[str]] = {}
    for path in sorted(_yaml_files(folder), key=lambda p: p.as_posix()):
        head = _head(path, heads, frozenset())
        place = path.relative_to(folder).as_posix()
        if "class" in head:
            kind, name = "class", head.get("task")
        elif "group" in head:
            kind, name = "group", head["group"]
        elif "task" in head:
            kind, name = "task", head["task"]
        else:
            continue
        if not isinstance(name, str) or name in names:
            continue
        names[name] = Entry(kind, place)  # type: ignore[arg-type]
        if kind != "group" and (tags := head.get("tag")):
            for tag in tags if isinstance(tags, list) else [tags]:
                tagged.setdefault(tag, []).append(name)
    for tag, members in tagged.items():
        if tag not in names:
            names[tag] = Entry("tag", "", tuple(sorted(members)))
    return names


def _yaml_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in {"__pycache__", ".ipynb_checkpoints"}]
        yield from (Path(root) / file for file in files if file.endswith(".yaml"))


def _head(path: Path, heads: dict[Path, dict[str, Any]], above: frozenset[Path]) -> dict[str, Any]:
    """Read the deciding keys of one file, its includes below its own keys; an unreadable file has none."""
    if path in heads:
        return heads[path]
    if path in above:
        return {}
    own: dict[str, Any] = {}
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    for found in _TOP.finditer(text):
        own[found[1]] = _value(found, text)
    merged: dict[str, Any] = {}
    includes = own.pop("include", None) or []
    for include in includes if isinstance(includes, list) else [includes]:
        merged.update(_head((path.parent / include).resolve(), heads, above | {path}))
    merged.update(own)
    heads[path] = merged
    return merged


def _value(found: re.Match[str], text: str) -> Any:
    value = found[2].split(" #")[0].strip()
    if _PLAIN.match(value) and value.lower() not in _YAML_WORDS:
        return value.strip("\"'")
    if found[1] == "class":
        return value
    import yaml

    lines = [found[0]]
    for line in text[found.end() + 1 :].splitlines():
        if line and not line[0].isspace() and not line.startswith(("-", "#", "]", "}")):
            break
        lines.append(line)
    try:
        parsed = yaml.load("\n".join(lines), Loader=_tolerant())
        return next(iter(parsed.values()))
    except (yaml.YAMLError, AttributeError, StopIteration):
        return None


@cache
def _tolerant() -> Any:
    import yaml

    class Tolerant(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Safe YAML that reads ``!function`` as plain text."""

    Tolerant.add_multi_constructor("!", lambda loader, suffix, node: None)
    return Tolerant


def _keep(file: Path, content: dict[str, Any]) -> None:
    """Write the cache in one step; a folder that cannot be written only costs time."""
    try:
        write_file(file, json.dumps(content))
    except OSError:
        return
