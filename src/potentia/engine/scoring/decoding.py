"""How the next token of a text is chosen, and when a text is over.

The settings of the model's generation config count, as they do in lm-eval; a request's own options replace them. The
sampling settings of that config are ignored: a request that wants samples says so itself, by a temperature and a seed.
The seed gives a text one number from 0 to 1 for every token, and the next token is the one at which the cumulated
probabilities pass the next number. So a text does not depend on what is written beside it.

Our own loops (see ``generate`` and ``continuous``) choose greedily, by sampling, and with a repetition penalty. For any
other setting the model's own ``generate`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# settings that change a text written without sampling, and their values that change nothing
_NOTHING: tuple[object, ...] = ([], (), {})
_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
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
_BEAM_SETTINGS = ("length_penalty", "early_stopping")  # they change nothing without beams
_UNREADABLE = "\ufffd"  # what a tokenizer writes for bytes that are a part of a character


@dataclass(frozen=True)
class Decoding:
    """The settings that change a greedy text: a repetition penalty, and all of them for the model's ``generate``."""

    penalty: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_options(
        cls, model: PreTrainedModel, options: Sequence[tuple[str, object]] = ()
    ) -> Decoding:
        """Read the settings of the model's generation config and of a request, whose options go first."""
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
        for option_name, neutral_values in _NEUTRAL_VALUES.items():
            value = getattr(model_settings, option_name, None)
            if option_name in requested:
                value = requested[option_name]
            if value is not None and value not in neutral_values:
                settings[option_name] = _lists_from_tuples(value)
        for option_name in _BEAM_SETTINGS:
            if option_name in requested:
                settings[option_name] = requested[option_name]
        return cls(float(settings.get("repetition_penalty", 1.0)), settings)

    @property
    def is_beyond_greedy(self) -> bool:
        """Whether some setting is left to the model's own ``generate``."""
        return bool(self.settings.keys() - {"repetition_penalty", *_BEAM_SETTINGS})

    @property
    def beams(self) -> int:
        """How many versions of each text beam search keeps."""
        return int(self.settings.get("num_beams", 1))

    def choose_tokens(
        self,
        logits: torch.Tensor,
        is_repeated: torch.Tensor | None,
        draws: SampleDraws | None = None,
    ) -> torch.Tensor:
        """Return the next token of each row, −1 if some logit of the row is NaN.

        ``is_repeated`` (rows, vocabulary) marks the tokens of the row so far, which are penalised. ``draws`` choose in
        place of the argmax; in rows that are not sampled they take the argmax themselves.
        """
        scores = logits
        if is_repeated is not None:
            scores = logits.float()
            penalised = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
            scores = torch.where(is_repeated, penalised, scores)
        choice = scores.argmax(dim=-1) if draws is None else draws.choose(scores)
        return torch.where(scores.isnan().any(dim=-1), -1, choice)


@dataclass(frozen=True)
class SampleDraws:
    """What chooses the next token of each row: a temperature, and a number from 0 to 1."""

    temperatures: torch.Tensor  # (rows,); 0: the row is not sampled, its likeliest token is taken
    uniforms: torch.Tensor  # (rows,)

    @classmethod
    def of_next_tokens(cls, drafts: Sequence[Draft], device: torch.device) -> SampleDraws | None:
        """Return the draws for the next token of every text; None if none of them is sampled."""
        if not any(draft.temperature > 0 for draft in drafts):
            return None
        temperatures = [draft.temperature for draft in drafts]
        uniforms = [_next_uniform(draft) for draft in drafts]
        return cls(
            temperatures=torch.tensor(temperatures, device=device),
            uniforms=torch.tensor(uniforms, device=device),
        )

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the next token of each row, given its logits (rows, vocabulary)."""
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


def _lists_from_tuples(value: object) -> object:
    """Return a setting as transformers takes it: requests hold tuples, which can be hashed."""
    if isinstance(value, tuple):
        return [_lists_from_tuples(part) for part in value]
    return value


def mark_prompt_tokens(prompts: Sequence[Ids], logits: torch.Tensor) -> torch.Tensor:
    """Return a mask in the shape of the logits (rows, vocabulary), true for the tokens of each row's prompt."""
    is_in_prompt = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for row, prompt in zip(is_in_prompt, prompts, strict=True):
        row[torch.tensor(prompt, device=logits.device)] = True
    return is_in_prompt


FindStopped = Callable[
    [list[Ids]], list[bool]
]  # which of the texts written so far end in a stop text


