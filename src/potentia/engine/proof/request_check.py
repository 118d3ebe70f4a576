"""The check of real requests, from text to number, against lm-evaluation-harness's rule and plain transformers calls.

The check of scoring routes (``scoring_check``) compares log-probabilities of tokens. It does not see what comes before
them (where a context ends, which special tokens are added) and after them (which numbers are added up). So a few
requests to every model are computed again from their texts, with nothing of Potentia's but the choice of the adapter:
the tokens must be the same, and the sums the same but for rounding. Each *trait* that requests may have is compared
once for each model: the first, the last, the longest and the shortest request, an empty context, a text of several
windows, the last portion of many requests, several adapters. Requests on which Potentia differs from the harness on
purpose (a context that is cut, a BOS token that the tokenizer leaves out) are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.proof.constants import REPORT_HINT
from potentia.engine.proof.scoring_tolerance import tolerance_for
from potentia.engine.proof.tolerance import ROUNDING_FACTOR
from potentia.errors import ModelError
from potentia.timing import spending
from potentia.values.engine_records import RequestRecord

if TYPE_CHECKING:
    from potentia.engine.layers.network import Network
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Encoder, Ids
    from potentia.values.requests import Continuation, Document, Generation

REQUESTS = 5  # that are computed again for the trait that all requests have
MOST_WINDOWS = 4  # of a text that is computed again: more would take too long


@dataclass(frozen=True)
class EncodedWindow:
    """Tokens that the model reads at once, and how many of the last ones are scored there."""

    ids: Ids
    scored: int


@dataclass(frozen=True)
class EncodedRequest:
    """The tokens of a request by the harness's rule, and the windows in which the model reads them."""

    ids: Ids
    scored: int  # how many of the last tokens are scored
    windows: tuple[EncodedWindow, ...]


class RequestTrait(StrEnum):
    """What some requests have in common that may go wrong; the values are recorded."""

    ALL = "all"
    EMPTY_CONTEXT = "empty context"
    LONG_CONTEXT = "long context"  # longer than the model reads
    WINDOWS = "windows"  # documents of several windows
    PORTIONS = "portions"  # more requests than are tokenised at a time
    ADAPTERS = "adapters"  # requests of several adapters


