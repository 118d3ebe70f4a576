"""Stop texts: which tokens can end one, so that few texts have to be looked at after every step.

A stop text is complete only after a token that holds its last character. A table over the vocabulary, made once for a
set of stop texts, marks these tokens, and all whose text by itself says little (bytes of a longer character). A text is
decoded and looked at only after a marked token. A token missed by the table would cost time and no more: a finished
text is cut at its first stop text in any case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MARKS = "▁Ġ"  # how tokenizers write a space


class StopTables:
    """The tables of one tokenizer, by set of stop texts."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self._texts: list[str] | None = None
        self._tables: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}

    def table(self, stops: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return, for every token, whether a text that ends in it may end in one of ``stops``."""
        if stops not in self._tables:
            lasts = {stop[-1] for stop in stops if stop}
            spaces = any(last.isspace() and last not in "\r\n" for last in lasts)
            found = np.ones(self.vocabulary, bool)
            texts = self._token_texts()
            for token, text in enumerate(texts):
                found[token] = spaces or "\ufffd" in text or any(last in text for last in lasts)
            if not lasts:
                found[:] = False
            self._tables[stops] = found
        return self._tables[stops]

    def _token_texts(self) -> list[str]:
        """Every token as it reads by itself, and as the tokenizer writes it."""
        if self._texts is None:
            known = min(len(self.tokenizer), self.vocabulary)
            texts = self.tokenizer.batch_decode([[token] for token in range(known)])
            pieces = self.tokenizer.convert_ids_to_tokens(list(range(known)))
            both = [text + _written(piece) for text, piece in zip(texts, pieces, strict=True)]
            self._texts = both + ["\ufffd"] * (self.vocabulary - known)
        return self._texts


def _written(piece: str | bytes | None) -> str:
    if not isinstance(piece, str):
        return "\ufffd"
    if piece.startswith("<0x") and piece.endswith(">"):  # a byte
        return "\ufffd"
    for mark in _MARKS:
        piece = piece.replace(mark, " ")
    return piece