def generate_by_model(
    model: Any,
    prompts: Sequence[Ids],
    max_new_tokens: int,
    decoding: Decoding,
    find_stopped: FindStopped | None,
    *,
    pad: int | None,
    drafts: Sequence[Draft] = (),
) -> list[Ids]:
    """Let the model's own ``generate`` continue prompts of one length, and return the new tokens of each.

    ``find_stopped`` says after every token which rows are done. ``drafts`` are the texts of the rows; they are needed
    if some of them are sampled.
    """
    token_ids = torch.tensor(prompts, device=next(model.parameters()).device)
    prompt_length = token_ids.shape[1]
    criteria = StoppingCriteriaList()
    if find_stopped is not None:
        criteria.append(_StopAtStopTexts(prompt_length, find_stopped))
    processors = LogitsProcessorList()
    if any(draft.temperature > 0 for draft in drafts):
        processors.append(_SampleTokens(prompt_length, drafts))
    output = model.generate(
        input_ids=token_ids,
        attention_mask=torch.ones_like(token_ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=True,
        stopping_criteria=criteria,
        logits_processor=processors,
        pad_token_id=0 if pad is None else pad,
        **decoding.settings,
    )
    return [row[prompt_length:].tolist() for row in output]


class _SampleTokens(LogitsProcessor):
    """Sample within the greedy ``generate``: rule out every token of a row but the one that its number chooses."""

    def __init__(self, prompt_length: int, drafts: Sequence[Draft]) -> None:
        self.prompt_length = prompt_length
        self.temperatures = torch.tensor([draft.temperature for draft in drafts])
        self.uniforms = [draft.uniforms for draft in drafts]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self.prompt_length
        numbers: list[float] = []
        for uniforms in self.uniforms:
            numbers.append(0.0 if uniforms is None else float(uniforms[position]))
        draws = SampleDraws(
            temperatures=self.temperatures.to(scores.device),
            uniforms=torch.tensor(numbers, device=scores.device),
        )
        chosen = draws.choose(scores)
        only_chosen = torch.full_like(scores, -torch.inf)
        return only_chosen.scatter(1, chosen[:, None], 0.0)


class _StopAtStopTexts(StoppingCriteria):
    """End the rows whose text ends in a stop text, asked after every token."""

    def __init__(self, prompt_length: int, find_stopped: FindStopped) -> None:
        self.prompt_length = prompt_length
        self.find_stopped = find_stopped

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        written = input_ids[:, self.prompt_length :].tolist()
        return torch.tensor(self.find_stopped(written), device=input_ids.device)


_SPACE_MARKS = str.maketrans("▁Ġ", "  ")  # how tokenizers write spaces


class Endings:
    """When a text is over: at a token that ends texts, at one of its stop texts, or at its largest length."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vocabulary: int
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.end_tokens = _find_end_tokens(model, tokenizer)
        self._token_texts: list[str] | None = None
        self._stop_tables: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}

    def append(
        self, drafts: Sequence[Draft], chosen: Sequence[int], *, looked_up: bool
    ) -> list[bool]:
        """Append the token that was chosen for each text, and return which texts are over.

        Decoding a text to look for stop texts is slow. With ``looked_up``, a table says which tokens can end a stop
        text, and only texts that end in such a token are decoded; the table pays where many texts are written.
        """
        is_over: list[bool] = []
        decoded: list[int] = []  # indices of the texts that may end in a stop text now
        for index, (draft, token) in enumerate(zip(drafts, chosen, strict=True)):
            if token < 0:
                raise not_a_number_error("while writing a text")
            if token in self.end_tokens:
                is_over.append(True)
                continue
            draft.written.append(token)
            is_over.append(len(draft.written) >= draft.max_new_tokens)
            if draft.stop and (not looked_up or self.table_of_last_tokens(draft.stop)[token]):
                decoded.append(index)
        stopped = self.find_stopped([drafts[index] for index in decoded])
        for index, is_stopped in zip(decoded, stopped, strict=True):
            is_over[index] |= is_stopped
        return is_over

    def find_stopped(
        self, drafts: Sequence[Draft], written: Sequence[Ids] | None = None
    ) -> list[bool]:
        """Return which texts have one of their stop texts at their end; ``written`` replaces what they have so far."""
        if written is None:
            written = [draft.written for draft in drafts]
        tails = [
            token_ids[-draft.lookback :] for draft, token_ids in zip(drafts, written, strict=False)
        ]
        tail_texts: list[str] = []
        if tails:
            tail_texts = self.tokenizer.batch_decode(tails)
        stopped: list[bool] = []
        for draft, text in zip(drafts, tail_texts, strict=True):
            stopped.append(any(stop and stop in text for stop in draft.stop))
        return stopped

    def table_of_last_tokens(self, stops: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return, for every token of the vocabulary, whether a text that ends in it may end in one of ``stops``."""
        if stops not in self._stop_tables:
            last_letters = {stop[-1] for stop in stops if stop}
            ends_in_space = any(
                letter.isspace() and letter not in "\r\n" for letter in last_letters
            )
            may_end = []
            for text in self._read_token_texts():
                has_last_letter = any(letter in text for letter in last_letters)
                may_end.append(ends_in_space or _UNREADABLE in text or has_last_letter)
            self._stop_tables[stops] = np.array(may_end, bool) & bool(last_letters)
        return self._stop_tables[stops]

    def _read_token_texts(self) -> list[str]:
        """Return every token's text: as it decodes by itself, and as the vocabulary writes it, one after the other."""
        if self._token_texts is None:
            token_count = min(len(self.tokenizer), self.vocabulary)
            texts = self.tokenizer.batch_decode([[token] for token in range(token_count)])
            pieces = self.tokenizer.convert_ids_to_tokens(list(range(token_count)))
            token_texts = [
                text + _text_of_piece(piece) for text, piece in zip(texts, pieces, strict=True)
            ]
            self._token_texts = token_texts + [_UNREADABLE] * (self.vocabulary - token_count)
        return self._token_texts


def _find_end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end-of-text tokens of the tokenizer and of the model's generation config."""
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
