"""Every sentence that Potentia can say to a person, in one table: file, line, and the words with their gaps.

python tools/sentences.py              # prints the table
python tools/sentences.py analysis     # of one room

A sentence is a text of three words or more in the code, apart from docstrings: headlines, notes, captions, errors,
hints and help. What is filled in stands as ``…``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "potentia"
MIN_WORDS = 3


@dataclass(frozen=True)
class Sentence:
    """A text in the code, and where it stands."""

    file: str
    line: int
    text: str


def collect_sentences(source: Path = SOURCE) -> list[Sentence]:
    """Return every sentence of the package, file by file."""
    sentences = []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = set(_find_docstrings(tree))
        for node in _find_texts(tree):
            text = _read_text(node)
            if id(node) not in docstrings and _is_sentence(text):
                sentences.append(Sentence(file, node.lineno, text))
    return sentences


def _find_docstrings(tree: ast.AST) -> Iterator[int]:
    """Give the texts that describe code and are not printed; a text by itself is no sentence either."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)


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