@dataclass(frozen=True)
class RequestTraits:
    """What decides which requests are compared."""

    lengths: Sequence[int]  # letters of each request
    tokens: Sequence[int]  # scored tokens of each
    has_context: Sequence[bool]
    # slots of the requests' adapters, −1 for the bare model; None where all are of the bare model
    owners: Sequence[int] | None
    portion: int  # requests that are tokenised at a time
    max_length: int  # tokens that the model reads

    def choose_requests(self) -> dict[RequestTrait, list[int]]:
        """Return the numbers of a few requests for each trait that some requests have."""
        if not self.lengths:
            return {}
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        chosen = {RequestTrait.ALL: self._choose_spread(order)}
        empty = [index for index in order if not self.has_context[index]]
        if empty:
            chosen[RequestTrait.EMPTY_CONTEXT] = empty[-1:]
        long_contexts = [index for index in order if self._may_be_cut(index)]
        if long_contexts:
            chosen[RequestTrait.LONG_CONTEXT] = long_contexts[-1:]
        windowed = [index for index in order if self._has_windows(index)]
        if windowed:
            chosen[RequestTrait.WINDOWS] = windowed[-1:]
        if len(self.lengths) > self.portion:
            chosen[RequestTrait.PORTIONS] = self._choose_from_last_portion()
        if self.owners is not None and len(set(self.owners)) > 1:
            last_of_owner = {owner: index for index, owner in enumerate(self.owners)}
            chosen[RequestTrait.ADAPTERS] = [
                last_of_owner[min(last_of_owner)],
                last_of_owner[max(last_of_owner)],
            ]
        return chosen

    def _choose_spread(self, order: Sequence[int]) -> list[int]:
        """Return five different requests: the first, the last, the longest, the shortest, one of middle length.

        Where requests have owners, the longest one of the last owner takes the place of the last of these. Where some
        of them are the same request, others spread over all requests are added. ``order`` is by length.
        """
        count = len(order)
        fifth = order[count // 2]
        if self.owners is not None:
            last_owner = max(self.owners)
            fifth = [index for index in order if self.owners[index] == last_owner][-1]
        spread = [count * part // REQUESTS for part in range(REQUESTS)]
        candidates = [0, count - 1, order[-1], order[0], fifth, *spread]
        return list(dict.fromkeys(candidates))[:REQUESTS]

    def _has_windows(self, index: int) -> bool:
        """Whether a request is read in several windows, but not in too many to be computed again."""
        tokens = self.tokens[index]
        return self.max_length < tokens <= MOST_WINDOWS * (self.max_length - 1)

    def _may_be_cut(self, index: int) -> bool:
        """Whether a request may be too long for the model, by its letters, while its continuation alone fits."""
        return (
            self.has_context[index] and self.tokens[index] <= self.max_length < self.lengths[index]
        )

    def _choose_from_last_portion(self) -> list[int]:
        """Return a late request, if possible one whose adapter differs from that of its place in the first portion.

        A number that was taken from the same place of another portion would then be noticed.
        """
        last = len(self.lengths) - 1
        if self.owners is not None:
            for index in range(last, self.portion - 1, -1):
                if self.owners[index] != self.owners[index % self.portion]:
                    return [index]
        return [last]


class RequestCheck:
    """Compares requests to one model with the harness's rule, once for each kind of request and each trait."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network = network
        self.loaded = loaded
        self.rule = HarnessRule(loaded)

    def check_continuations(
        self,
        requests: Sequence[Continuation],
        logprobs: Sequence[float],
        tokens: Sequence[int],
        *,
        owners: Sequence[int] | None,
        portion: int,
    ) -> None:
        """Raise an error where a continuation has other tokens or another number than by the harness's rule.

        ``logprobs`` and ``tokens`` are the numbers of the requests, and how many tokens were scored for each;
        ``portion`` requests are tokenised at a time.
        """
        traits = RequestTraits(
            lengths=[len(request.context) + len(request.continuation) for request in requests],
            tokens=tokens,
            has_context=[bool(request.context) for request in requests],
            owners=owners,
            portion=portion,
            max_length=self.loaded.max_length,
        )
        for check_name, chosen in self._list_new_traits("continuations", traits):
            differences: list[float] = []
            for index in chosen:
                request = requests[index]
                encoded = self.rule.encode_continuation(request.context, request.continuation)
                if encoded is None:
                    continue
                pair = (request.context, request.continuation)
                ((context_ids, continuation_ids),) = self.loaded.encoder.continuations([pair])
                boundary = len(encoded.ids) - encoded.scored
                self._check_tokens(
                    [context_ids, continuation_ids],
                    [encoded.ids[:boundary], encoded.ids[boundary:]],
                )
                self._check_count(encoded, tokens[index])
                owner = _owner_of(index, owners)
                differences += self._check_logprob(encoded, logprobs[index], owner)
            self._record(check_name, differences)

    def check_documents(
        self,
        requests: Sequence[Document],
        logprobs: Sequence[float],
        tokens: Sequence[int],
        *,
        owners: Sequence[int] | None,
    ) -> None:
        """Raise an error where a whole text has another number, or count of tokens, than by the harness's rule."""
        traits = RequestTraits(
            lengths=[len(request.text) for request in requests],
            tokens=tokens,
            has_context=[True] * len(requests),
            owners=owners,
            portion=max(1, len(requests)),
            max_length=self.loaded.max_length,
        )
        for check_name, chosen in self._list_new_traits("documents", traits):
            differences: list[float] = []
            for index in chosen:
                encoded = self.rule.encode_document(requests[index].text)
                if encoded is None:
                    continue
                self._check_count(encoded, tokens[index])
                owner = _owner_of(index, owners)
                differences += self._check_logprob(encoded, logprobs[index], owner)
            self._record(check_name, differences)

    def _list_new_traits(
        self, request_kind: str, traits: RequestTraits
    ) -> list[tuple[str, list[int]]]:
        """Return for every trait that was not compared yet its name in the record, and the requests to compare."""
        check_name = _name_check(request_kind, traits.owners)
        new_traits: list[tuple[str, list[int]]] = []
        for trait, chosen in traits.choose_requests().items():
            full_name = check_name if trait is RequestTrait.ALL else f"{check_name}, {trait}"
            if full_name not in self.loaded.checks.requests:
                new_traits.append((full_name, chosen))
        return new_traits

    def check_prompts(self, requests: Sequence[Generation]) -> None:
        """Raise an error where a prompt has other tokens than by the harness's rule.

        What is written after prompts is a matter of ``scoring_check``.
        """
        if "prompts" in self.loaded.checks.requests:
            return
        compared = 0
        lengths = [len(request.context) for request in requests]
        for index in choose_prompts(lengths):
            prompt_ids = self.rule.encode_prompt(requests[index].context)
            if prompt_ids is None:
                continue
            self._check_tokens([self.loaded.encoder.prompt(requests[index].context)], [prompt_ids])
            compared += 1
        self._record("prompts", [0.0] * compared)

    def _check_tokens(self, ours: Sequence[Ids], harness: Sequence[Ids]) -> None:
        if list(ours) != list(harness):
            raise ModelError(
                f"a request became the tokens {list(ours)}, where lm-evaluation-harness's rule gives {list(harness)}",
                hint=REPORT_HINT,
            )

    def _check_count(self, encoded: EncodedRequest, tokens: int) -> None:
        if tokens != encoded.scored:
            raise ModelError(
                f"{tokens} tokens of a request were scored, where lm-evaluation-harness's rule gives {encoded.scored}",
                hint=REPORT_HINT,
            )

    def _check_logprob(self, encoded: EncodedRequest, logprob: float, owner: int) -> list[float]:
        """Return how far a number is from that by the harness's rule; raise an error where it is more than rounding.

        The list is empty where memory does not hold the request alone.
        """
        try:
            with spending("check"), torch.no_grad():
                expected = self._logprob_alone(encoded, owner, copies=1)
                difference = abs(logprob - expected)
                if difference <= self._tolerance(encoded.scored, expected):
                    return [difference]
                # large logits and long texts round by more than a constant allows: measure by how much
                rounding = abs(self._logprob_alone(encoded, owner, copies=3) - expected)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return []
        if difference <= ROUNDING_FACTOR * rounding:
            return [difference]
        raise ModelError(
            f"a request got the log-likelihood {logprob:.4f}, where lm-evaluation-harness's rule gives {expected:.4f}",
            hint=REPORT_HINT,
        )

    def _tolerance(self, scored: int, expected: float) -> float:
        tolerance = tolerance_for(self.network.dtype)
        return tolerance.absolute + tolerance.relative * abs(expected) + tolerance.mean * scored

    def _logprob_alone(self, encoded: EncodedRequest, owner: int, *, copies: int) -> float:
        """Return the log-likelihood of a request by the model's own forward, in a batch of so many copies of it."""
        return sum(self._window_logprob(window, owner, copies) for window in encoded.windows)

    def _window_logprob(self, window: EncodedWindow, owner: int, copies: int) -> float:
        model = self.network.model
        token_ids = torch.tensor([window.ids] * copies, device=self.network.device)
        self.network.route([owner] * copies)
        logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits[0, -window.scored :]
        precise_dtype = torch.promote_types(logits.dtype, torch.float32)
        logprobs = torch.log_softmax(logits.to(precise_dtype), dim=-1)
        targets = token_ids[0, -window.scored :].to(logprobs.device).unsqueeze(1)
        return float(logprobs.gather(1, targets).double().sum())

    def _record(self, check_name: str, differences: Sequence[float]) -> None:
        """Remember that requests were compared under a name, and record how far the farthest was off."""
        if not differences:
            return
        self.loaded.checks.requests.add(check_name)
        request_record = RequestRecord(
            compared=len(differences), off_by=float(f"{max(differences):.1e}")
        )
        self.loaded.record = self.loaded.record.with_requests(check_name, request_record)


class HarnessRule:
    """Turns text into tokens as lm-evaluation-harness's ``HFLM`` does, by calls of the tokenizer alone.

    Methods return None where Potentia differs from the harness on purpose.
    """

    def __init__(self, loaded: LoadedModel | Encoder) -> None:
        self.tokenizer: Any = loaded.tokenizer
        self.max_length = loaded.max_length
        self.strips_bos = loaded.bos.required
        self.adds_bos_itself = loaded.bos.required and not loaded.bos.tokenizer_adds
        self.prefix_id: int | None = self.tokenizer.bos_token_id
        if self.prefix_id is None:
            self.prefix_id = self.tokenizer.eos_token_id

    def encode_continuation(self, context: str, continuation: str) -> EncodedRequest | None:
        """Return the tokens of a context and its continuation."""
        if self.adds_bos_itself or not _is_encodable(context + continuation):
            return None
        if context == "":
            if self.prefix_id is None:
                return None
            continuation_ids = self._encode(continuation, add_special_tokens=False)
            if continuation_ids[:1] == [self.prefix_id]:
                return self._divide_into_windows(continuation_ids, len(continuation_ids) - 1)
            return self._divide_into_windows(
                [self.prefix_id, *continuation_ids], len(continuation_ids)
            )
        spaces = len(context) - len(context.rstrip())
        if spaces == len(context):
            return None
        if spaces > 0:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        all_ids = self._encode(context + continuation)
        context_ids = self._encode(context)
        continuation_ids = all_ids[len(context_ids) :]
        return self._divide_into_windows([*context_ids, *continuation_ids], len(continuation_ids))

    def encode_document(self, text: str) -> EncodedRequest | None:
        """Return the tokens of a whole text after one prefix token."""
        if self.prefix_id is None or self.adds_bos_itself or not _is_encodable(text):
            return None
        token_ids = self._encode(text)
        if self.strips_bos and token_ids[:1] == [self.prefix_id]:
            return self._divide_into_windows(token_ids, len(token_ids) - 1)
        return self._divide_into_windows([self.prefix_id, *token_ids], len(token_ids))

    def encode_prompt(self, context: str) -> Ids | None:
        """Return the tokens of a text that is to be continued."""
        if self.adds_bos_itself or not _is_encodable(context):
            return None
        return self._encode(context)

    def _encode(self, text: str, **options: bool) -> Ids:
        if not options and self.prefix_id is not None:
            prefix_text = self.tokenizer.decode(self.prefix_id)
            if prefix_text and text.startswith(prefix_text):
                options = {"add_special_tokens": False}
        return list(self.tokenizer.encode(text, **options))

    def _divide_into_windows(self, token_ids: Ids, scored: int) -> EncodedRequest | None:
        """Return a request with the windows that it is read in; None where a cut would remove a BOS that is needed."""
        if scored < 1 or len(token_ids) <= scored:
            return None
        if scored > self.max_length:
            windows = self._make_windows(token_ids, len(token_ids) - scored)
            return EncodedRequest(token_ids, scored, tuple(windows))
        if len(token_ids) > self.max_length + 1 and self.strips_bos:
            return None
        window = EncodedWindow(token_ids[-(self.max_length + 1) :], scored)
        return EncodedRequest(token_ids, scored, (window,))

    def _make_windows(self, token_ids: Ids, first: int) -> list[EncodedWindow]:
        """Return windows in which every token from ``first`` on is scored once, after as much text as fits.

        The first window begins with the token before ``first``. A later one is as long as the model reads; where the
        model needs BOS, it begins with that.
        """
        windows = [EncodedWindow(token_ids[first - 1 : first + self.max_length], self.max_length)]
        start = [self.prefix_id] if self.strips_bos and self.prefix_id is not None else []
        text_length = self.max_length + 1 - len(start)
        done = first + self.max_length
        while done < len(token_ids):
            end = min(len(token_ids), done + text_length - 1)
            # a window reaches back over text that is scored already, but not before the first scored token
            begin = max(first, end - text_length)
            windows.append(EncodedWindow(start + token_ids[begin:end], end - done))
            done = end
        return windows


def choose_prompts(lengths: Sequence[int]) -> list[int]:
    """Return the numbers of a few texts, given their lengths: first, last, longest, shortest, one of middle length."""
    traits = RequestTraits(
        lengths=lengths,
        tokens=[0] * len(lengths),
        has_context=[True] * len(lengths),
        owners=None,
        portion=max(1, len(lengths)),
        max_length=1,
    )
    return traits.choose_requests().get(RequestTrait.ALL, [])


def _owner_of(index: int, owners: Sequence[int] | None) -> int:
    if owners is None:
        return -1
    return owners[index]


def _name_check(request_kind: str, owners: Sequence[int] | None) -> str:
    if owners is not None and max(owners, default=-1) >= 0:
        return f"{request_kind} with adapters"
    return request_kind


def _is_encodable(text: str) -> bool:
    """Whether a text holds no lone surrogates, which no tokenizer takes."""
    return text.isascii() or text.encode("utf-8", "replace").decode("utf-8") == text
