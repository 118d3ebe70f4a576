"""Real requests from text to number, by lm-evaluation-harness's rule and plain transformers calls.

The trials of scoring paths (``scoring_check``) compare log-probabilities of tokens. What comes before them (where a
context ends, which special tokens are added) and after them (whose numbers are added up) they do not see. So a few
requests of every model are computed again from their texts, with nothing of ours but the adapters' routing: the tokens
must be the same, and the sums the same but for rounding. Each trait of requests is compared once for each model: the
first, the last, the longest and the shortest request, an empty context, a text of several windows, the last portion
of many requests, several adapters. Requests on which Potentia differs from the harness on purpose (a context that is
cut, a BOS token that the tokenizer leaves out) are not chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.proof.scoring_tolerance import OWN_ROUNDINGS, tolerance_for
from potentia.errors import ModelError
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.layers.network import Network
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Encoder, Ids
    from potentia.values.requests import Continuation, Document, Generation

REQUESTS = 5  # that are computed again at first, of each kind and with or without adapters
MOST_WINDOWS = 4  # of a text that is computed again


@dataclass(frozen=True)
class EncodedWindow:
    """Tokens that the model reads at once, and how many of the last ones are scored."""

    ids: Ids
    scored: int


@dataclass(frozen=True)
class EncodedRequest:
    """The tokens of a request by the harness's rule: where its scored part begins, and the windows it is read in."""

    ids: Ids
    scored: int
    windows: tuple[EncodedWindow, ...]


