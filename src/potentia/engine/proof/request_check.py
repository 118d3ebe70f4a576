"""Five real requests from text to number, by lm-evaluation-harness's rule and plain transformers calls.

The trials of scoring paths (``scoring_check``) compare log-probabilities of tokens. What comes before them (where a
context ends, which special tokens are added) and after them (whose numbers are added up) they do not see. So a few
requests of every model are computed again from their texts, with nothing of ours but the adapters' routing: the tokens
must be the same, and the sums the same but for rounding. Requests on which Potentia differs from the harness on purpose
(a text that is cut, a BOS token that the tokenizer leaves out) are not chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.proof.scoring_tolerance import OWN_ROUNDINGS, tolerance_for
from potentia.errors import ModelError
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.layers.network import Network
    from potentia.engine.models.loading import LoadedModel
    from potentia.engine.models.tokenization import Ids
    from potentia.values.requests import Continuation, Document, Generation

REQUESTS = 5  # that are computed again, of each kind and with or without adapters
LETTERS_PER_TOKEN = 4  # about: longer texts are read in windows


@dataclass(frozen=True)
class EncodedRequest:
    """The tokens of a request by the harness's rule: all of them, and how many of the last ones are scored."""

    ids: Ids
    scored: int


class RequestCheck:
    """Compare requests of one model with the harness's rule, once for each kind of request."""

    def __init__(self, network: Network, loaded: LoadedModel) -> None:
        self.network = network
        self.loaded = loaded
        self.rule = HarnessRule(loaded)

    def check_continuations(
        self,
        requests: Sequence[Continuation],
        logprobs: Sequence[float],
        owners: Sequence[int] | None,
    ) -> None:
        """Refuse numbers of continuations that are not the harness's."""
        name = _check_name("continuations", owners)
        if name in self.loaded.checks.requests:
            return
        lengths = [len(request.context) + len(request.continuation) for request in requests]
        differences: list[float] = []
        for index in choose_requests(lengths, owners):
            request = requests[index]
            encoded = self.rule.encode_continuation(request.context, request.continuation)
            if encoded is None:
                continue
            pair = (request.context, request.continuation)
            ((context_ids, continuation_ids),) = self.loaded.encoder.continuations([pair])
            boundary = len(encoded.ids) - encoded.scored
            self._check_tokens(
                [context_ids, continuation_ids], [encoded.ids[:boundary], encoded.ids[boundary:]]
            )
            owner = _owner_of(index, owners)
            differences.append(self._check_number(encoded, logprobs[index], owner))
        self._record(name, differences)

    def check_documents(
        self, requests: Sequence[Document], logprobs: Sequence[float], owners: Sequence[int] | None
    ) -> None:
        """Refuse numbers of whole texts that are not the harness's, of texts that fit the model."""
        name = _check_name("documents", owners)
        if name in self.loaded.checks.requests:
            return
        fitting = [
            index
            for index, request in enumerate(requests)
            if len(request.text) <= LETTERS_PER_TOKEN * self.loaded.max_length
        ]
        lengths = [len(requests[index].text) for index in fitting]
        fitting_owners = None
        if owners is not None:
            fitting_owners = [owners[index] for index in fitting]
        differences: list[float] = []
        for chosen in choose_requests(lengths, fitting_owners):
            index = fitting[chosen]
            encoded = self.rule.encode_document(requests[index].text)
            if encoded is None:
                continue
            owner = _owner_of(index, owners)
            differences.append(self._check_number(encoded, logprobs[index], owner))
        self._record(name, differences)

    def check_prompts(self, requests: Sequence[Generation]) -> None:
        """Refuse tokens of prompts that are not the harness's; what is written after them is tried elsewhere."""
        if "prompts" in self.loaded.checks.requests:
            return
        compared = 0
        for index in choose_requests([len(request.context) for request in requests], None):
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

    def _check_number(self, encoded: EncodedRequest, logprob: float, owner: int) -> float:
        """Return how far a number is from the harness's; refuse it where that is more than rounding."""
        with spending("check"), torch.no_grad():
            expected = self._logprob_alone(encoded, owner, copies=1)
            difference = abs(logprob - expected)
            if difference <= self._tolerance(encoded.scored, expected):
                return difference
            # large logits and long texts round by more than a constant allows
            rounding = abs(self._logprob_alone(encoded, owner, copies=3) - expected)
        if difference <= OWN_ROUNDINGS * rounding:
            return difference
        raise ModelError(
            f"a request got the log-likelihood {logprob:.4f}, where lm-evaluation-harness's rule gives {expected:.4f}",
            hint=REPORT,
        )

    def _tolerance(self, scored: int, expected: float) -> float:
        tolerance = tolerance_for(self.network.dtype)
        return tolerance.absolute + tolerance.relative * abs(expected) + tolerance.mean * scored

    def _logprob_alone(self, encoded: EncodedRequest, owner: int, *, copies: int) -> float:
        """Return the log-likelihood of a request by itself, through the model's own forward."""
        model = self.network.model
        ids = torch.tensor([encoded.ids] * copies, device=self.network.device)
        self.network.route([owner] * copies)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, -encoded.scored :]
        precise_dtype = torch.promote_types(logits.dtype, torch.float32)
        logprobs = torch.log_softmax(logits.to(precise_dtype), dim=-1)
        targets = ids[0, -encoded.scored :].to(logprobs.device).unsqueeze(1)
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

    def __init__(self, loaded: LoadedModel) -> None:
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
        """Return a request whose tokens the model reads at once, with something to score."""
        if scored < 1 or len(ids) > self.max_length + 1 or len(ids) <= scored:
            return None
        return EncodedRequest(ids, scored)


def choose_requests(lengths: Sequence[int], owners: Sequence[int] | None) -> list[int]:
    """Choose the first, the last, the longest, the shortest and the middle request, and others where these are one.

    Where requests have owners, the last owner's longest request takes the place of the middle one.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    middle = order[len(order) // 2]
    if owners is not None:
        last_owner = max(owners)
        middle = [index for index in order if owners[index] == last_owner][-1]
    spread = [len(lengths) * part // REQUESTS for part in range(REQUESTS)]
    chosen = [0, len(lengths) - 1, order[-1], order[0], middle, *spread]
    return list(dict.fromkeys(chosen))[:REQUESTS]


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
