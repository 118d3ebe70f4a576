"""Every sentence that Potentia can say to a person, in one table: file, line, and the words with their gaps.

python tools/sentences.py              # prints the table
python tools/sentences.py analysis     # of one room

A sentence is a text of three words or more in the code: headlines, notes, captions, errors, hints and help, with the
docstrings of commands, which ``--help`` prints, and the words of templates and scripts, which report and board show.
What is filled in stands as ``…``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "potentia"
MIN_WORDS = 3
COMMAND_DECORATORS = ("command", "callback")
TEMPLATE_CODE = re.compile(r"{#.*?#}|{%.*?%}|<(script|style)\b.*?</\1>|<!--.*?-->", flags=re.DOTALL)
TEMPLATE_GAP = re.compile(r"{{.*?}}", flags=re.DOTALL)
TEMPLATE_TEXT = re.compile(r'(?:title|aria-label|alt|placeholder)="([^"]*)"|>([^<>]*)(?=<)')
INLINE_TAG = re.compile(r"</?(?:a|b|code|em|i|kbd|small|strong)\b[^<>]*>")
SCRIPT_TOKEN = re.compile(
    r"/\*.*?\*/"  # a comment
    r"|//[^\n]*"
    # A pattern, which may hold quotes.
    r"|(?:(?<=[(=>,:?&|!])|(?<=return))\s*/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/"
    r"|'(?:[^'\\\n]|\\.)*'"
    r'|"((?:[^"\\\n]|\\.)*)"'
    r"|`((?:\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}|[^`\\]|\\.)*)`",
    flags=re.DOTALL,
)
SCRIPT_GAP = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")


@dataclass(frozen=True)
class Sentence:
    """A text in the code, and where it stands."""

    file: str
    line: int
    text: str


def collect_sentences(source: Path = SOURCE) -> list[Sentence]:
    """Return every sentence of the package, file by file."""
    readers = {
        ".py": _read_code,
        ".html": _read_template,
        ".js": _read_script,
    }
    sentences = []
    for path in sorted(source.rglob("*")):
        read_texts = readers.get(path.suffix)
        if read_texts is None:
            continue
        file = path.relative_to(source).as_posix()
        for line, text in read_texts(path.read_text("utf-8")):
            if _is_sentence(text):
                sentences.append(Sentence(file, line, text))
    return sentences


def _read_code(code: str) -> Iterator[tuple[int, str]]:
    """Give the texts of Python code that a person can read while it runs, each with its line."""
    tree = ast.parse(code)
    docstrings = set(_find_docstrings(tree)) - set(_find_help(tree))
    for node in _find_texts(tree):
        if id(node) not in docstrings:
            yield node.lineno, _read_text(node)


def _read_template(template: str) -> Iterator[tuple[int, str]]:
    """Give the words of a template: those between tags, in attributes, and those that its statements set."""
    without_code = TEMPLATE_CODE.sub(_blank_but_texts, template)
    plain = INLINE_TAG.sub("", TEMPLATE_GAP.sub("…", without_code))
    for match in TEMPLATE_TEXT.finditer(f">{plain}<"):
        yield plain.count("\n", 0, match.start()) + 1, match[1] or match[2] or ""


def _blank_but_texts(code: re.Match[str]) -> str:
    """Keep of a statement of a template the texts that it sets, and the lines that it takes."""
    if not code[0].startswith("{% set"):
        return "\n" * code[0].count("\n")
    lines = []
    for line in code[0].split("\n"):
        texts = re.findall(r'"([^"]*)"', line)
        lines.append("".join(f"<p>{text}</p>" for text in texts))
    return "\n".join(lines)


def _read_script(script: str) -> Iterator[tuple[int, str]]:
    """Give the texts of a script."""
    for match in SCRIPT_TOKEN.finditer(script):
        text = SCRIPT_GAP.sub("…", match[1] or match[2] or "")
        yield script.count("\n", 0, match.start()) + 1, text


def _find_docstrings(tree: ast.AST) -> Iterator[int]:
    """Give the texts that describe code and are not printed; a text by itself is no sentence either."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)


def _find_help(tree: ast.AST) -> Iterator[int]:
    """Give the docstrings of commands, which ``--help`` prints."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_makes_command, node.decorator_list)):
            yield id(node.body[0].value)  # type: ignore[attr-defined]


def _makes_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in COMMAND_DECORATORS


def _find_texts(tree: ast.AST) -> Iterator[ast.expr]:
    """Give texts and f-strings, without the parts of an f-string."""
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in inner and (is_text or isinstance(node, ast.JoinedStr)):
            yield node  # type: ignore[misc]


def _read_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    parts = []
    for part in node.values:
        parts.append(str(part.value) if isinstance(part, ast.Constant) else "…")
    return "".join(parts)


def _is_sentence(text: str) -> bool:
    words = [word for word in text.split() if word.strip("…`.,:;()").isalpha()]
    is_code = text.lstrip().startswith(("<", "{", "SELECT", "INSERT", "import ", "from "))
    return len(words) >= MIN_WORDS and not is_code


def main() -> None:
    """Print the table."""
    rooms = tuple(sys.argv[1:])
    for sentence in collect_sentences():
        if not rooms or sentence.file.startswith(rooms):
            print(f"{sentence.file}:{sentence.line}\t{' '.join(sentence.text.split())}")


if __name__ == "__main__":
    main()
