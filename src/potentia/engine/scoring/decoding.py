"""How the next token is chosen: greedily, after penalties, by sampling, or by what the model's ``generate`` can do.

The model's generation config counts, as it does in lm-eval, and a request's own options go before it. What samples in
it is switched off: a request that is to be sampled says so itself, with a temperature and a seed, and its next token is
the one at which the cumulated probabilities pass the text's next number from 0 to 1. A repetition penalty is simple
enough for the fast loop; anything else is left to ``generate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from potentia.engine.layers.draft import Draft
from potentia.engine.models.admission import not_a_number_error
from potentia.engine.models.tokenization import Ids
from potentia.errors import InputError

# settings that change a text written without sampling, and the values that leave it alone
_NOTHING: tuple[Any, ...] = ([], (), {})
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": _NOTHING,
    "begin_suppress_tokens": _NOTHING,
    "constraints": _NOTHING,
    "force_words_ids": _NOTHING,
    "sequence_bias": _NOTHING,
    "stop_strings": _NOTHING,
    "suppress_tokens": _NOTHING,
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "token_healing": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "repetition_penalty": (1,),
    "guidance_scale": (1,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "dola_layers": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
}
_BEAM_SETTINGS = ("length_penalty", "early_stopping")  # count where there are beams
_UNREADABLE = "\ufffd"  # how a part of a character is written


@dataclass(frozen=True)
class Decoding:
    """What changes a greedy text: a repetition penalty, and settings for the model's own ``generate``."""

    penalty: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_options(cls, model: Any, options: Sequence[tuple[str, Any]] = ()) -> Decoding:
        """Read the settings of the model and of a request."""
        requested = dict(options)
        unknown = requested.keys() - _NEUTRAL_VALUES.keys() - set(_BEAM_SETTINGS)
        if unknown:
            setting_names = ", ".join([*_NEUTRAL_VALUES, *_BEAM_SETTINGS])
            raise InputError(
                f"the setting {', '.join(sorted(unknown))} of generation is not known here",
                hint=f"known are until, max_gen_toks, {setting_names}",
            )
        model_settings = getattr(model, "generation_config", None)
        settings: dict[str, Any] = {}
        for name, neutral_values in _NEUTRAL_VALUES.items():
            value = getattr(model_settings, name, None)
            if name in requested:
                value = requested[name]
            if value is not None and value not in neutral_values:
                settings[name] = _lists_from_tuples(value)
        for name in _BEAM_SETTINGS:
            if name in requested:
                settings[name] = requested[name]
        return cls(float(settings.get("repetition_penalty", 1.0)), settings)

    @property
    def is_beyond_greedy(self) -> bool:
        """Whether the fast loop cannot do it."""
        return bool(self.settings.keys() - {"repetition_penalty", *_BEAM_SETTINGS})

    @property
    def beams(self) -> int:
        """How many versions of each text are kept at a time."""
        return int(self.settings.get("num_beams", 1))

    def choose(
        self,
        logits: torch.Tensor,
        read_tokens: torch.Tensor | None,
        draws: SampleDraws | None = None,
    ) -> torch.Tensor:
        """Return the token to write in each row, or −1 where the logits are not numbers.

        Tokens that were read or written before are penalised. ``draws`` choose the tokens of rows that are sampled.
        """
        scores = logits
        if read_tokens is not None:
            scores = logits.float()
            penalised = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
            scores = torch.where(read_tokens, penalised, scores)
        choice = scores.argmax(dim=-1)
        if draws is not None:
            choice = draws.choose(scores)
        return torch.where(scores.isnan().any(dim=-1), -1, choice)