@dataclass(frozen=True)
class RequestTraits:
    """What decides which requests are compared: letters and scored tokens of each, empty contexts, and adapters."""

    lengths: Sequence[int]
    tokens: Sequence[int]
    has_context: Sequence[bool]
    owners: Sequence[int] | None
    portion: int  # requests that are tokenised at a time
    max_length: int

    def choose_requests(self) -> dict[str, list[int]]:
        """Return a few requests for each trait that some of them have, by the trait's name."""
        if not self.lengths:
            return {}
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        chosen = {"all": self._choose_spread(order)}
        empty = [index for index in order if not self.has_context[index]]
        if empty:
            chosen["empty context"] = empty[-1:]
        long_contexts = [index for index in order if self._may_be_cut(index)]
        if long_contexts:
            chosen["long context"] = long_contexts[-1:]
        windowed = [index for index in order if self._has_windows(index)]
        if windowed:
            chosen["windows"] = windowed[-1:]
        if len(self.lengths) > self.portion:
            chosen["portions"] = self._choose_from_last_portion()
        if self.owners is not None and len(set(self.owners)) > 1:
            last_of_owner = {owner: index for index, owner in enumerate(self.owners)}
            chosen["adapters"] = [
                last_of_owner[min(last_of_owner)],
                last_of_owner[max(last_of_owner)],
            ]
        return chosen

    def _choose_spread(self, order: Sequence[int]) -> list[int]:
        """Choose the first, the last, the longest, the shortest and the middle request, or others where these are one.

        Where requests have owners, the last owner's longest request takes the place of the middle one.
        """
        count = len(order)
        middle = order[count // 2]
        if self.owners is not None:
            last_owner = max(self.owners)
            middle = [index for index in order if self.owners[index] == last_owner][-1]
        spread = [count * part // REQUESTS for part in range(REQUESTS)]
        candidates = [0, count - 1, order[-1], order[0], middle, *spread]
        return list(dict.fromkeys(candidates))[:REQUESTS]

    def _has_windows(self, index: int) -> bool:
        tokens = self.tokens[index]
        return self.max_length < tokens <= MOST_WINDOWS * (self.max_length - 1)

    def _may_be_cut(self, index: int) -> bool:
        """Return whether a request has more letters than the model reads tokens, and a continuation that fits."""
        return (
            self.has_context[index] and self.tokens[index] <= self.max_length < self.lengths[index]
        )

    def _choose_from_last_portion(self) -> list[int]:
        """Choose a late request whose adapter is not that of the same place in the first portion."""
        last = len(self.lengths) - 1
        if self.owners is not None:
            for index in range(last, self.portion - 1, -1):
                if self.owners[index] != self.owners[index % self.portion]:
                    return [index]
        return [last]


class RequestCheck:
    """Compare requests of one model with the harness's rule, once for each kind of request and each trait."""

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
        """Refuse numbers of continuations that are not the harness's; ``tokens`` are those that were scored."""
        traits = RequestTraits(
            lengths=[len(request.context) + len(request.continuation) for request in requests],
            tokens=tokens,
            has_context=[bool(request.context) for request in requests],
            owners=owners,
            portion=portion,
            max_length=self.loaded.max_length,
        )
        for name, chosen in self._new_traits("continuations", traits):
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
                differences += self._check_number(encoded, logprobs[index], owner)
            self._record(name, differences)

    def check_documents(
        self,
        requests: Sequence[Document],
        logprobs: Sequence[float],
        tokens: Sequence[int],
        *,
        owners: Sequence[int] | None,
    ) -> None:
        """Refuse numbers of texts that are not the harness's; ``tokens`` are those that were scored."""
        traits = RequestTraits(
            lengths=[len(request.text) for request in requests],
            tokens=tokens,
            has_context=[True] * len(requests),
            owners=owners,
            portion=max(1, len(requests)),
            max_length=self.loaded.max_length,
        )
        for name, chosen in self._new_traits("documents", traits):
            differences: list[float] = []
            for index in chosen:
                encoded = self.rule.encode_document(requests[index].text)
                if encoded is None:
                    continue
                self._check_count(encoded, tokens[index])
                owner = _owner_of(index, owners)
                differences += self._check_number(encoded, logprobs[index], owner)
            self._record(name, differences)

    def _new_traits(self, kind: str, traits: RequestTraits) -> list[tuple[str, list[int]]]:
        """Return the requests of every trait that was not compared yet, with the name to record it by."""
        name = _check_name(kind, traits.owners)
        new_traits: list[tuple[str, list[int]]] = []
        for trait, chosen in traits.choose_requests().items():
            full_name = name if trait == "all" else f"{name}, {trait}"
            if full_name not in self.loaded.checks.requests:
                new_traits.append((full_name, chosen))
        return new_traits

    def check_prompts(self, requests: Sequence[Generation]) -> None:
        """Refuse tokens of prompts that are not the harness's; what is written after them is tried elsewhere."""
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
                hint=REPORT,
            )

    def _check_count(self, encoded: EncodedRequest, tokens: int) -> None:
        if tokens != encoded.scored:
            raise ModelError(
                f"{tokens} tokens of a request were scored, where lm-evaluation-harness's rule gives {encoded.scored}",
                hint=REPORT,
            )

    def _check_number(self, encoded: EncodedRequest, logprob: float, owner: int) -> list[float]:
        """Return how far a number is from the harness's, or nothing where there is no memory to compute it alone.

        Refuse it where that is more than rounding.
        """
        try:
            with spending("check"), torch.no_grad():
                expected = self._logprob_alone(encoded, owner, copies=1)
                difference = abs(logprob - expected)
                if difference <= self._tolerance(encoded.scored, expected):
                    return [difference]
                # large logits and long texts round by more than a constant allows
                rounding = abs(self._logprob_alone(encoded, owner, copies=3) - expected)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return []
        if difference <= OWN_ROUNDINGS * rounding:
            return [difference]
        raise ModelError(
            f"a request got the log-likelihood {logprob:.4f}, where lm-evaluation-harness's rule gives {expected:.4f}",
            hint=REPORT,
        )

    def _tolerance(self, scored: int, expected: float) -> float:
        tolerance = tolerance_for(self.network.dtype)
        return tolerance.absolute + tolerance.relative * abs(expected) + tolerance.mean * scored

    def _logprob_alone(self, encoded: EncodedRequest, owner: int, *, copies: int) -> float:
        """Return the log-likelihood of a request by itself, through the model's own forward."""
        return sum(self._window_logprob(window, owner, copies) for window in encoded.windows)

    def _window_logprob(self, window: EncodedWindow, owner: int, copies: int) -> float:
        model = self.network.model
        ids = torch.tensor([window.ids] * copies, device=self.network.device)
        self.network.route([owner] * copies)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, -window.scored :]
        precise_dtype = torch.promote_types(logits.dtype, torch.float32)
        logprobs = torch.log_softmax(logits.to(precise_dtype), dim=-1)
        targets = ids[0, -window.scored :].to(logprobs.device).unsqueeze(1)
        return float(logprobs.gather(1, targets).double().sum())

    def _record(self, name: str, differences: Sequence[float]) -> None:
        """Remember that requests of a kind were compared, and how far off the farthest was."""
        if not differences:
            return
        self.loaded.checks.requests.add(name)
        farthest = float(f"{max(differences):.1e}")
        facts = {"compared": len(differences), "off_by": farthest}
        self.loaded.record.setdefault("requests", {})[name] = facts


