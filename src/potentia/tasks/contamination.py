"""How much of the test split is already in train: exact questions, and shared runs of thirteen words."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.tasks.splits import Split
    from potentia.tasks.task import Doc, Task

N = 13
_WORD = re.compile(r"\w+")
_MARKS = str.maketrans(dict.fromkeys(string.punctuation, " "))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Training and test documents, and how many of each have a twin on the other side.

    ``exact`` compares the whole prompt without case and punctuation; ``ngram`` asks for a run of thirteen words shared
    by any text columns (the prompt's own wording plays no part). The ids are those of training documents.
    """

    train: int
    test: int
    train_exact: int
    test_exact: int
    train_ngram: int
    test_ngram: int
    exact_ids: tuple[int, ...]
    ngram_ids: tuple[int, ...]

    @property
    def train_ids(self) -> frozenset[int]:
        """Ids of training documents that overlap in either way."""
        return frozenset(self.exact_ids) | frozenset(self.ngram_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {key: value for key, value in asdict(self).items() if not key.endswith("_ids")}


def overlap(task: Task) -> Overlap:
    """Count the overlap between a task's train and test splits."""
    train, test = task.documents("train"), task.documents("test")
    asked = [_plain(text) for text in task.asked(train)]
    tested = [_plain(text) for text in task.asked(test)]
    in_test, in_train = set(tested) - {""}, set(asked) - {""}
    exact = [doc.id for doc, text in zip(train, asked, strict=True) if text in in_test]
    of_test = [_runs(doc) for doc in test]
    known, shared, alike = set[int]().union(*of_test), set[int](), list[int]()
    for doc in train:
        if hit := known & _runs(doc):
            shared |= hit
            alike.append(doc.id)
    return Overlap(
        train=len(train),
        test=len(test),
        train_exact=len(exact),
        test_exact=sum(text in in_train for text in tested),
        train_ngram=len(alike),
        test_ngram=sum(not runs.isdisjoint(shared) for runs in of_test),
        exact_ids=tuple(exact),
        ngram_ids=tuple(alike),
    )


def duplicates(task: Task) -> dict[Split, frozenset[int]]:
    """Return the training documents that validation or test repeat, and the validation documents that test repeats.

    The same question with the same choices counts as the same, without case and punctuation.
    """
    seen: set[str] = set()
    found: dict[Split, frozenset[int]] = {}
    for split in ("test", "validation", "train"):
        docs = task.documents(split)
        keys = [_plain("\n".join(texts)) for texts in task.identifying(docs)]
        if split != "test":
            found[split] = frozenset(doc.id for doc, key in zip(docs, keys, strict=True) if key in seen)
        seen |= set(keys) - {""}
    return found


def _plain(text: str) -> str:
    return " ".join(text.lower().translate(_MARKS).split())


def _runs(doc: Doc) -> set[int]:
    """Return a hash of every run of thirteen words in every text column."""
    found: set[int] = set()
    for text in _texts(doc.data):
        words = _WORD.findall(text.lower())
        if len(words) >= N:
            found.update(map(hash, zip(*(words[start:] for start in range(N)), strict=False)))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