@dataclass(frozen=True)
class SampleDraws:
    """What chooses the next token of each row: its temperature (0: the likeliest token), and a number from 0 to 1."""

    temperatures: torch.Tensor  # (rows,)
    uniforms: torch.Tensor  # (rows,)

    @classmethod
    def of_next_tokens(cls, drafts: Sequence[Draft], device: torch.device) -> SampleDraws | None:
        """Return the draws for the next token of every text; None where none of them is sampled."""
        if not any(draft.temperature > 0 for draft in drafts):
            return None
        temperatures = [draft.temperature for draft in drafts]
        uniforms = [_next_uniform(draft) for draft in drafts]
        return cls(
            temperatures=torch.tensor(temperatures, device=device),
            uniforms=torch.tensor(uniforms, device=device),
        )

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Return one token for each row of logits."""
        divisors = torch.where(self.temperatures > 0, self.temperatures, 1.0)
        shares = torch.softmax(logits.float() / divisors[:, None], dim=-1)
        cumulated = shares.cumsum(dim=-1)
        limits = self.uniforms[:, None] * cumulated[:, -1:]
        sampled = (cumulated <= limits).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
        return torch.where(self.temperatures > 0, sampled, logits.argmax(dim=-1))


def _next_uniform(draft: Draft) -> float:
    if draft.uniforms is None:
        return 0.0
    return float(draft.uniforms[len(draft.written)])


def _lists_from_tuples(value: Any) -> Any:
    """Return a setting as transformers takes it: requests hold tuples, which can be hashed."""
    if isinstance(value, tuple):
        return [_lists_from_tuples(part) for part in value]
    return value


def mark_read_tokens(prompts: Sequence[Ids], like: torch.Tensor) -> torch.Tensor:
    """Mark the tokens of each row's prompt: (rows, vocabulary), true where a token was read."""
    read_tokens = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    for row, prompt in zip(read_tokens, prompts, strict=True):
        row[torch.tensor(prompt, device=like.device)] = True
    return read_tokens


FindStopped = Callable[[list[Ids]], list[bool]]  # which of the texts written so far are done


def generate_by_model(
    model: Any,
    prompts: Sequence[Ids],
    room: int,
    decoding: Decoding,
    find_stopped: FindStopped | None,
    *,
    pad: int | None,
    drafts: Sequence[Draft] = (),
) -> list[Ids]:
    """Let the model's own ``generate`` continue prompts of one length; ``find_stopped`` says which rows are done.

    ``drafts`` are the texts of the rows, where some of them are sampled.
    """
    ids = torch.tensor(prompts, device=next(model.parameters()).device)
    prompt_length = ids.shape[1]
    criteria = StoppingCriteriaList()
    if find_stopped is not None:
        criteria.append(_StopWhereFound(prompt_length, find_stopped))
    processors = LogitsProcessorList()
    if any(draft.temperature > 0 for draft in drafts):
        processors.append(_SampleTokens(prompt_length, drafts))
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=room,
        do_sample=False,
        use_cache=True,
        stopping_criteria=criteria,
        logits_processor=processors,
        pad_token_id=0 if pad is None else pad,
        **decoding.settings,
    )
    return [row[prompt_length:].tolist() for row in output]


class _SampleTokens(LogitsProcessor):
    """Leave the greedy choice of ``generate`` one token for each sampled row: the one that its number chooses."""

    def __init__(self, prompt_length: int, drafts: Sequence[Draft]) -> None:
        self.prompt_length = prompt_length
        self.temperatures = torch.tensor([draft.temperature for draft in drafts])
        self.uniforms = [draft.uniforms for draft in drafts]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self.prompt_length
        numbers = [0.0 if row is None else float(row[position]) for row in self.uniforms]
        draws = SampleDraws(
            temperatures=self.temperatures.to(scores.device),
            uniforms=torch.tensor(numbers, device=scores.device),
        )
        chosen = draws.choose(scores)
        only_chosen = torch.full_like(scores, -torch.inf)
        return only_chosen.scatter(1, chosen[:, None], 0.0)


class _StopWhereFound(StoppingCriteria):
    """Ask, after every token, which rows are done."""

    def __init__(self, prompt_length: int, find_stopped: FindStopped) -> None:
        self.prompt_length = prompt_length
        self.find_stopped = find_stopped

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        written = input_ids[:, self.prompt_length :].tolist()
        return torch.tensor(self.find_stopped(written), device=input_ids.device)


