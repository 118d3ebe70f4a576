"""How much of the test split is already in train: exact questions, and shared runs of thirteen words."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from potentia.tasks.splits import Split
    from potentia.tasks.task import Doc, Task

N = 13
_WORD = re.compile(r"\w+")
_MARKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
Hashes = npt.NDArray[np.uint64]


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

    train_runs, train_owner = _runs(train)
    test_runs, test_owner = _runs(test)
    shared = _found(train_runs, test_runs)
    train_hit = sorted(set(train_owner[shared].tolist()))
    test_hit = set(test_owner[_found(test_runs, train_runs[shared])].tolist())
    return Overlap(
        train=len(train),
        test=len(test),
        train_exact=len(exact),
        test_exact=sum(text in in_train for text in tested),
        train_ngram=len(train_hit),
        test_ngram=len(test_hit),
        exact_ids=tuple(exact),
        ngram_ids=tuple(train[place].id for place in train_hit),
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


def _found(runs: Hashes, among: Hashes) -> npt.NDArray[np.bool_]:
    """Tell which runs occur among others; one sort and a search, where numpy's set routines take seconds."""
    if not len(among):
        return np.zeros(len(runs), dtype=bool)
    ordered = np.sort(among)
    places = np.minimum(np.searchsorted(ordered, runs), len(ordered) - 1)
    return np.asarray(ordered[places] == runs, dtype=np.bool_)


def _plain(text: str) -> str:
    return " ".join(text.lower().translate(_MARKS).split())


def _runs(docs: Sequence[Doc]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Hash every run of thirteen words in every text column: (hashes, place of the document that owns each)."""
    codes: list[npt.NDArray[np.int64]] = []
    lengths: list[int] = []
    owners: list[int] = []
    for place, doc in enumerate(docs):
        for text in _texts(doc.data):
            if len(text) < 2 * N - 1:  # too short for thirteen words
                continue
            found = _WORD.findall(text.lower())
            if len(found) >= N:
                codes.append(np.fromiter(map(hash, found), dtype=np.int64, count=len(found)))
                lengths.append(len(found))
                owners.append(place)
    if not codes:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    array = np.concatenate(codes).view(np.uint64)
    ends = np.cumsum(lengths)
    inside = np.ones(len(array), dtype=bool)  # False where a run would cross the end of its text
    for step in range(1, N):
        inside[ends - step] = False
    first = np.flatnonzero(inside)
    runs = np.asarray(lengths) - N + 1
    hashes = np.zeros(len(first), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for step in range(N):
            hashes = (hashes ^ array[first + step]) * np.uint64(0x9E3779B97F4A7C15)
            hashes ^= hashes >> np.uint64(29)
    return hashes, np.repeat(np.asarray(owners, dtype=np.int64), runs)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