REPORT = "this is an error in Potentia, not in the model: please report it with the model's name and the task"


class HarnessRule:
    """Text to tokens as lm-evaluation-harness's ``HFLM`` does it, by calls of the tokenizer alone.

    Methods return None where Potentia differs from it on purpose.
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
                return self._fitting(continuation_ids, len(continuation_ids) - 1)
            return self._fitting([self.prefix_id, *continuation_ids], len(continuation_ids))
        spaces = len(context) - len(context.rstrip())
        if spaces == len(context):
            return None
        if spaces > 0:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        all_ids = self._encode(context + continuation)
        context_ids = self._encode(context)
        continuation_ids = all_ids[len(context_ids) :]
        return self._fitting([*context_ids, *continuation_ids], len(continuation_ids))

    def encode_document(self, text: str) -> EncodedRequest | None:
        """Return the tokens of a whole text after one prefix token."""
        if self.prefix_id is None or self.adds_bos_itself or not _is_encodable(text):
            return None
        ids = self._encode(text)
        if self.strips_bos and ids[:1] == [self.prefix_id]:
            return self._fitting(ids, len(ids) - 1)
        return self._fitting([self.prefix_id, *ids], len(ids))

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

    def _fitting(self, ids: Ids, scored: int) -> EncodedRequest | None:
        """Return a request with the windows that it is read in; None where a cut would take the BOS that is needed."""
        if scored < 1 or len(ids) <= scored:
            return None
        if scored > self.max_length:
            windows = self._make_windows(ids, len(ids) - scored)
            return EncodedRequest(ids, scored, tuple(windows))
        if len(ids) > self.max_length + 1 and self.strips_bos:
            return None
        window = EncodedWindow(ids[-(self.max_length + 1) :], scored)
        return EncodedRequest(ids, scored, (window,))

    def _make_windows(self, ids: Ids, first: int) -> list[EncodedWindow]:
        """Return windows in which every token from ``first`` on is predicted once, after the most text that fits.

        The first window begins with the token before. A later one is full; where the model needs BOS, it begins
        with that.
        """
        windows = [EncodedWindow(ids[first - 1 : first + self.max_length], self.max_length)]
        start = [self.prefix_id] if self.strips_bos and self.prefix_id is not None else []
        text_length = self.max_length + 1 - len(start)
        done = first + self.max_length
        while done < len(ids):
            end = min(len(ids), done + text_length - 1)
            # a window reaches back over text that is scored already, but not over its head
            begin = max(first, end - text_length)
            windows.append(EncodedWindow(start + ids[begin:end], end - done))
            done = end
        return windows


def choose_prompts(lengths: Sequence[int]) -> list[int]:
    """Choose a few texts that are to be continued: the first, the last, the longest, the shortest, a middle one."""
    traits = RequestTraits(
        lengths=lengths,
        tokens=[0] * len(lengths),
        has_context=[True] * len(lengths),
        owners=None,
        portion=max(1, len(lengths)),
        max_length=1,
    )
    return traits.choose_requests().get("all", [])


def _owner_of(index: int, owners: Sequence[int] | None) -> int:
    if owners is None:
        return -1
    return owners[index]


def _check_name(kind: str, owners: Sequence[int] | None) -> str:
    if owners is not None and max(owners, default=-1) >= 0:
        return f"{kind} with adapters"
    return kind


def _is_encodable(text: str) -> bool:
    """Whether a text holds no lone surrogates, which no tokenizer takes."""
    return text.isascii() or text.encode("utf-8", "replace").decode("utf-8") == text