_SPACE_MARKS = str.maketrans("▁Ġ", "  ")  # how tokenizers write spaces


class Endings:
    """When a text is over: at a token that ends it, at a stop text, or when its room is used up."""

    def __init__(self, model: Any, tokenizer: Any, vocabulary: int) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.tokens = _find_end_tokens(model, tokenizer)
        self._token_texts: list[str] | None = None
        self._stop_tables: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}

    def append(
        self, drafts: Sequence[Draft], chosen: Sequence[int], *, looked_up: bool
    ) -> list[bool]:
        """Append the token that was chosen for each text, and say which texts are over.

        Where many are written, a text is ``looked_up`` before it is read: few tokens can end a stop text.
        """
        is_over: list[bool] = []
        watched: list[int] = []  # texts that may end in a stop text now
        for number, (draft, token) in enumerate(zip(drafts, chosen, strict=True)):
            if token < 0:
                raise not_a_number_error("while writing a text")
            if token in self.tokens:
                is_over.append(True)
                continue
            draft.written.append(token)
            is_over.append(len(draft.written) >= draft.room)
            if draft.stop and (not looked_up or self.table_of_last_tokens(draft.stop)[token]):
                watched.append(number)
        stopped = self.find_stopped([drafts[number] for number in watched])
        for number, is_stopped in zip(watched, stopped, strict=True):
            is_over[number] |= is_stopped
        return is_over

    def find_stopped(
        self, drafts: Sequence[Draft], written: Sequence[Ids] | None = None
    ) -> list[bool]:
        """Say which texts end in one of their stop texts, as written so far or as given."""
        if written is None:
            written = [draft.written for draft in drafts]
        tails = [ids[-draft.lookback :] for draft, ids in zip(drafts, written, strict=False)]
        tail_texts: list[str] = []
        if tails:
            tail_texts = self.tokenizer.batch_decode(tails)
        stopped: list[bool] = []
        for draft, text in zip(drafts, tail_texts, strict=True):
            stopped.append(any(stop and stop in text for stop in draft.stop))
        return stopped

    def table_of_last_tokens(self, stops: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return, for every token, whether a text that ends in it may end in one of ``stops``."""
        if stops not in self._stop_tables:
            last_letters = {stop[-1] for stop in stops if stop}
            ends_in_space = any(
                letter.isspace() and letter not in "\r\n" for letter in last_letters
            )
            may_end = [
                ends_in_space
                or _UNREADABLE in text
                or any(letter in text for letter in last_letters)
                for text in self._read_token_texts()
            ]
            self._stop_tables[stops] = np.array(may_end, bool) & bool(last_letters)
        return self._stop_tables[stops]

    def _read_token_texts(self) -> list[str]:
        """Every token as it reads by itself, and as the tokenizer writes it."""
        if self._token_texts is None:
            token_count = min(len(self.tokenizer), self.vocabulary)
            texts = self.tokenizer.batch_decode([[token] for token in range(token_count)])
            pieces = self.tokenizer.convert_ids_to_tokens(list(range(token_count)))
            token_texts = [
                text + _text_of_piece(piece) for text, piece in zip(texts, pieces, strict=True)
            ]
            self._token_texts = token_texts + [_UNREADABLE] * (self.vocabulary - token_count)
        return self._token_texts


def _find_end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: the tokenizer's, and those of the model's generation config."""
    generation_config = getattr(model, "generation_config", None)
    end_tokens: set[int] = set()
    for declared in (tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)):
        listed = declared if isinstance(declared, (list, tuple)) else [declared]
        end_tokens.update(int(token) for token in listed if token is not None)
    return frozenset(end_tokens)


def _text_of_piece(piece: str | bytes | None) -> str:
    """Return a vocabulary entry as text, with spaces for the marks of spaces."""
    if not isinstance(piece, str):
        return _UNREADABLE
    is_byte = piece.startswith("<0x") and piece.endswith(">")
    return _UNREADABLE if is_byte else piece.translate(_SPACE_MARKS)
