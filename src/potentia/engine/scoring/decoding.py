"""How the next token is chosen: greedily, after penalties, or by what the model's own ``generate`` can do.

The model's generation config counts, as it does in lm-eval, and a request's own options go before it. What samples is
switched off; a repetition penalty is simple enough for the fast loop; anything else is left to ``generate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from potentia.engine.models.admission import not_a_number_error
from potentia.engine.models.tokenization import Ids
from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.engine.scoring.generate import Draft

# settings that change a text written without sampling, and the values that leave it alone
_NONE_OF: tuple[Any, ...] = ([], (), {})
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("bad_words_ids", "begin_suppress_tokens", "constraints", "force_words_ids"), _NONE_OF
    ),
    **dict.fromkeys(("sequence_bias", "stop_strings", "suppress_tokens"), _NONE_OF),
    **dict.fromkeys(
        ("diversity_penalty", "penalty_alpha", "token_healing", "min_length", "min_new_tokens"),
        (0,),
    ),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beam_groups", "num_beams"), (1,)),
    **dict.fromkeys(("dola_layers", "exponential_decay_length_penalty", "watermarking_config"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), ()),
}
_ALONGSIDE = ("length_penalty", "early_stopping")  # of beams


@dataclass(frozen=True)
class Decoding:
    """What changes a greedy text: a repetition penalty, and settings for the model's own ``generate``."""

    penalty: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, options: Sequence[tuple[str, Any]] = ()) -> Decoding:
        """Read the settings of the model and of a request."""
        asked = dict(options)
        unknown = asked.keys() - _NEUTRAL.keys() - set(_ALONGSIDE)
        if unknown:
            raise InputError(
                f"the setting {', '.join(sorted(unknown))} of generation is not known here",
                hint=f"known are until, max_gen_toks, {', '.join([*_NEUTRAL, *_ALONGSIDE])}",
            )
        own = getattr(model, "generation_config", None)
        settings: dict[str, Any] = {}
        for name, neutral in _NEUTRAL.items():
            value = asked[name] if name in asked else getattr(own, name, None)
            if value is not None and value not in neutral:
                settings[name] = _thawed(value)
        settings |= {name: asked[name] for name in _ALONGSIDE if name in asked}
        return cls(float(settings.get("repetition_penalty", 1.0)), settings)

    @property
    def beyond_greedy(self) -> bool:
        """Whether the fast loop cannot do it."""
        return bool(self.settings.keys() - {"repetition_penalty", *_ALONGSIDE})

    @property
    def beams(self) -> int:
        """How many versions of each text are kept at a time."""
        return int(self.settings.get("num_beams", 1))

    def choose(self, logits: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        """Return the token to write in each row, or −1 where the logits are not numbers; ``seen`` is penalised."""
        scores = logits
        if seen is not None:
            scores = logits.float()
            scores = torch.where(
                seen, torch.where(scores < 0, scores * self.penalty, scores / self.penalty), scores
            )
        return torch.where(scores.isnan().any(dim=-1), -1, scores.argmax(dim=-1))


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value


def seen_tokens(prompts: Sequence[Ids], like: torch.Tensor) -> torch.Tensor:
    """Mark the tokens of each row's prompt: (rows, vocabulary), true where a token was read."""
    seen = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    for row, prompt in zip(seen, prompts, strict=True):
        row[torch.tensor(prompt, device=like.device)] = True
    return seen


def generate_themselves(
    model: Any,
    prompts: Sequence[Ids],
    room: int,
    decoding: Decoding,
    stopped: Callable[[list[Ids]], list[bool]] | None,
    *,
    pad: int | None,
) -> list[Ids]:
    """Let the model's own ``generate`` continue prompts of one length; ``stopped`` says which rows are done."""
    ids = torch.tensor(prompts, device=next(model.parameters()).device)
    criteria = StoppingCriteriaList([] if stopped is None else [_Stop(ids.shape[1], stopped)])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=room,
        do_sample=False,
        use_cache=True,
        stopping_criteria=criteria,
        pad_token_id=0 if pad is None else pad,
        **decoding.settings,
    )
    return [row[ids.shape[1] :].tolist() for row in out]


class _Stop(StoppingCriteria):
    """Ask, after every token, which rows are done."""

    def __init__(self, start: int, stopped: Callable[[list[Ids]], list[bool]]) -> None:
        self.start, self.stopped = start, stopped

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor(
            self.stopped(input_ids[:, self.start :].tolist()), device=input_ids.device
        )


_SPACES = str.maketrans("▁Ġ", "  ")  # how tokenizers write them


class Endings:
    """When a text is over: at a token that ends it, at a stop text, or when its room is used up."""

    def __init__(self, model: Any, tokenizer: Any, vocabulary: int) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.tokens = _end_tokens(model, tokenizer)
        self._texts: list[str] | None = None
        self._tables: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}

    def append(
        self, drafts: Sequence[Draft], chosen: Sequence[int], *, looked_up: bool
    ) -> list[bool]:
        """Append the token that was chosen for each text, and say which texts are over.

        Where many are written, a text is ``looked_up`` before it is read: few tokens can end a stop text.
        """
        over, watched = list[bool](), list[int]()
        for place, (draft, token) in enumerate(zip(drafts, chosen, strict=True)):
            if token < 0:
                raise not_a_number_error("while writing a text")
            over.append(token in self.tokens)
            if not over[-1]:
                draft.written.append(token)
                over[-1] = len(draft.written) >= draft.room
                if draft.stop and (not looked_up or self.table(draft.stop)[token]):
                    watched.append(place)
        for place, stopped in zip(
            watched, self.stopped([drafts[place] for place in watched]), strict=True
        ):
            over[place] |= stopped
        return over

    def stopped(self, drafts: Sequence[Draft], written: Sequence[Ids] | None = None) -> list[bool]:
        """Say which texts end in one of their stop texts, as written so far or as given."""
        texts = [draft.written for draft in drafts] if written is None else written
        tails = [ids[-draft.lookback :] for draft, ids in zip(drafts, texts, strict=False)]
        tails = self.tokenizer.batch_decode(tails) if tails else []
        return [
            any(stop and stop in tail for stop in draft.stop)
            for draft, tail in zip(drafts, tails, strict=True)
        ]

    def table(self, stops: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return, for every token, whether a text that ends in it may end in one of ``stops``."""
        if stops not in self._tables:
            lasts = {stop[-1] for stop in stops if stop}
            spaces = any(last.isspace() and last not in "\r\n" for last in lasts)
            may = [
                spaces or "\ufffd" in text or any(last in text for last in lasts)
                for text in self._token_texts()
            ]
            self._tables[stops] = np.array(may, bool) & bool(lasts)
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


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of the model's generation config."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = [
        value if isinstance(value, (list, tuple)) else [value]
        for value in (tokenizer.eos_token_id, own)
    ]
    return frozenset(int(token) for values in listed for token in values if token is not None)


def _written(piece: str | bytes | None) -> str:
    if not isinstance(piece, str) or (piece.startswith("<0x") and piece.endswith(">")):  # a byte
        return "\ufffd"
    return piece.translate(_SPACES)
