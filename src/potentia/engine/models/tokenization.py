"""The one place that turns text into token ids, for scoring and for training alike.

The boundary between a prompt and its answer, the start of a text and the cut of a text that is too long are decided
here and nowhere else, so that a lane trains on exactly the tokens that the scorer later reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from potentia.engine.models.admission import unknown_words_error
from potentia.errors import INTERRUPTS, ModelError, first_line
from potentia.limited import LimitError, render_chat
from potentia.timing import spending

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Ids = list[int]
Pair = tuple[Ids, Ids]

CACHED_TOKENS = 8_000_000  # about 300 MB of Python integers
UNKNOWN_SHARE = 0.95  # of unknown tokens, from which texts cannot be told from each other
FEWEST_TOKENS = 16  # that say something about a tokenizer


@dataclass(frozen=True, slots=True)
class BosPolicy:
    """How a text begins for this model, read from the tokenizer and the model's config and never from a name.

    ``prefix_id`` stands before an empty context (the BOS token, or else the end-of-text token). ``required`` says that
    every sequence begins with it: the tokenizer puts it there itself, or its files declare that it must be there.
    """

    prefix_id: int | None
    prefix_text: str | None
    required: bool
    tokenizer_adds: bool
    origin: str

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        config: PreTrainedConfig | None = None,
    ) -> BosPolicy:
        """Read whether the tokenizer adds BOS or its settings declare it (``add_bos_token``), and the prefix token.

        The prefix token is the tokenizer's, else the config's.
        """
        prefix_id, origin = _find_prefix(tokenizer, config)
        prefix_text = None
        if prefix_id is not None:
            prefix_text = str(tokenizer.decode([prefix_id])) or None
        has_bos = tokenizer.bos_token_id is not None
        token_ids = list(tokenizer("a")["input_ids"])
        tokenizer_adds = has_bos and token_ids[:1] == [tokenizer.bos_token_id]
        tokenizer_settings = getattr(tokenizer, "init_kwargs", None) or {}
        is_declared = bool(tokenizer_settings.get("add_bos_token"))
        return cls(
            prefix_id=prefix_id,
            prefix_text=prefix_text,
            required=tokenizer_adds or (is_declared and has_bos),
            tokenizer_adds=tokenizer_adds,
            origin=origin,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the policy as plain values, for manifests and keys."""
        return asdict(self)


def _find_prefix(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None
) -> tuple[int | None, str]:
    """Return the token that stands before an empty context, and where it was found."""
    config = getattr(config, "text_config", None) or config
    for origin, owner, name in (
        ("tokenizer's BOS token", tokenizer, "bos_token_id"),
        ("tokenizer's end-of-text token", tokenizer, "eos_token_id"),
        ("model config's BOS token", config, "bos_token_id"),
        ("model config's end-of-text token", config, "eos_token_id"),
    ):
        token_id = getattr(owner, name, None)
        if isinstance(token_id, (list, tuple)):
            token_id = next(iter(token_id), None)
        if token_id is not None:
            return int(token_id), origin
    return None, "none: the first token of a text is read, not scored"


class Encoder:
    """Text to token ids, with lm-evaluation-harness's rule for where a prompt ends and its answer begins.

    Every text is tokenised once and remembered: choices of a question share their context's ids, and the epochs of a
    run share everything.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, bos_policy: BosPolicy, max_length: int
    ) -> None:
        self.tokenizer = tokenizer
        self.bos = bos_policy
        self.max_length = max_length
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._texts: dict[tuple[str, bool], Ids] = {}
        self._cached_tokens = 0
        self._rust_tokenizer = _find_rust_tokenizer(tokenizer)

    def prompt(self, text: str) -> Ids:
        """Ids of a text that a model continues, with BOS where the policy asks for it."""
        return self.prompts([text])[0]

    def prompts(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of many prompts in one call of the tokenizer."""
        return self._encode_cached(texts, special=True)

    def documents(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of texts to be predicted as a whole; the BOS of their windows is added by whoever cuts them."""
        if not self.bos.required:
            return self._encode_cached(texts, special=True)
        encoded = self._encode_cached(texts, special=False)
        return [self._without_prefix(token_ids) for token_ids in encoded]

    def continuations(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Split each (context, continuation) as lm-eval does.

        Spaces at the end of the context belong to the continuation; context and continuation are tokenised together and
        cut after as many tokens as the context has alone. An empty context becomes the prefix token. Where a single
        token spans the boundary and nothing would be left to score, the cut moves to the last token both agree on.
        """
        ids_by_pair = {pair: self._pairs[pair] for pair in pairs if pair in self._pairs}
        new_pairs = [pair for pair in dict.fromkeys(pairs) if pair not in ids_by_pair]
        split_pairs = self._split_pairs(new_pairs)
        new_ids = dict(zip(new_pairs, split_pairs, strict=True))
        self._evict_from_cache(sum(len(continuation) for _, continuation in split_pairs))
        self._pairs |= new_ids
        ids_by_pair |= new_ids
        return [ids_by_pair[pair] for pair in pairs]

    def _split_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Tokenise pairs that are not cached, in as few calls of the tokenizer as possible, and cut them."""
        moved_pairs = [_move_spaces(context, continuation) for context, continuation in pairs]
        contexts: list[str] = []
        full_texts: list[str] = []
        texts_without_context: list[str] = []
        for context, continuation in moved_pairs:
            if context:
                contexts.append(context)
                full_texts.append(context + continuation)
            else:
                texts_without_context.append(continuation)
        context_ids = iter(self._encode_cached(contexts, special=True))
        full_ids = iter(self._encode(full_texts, special=True))
        ids_without_context = iter(self._encode(texts_without_context, special=False))
        split_pairs: list[Pair] = []
        for context, _ in moved_pairs:
            if context:
                split_pair = self._cut_after_context(next(context_ids), next(full_ids))
            else:
                split_pair = self._cut_after_prefix(next(ids_without_context))
            split_pairs.append(split_pair)
        return split_pairs

    def fit(self, context: Ids, continuation: Ids) -> tuple[Ids, bool]:
        """Cut a sequence from the left so that all but its last token fit the model; say whether anything was lost.

        A model that needs BOS keeps it, where lm-eval drops it.
        """
        sequence = context + continuation
        if len(sequence) <= self.max_length + 1:
            return sequence, False
        starts_with_bos = self.bos.required and sequence[0] == self.bos.prefix_id
        if starts_with_bos and len(continuation) < self.max_length:
            return [sequence[0], *sequence[-self.max_length :]], True
        return sequence[-(self.max_length + 1) :], True

    def refuse_unknown_texts(self, texts: Iterable[Ids]) -> None:
        """Refuse texts that are unknown tokens nearly throughout: to the model they are all alike."""
        unknown_id = getattr(self.tokenizer, "unk_token_id", None)
        if unknown_id is None:
            return
        tokens = 0
        unknown_tokens = 0
        for token_ids in texts:
            starts_with_prefix = token_ids[:1] == [self.bos.prefix_id]
            tokens += len(token_ids) - starts_with_prefix
            unknown_tokens += token_ids.count(unknown_id)
        if tokens >= FEWEST_TOKENS and unknown_tokens >= UNKNOWN_SHARE * tokens:
            raise unknown_words_error(unknown_tokens, tokens)

    def _cut_after_context(self, context: Ids, full: Ids) -> Pair:
        """Cut the ids of context and continuation after as many tokens as the context has alone."""
        if not context:  # a context of characters that the tokenizer drops, such as invisible ones
            return self._cut_after_prefix(full)
        continuation = full[len(context) :]
        if continuation or full == context:
            return context, continuation
        agreed = min(count_common_prefix(context, full), len(full) - 1)
        if agreed > 0:
            return full[:agreed], full[agreed:]
        return self._cut_after_prefix(full)

    def _cut_after_prefix(self, token_ids: Ids) -> Pair:
        """Let a text without a context follow the prefix token, or its own first token where there is none."""
        prefix_id = self.bos.prefix_id
        if prefix_id is None or token_ids[:1] == [prefix_id]:
            return token_ids[:1], token_ids[1:]
        return [prefix_id], token_ids

    def _without_prefix(self, token_ids: Ids) -> Ids:
        """Return a text's ids without the prefix token at their beginning."""
        if token_ids[:1] == [self.bos.prefix_id]:
            return token_ids[1:]
        return token_ids

    def _encode_cached(self, texts: Sequence[str], *, special: bool) -> list[Ids]:
        """Return the ids of texts, tokenising only those that are not cached."""
        ids_by_text: dict[str, Ids] = {}
        for text in texts:
            cached_ids = self._texts.get((text, special))
            if cached_ids is not None:
                ids_by_text[text] = cached_ids
        new_texts = [text for text in dict.fromkeys(texts) if text not in ids_by_text]
        new_ids = self._encode(new_texts, special=special)
        self._evict_from_cache(sum(len(token_ids) for token_ids in new_ids))
        for text, token_ids in zip(new_texts, new_ids, strict=True):
            ids_by_text[text] = token_ids
            self._texts[text, special] = token_ids
        return [ids_by_text[text] for text in texts]

    def _evict_from_cache(self, tokens: int) -> None:
        """Empty the cache where so many tokens more would be too many, and count them; callers keep what they hold."""
        if self._cached_tokens + tokens > CACHED_TOKENS:
            self._texts.clear()
            self._pairs.clear()
            self._cached_tokens = 0
        self._cached_tokens += tokens

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[Ids]:
        """Tokenise; a text that already starts with the BOS string (a chat template's) never gets a second one."""
        if not texts:
            return []
        with_special: list[int] = []
        without_special: list[int] = []
        for index, text in enumerate(texts):
            if special and not self._starts_with_prefix_text(text):
                with_special.append(index)
            else:
                without_special.append(index)
        result: list[Ids] = [[] for _ in texts]
        with spending("tokenise"):
            for indices, adds_special in ((with_special, True), (without_special, False)):
                encoded = self._encode_alike([texts[i] for i in indices], special=adds_special)
                for index, token_ids in zip(indices, encoded, strict=True):
                    result[index] = token_ids
        return result

    def _starts_with_prefix_text(self, text: str) -> bool:
        """Tell whether a text begins with the prefix token written out."""
        prefix_text = self.bos.prefix_text
        return prefix_text is not None and text.startswith(prefix_text)

    def _encode_alike(self, texts: list[str], *, special: bool) -> list[Ids]:
        """Tokenise texts that all get special tokens, or none of them."""
        if not texts:
            return []
        encoded = self._ask_tokenizer([_replace_surrogates(text) for text in texts], special)
        prefix_id = self.bos.prefix_id
        lacks_bos = self.bos.required and not self.bos.tokenizer_adds
        if special and lacks_bos and prefix_id is not None:
            return [[prefix_id, *token_ids] for token_ids in encoded]
        return encoded

    def _ask_tokenizer(self, texts: list[str], special: bool) -> list[Ids]:
        """Return the tokenizer's ids; where its Rust code panics, which is no ``Exception``, the model is to blame."""
        try:
            if self._rust_tokenizer:
                return _encode_fast(self._rust_tokenizer, texts, special)
            return _encode_slow(self.tokenizer, texts, special)
        except (Exception, *INTERRUPTS):
            raise
        except BaseException as panic:
            raise ModelError(f"its tokenizer fails: {first_line(panic)}") from panic


def _replace_surrogates(text: str) -> str:
    """Return a text without lone surrogates, which no tokenizer takes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def _encode_slow(tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool) -> list[Ids]:
    """Tokenise with transformers' tokenizer."""
    encoded = tokenizer(
        texts, add_special_tokens=special, padding=False, truncation=False, verbose=False
    )
    return [list(token_ids) for token_ids in encoded["input_ids"]]


def _encode_fast(backend: Any, texts: list[str], special: bool) -> list[Ids]:
    """Tokenise with the Rust tokenizer."""
    backend.no_truncation()
    backend.no_padding()
    return [entry.ids for entry in backend.encode_batch_fast(texts, add_special_tokens=special)]


def _find_rust_tokenizer(tokenizer: PreTrainedTokenizerBase) -> object:
    """Return the Rust tokenizer beneath, where it alone decides the ids; asking it directly is three times faster."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "encode_batch_fast"):
        return None
    special_tokens = tokenizer.all_special_tokens[:4]
    probe_texts = ["Answer: 42", " a\n\nB", "naïve 🙂 東京", *special_tokens]
    for special in (True, False):
        fast_ids = _encode_fast(backend, probe_texts, special)
        slow_ids = _encode_slow(tokenizer, probe_texts, special)
        if fast_ids != slow_ids:
            return None
    return backend


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move the spaces at the end of a context to the beginning of its continuation."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation


def count_common_prefix(token_ids: Ids, other_ids: Ids) -> int:
    """Count the tokens on which two sequences agree from the start, by bisection over slices."""
    agreed = 0
    differing = min(len(token_ids), len(other_ids))
    if token_ids[:differing] == other_ids[:differing]:
        return differing
    while True:  # ids[:agreed] is the same in both, ids[:differing] is not
        middle = (agreed + differing) // 2
        if middle == agreed:
            return agreed
        if token_ids[agreed:middle] == other_ids[agreed:middle]:
            agreed = middle
        else:
            differing = middle


Messages = list[dict[str, str]]
_END = "END-OF-THE-LAST-MESSAGE "


def chat_template(tokenizer: PreTrainedTokenizerBase) -> Callable[[Messages], str] | None:
    """Return the tokenizer's chat template as a function of messages, or None where it has none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    return lambda messages: write_chat(tokenizer, messages)


def write_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, *, reply: bool = True
) -> str:
    """Write messages up to the model's reply, or, without ``reply``, so that the last message goes on.

    Templates are a stranger's: they are rendered within limits. Some refuse a system message: it is left out then, as
    lm-eval does. A template that leaves out what a user says is refused: every question would be the same.
    """
    template = str(tokenizer.get_chat_template())
    special_tokens = dict(tokenizer.special_tokens_map)
    roles = tuple(message["role"] for message in messages)
    _check_chat_template(template, special_tokens, roles)
    if reply:
        return _render_messages(template, special_tokens, messages, reply=True)
    last_message = messages[-1]
    marked_message = {**last_message, "content": last_message["content"] + _END}
    marked_messages = [*messages[:-1], marked_message]
    text = _render_messages(template, special_tokens, marked_messages, reply=False)
    before, end_mark, _ = text.rpartition(_END.strip())
    if not end_mark:
        raise ModelError("its chat template leaves out the last message")
    if _END in text:
        return before
    return before.rstrip()  # a template that strips messages


SpecialTokens = dict[str, Any]  # "bos_token" and others, by which templates name them
_complete_templates: set[tuple[str, tuple[str, ...]]] = set()  # templates that write all, by roles


def _render_messages(
    template: str, special_tokens: SpecialTokens, messages: Messages, *, reply: bool
) -> str:
    """Render messages by a chat template within limits, without the system message where that is refused."""
    values = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": reply,
        **special_tokens,
    }
    try:
        return render_chat(template, {"messages": messages, **values})
    except LimitError:
        without_system = [message for message in messages if message["role"] != "system"]
    try:
        return render_chat(template, {"messages": without_system, **values})
    except LimitError as error:
        raise ModelError(f"its chat template cannot be used: {error}") from None


def _check_chat_template(
    template: str, special_tokens: SpecialTokens, roles: tuple[str, ...]
) -> None:
    """Refuse a chat template that leaves out a user's message of a conversation of these roles."""
    if (template, roles) in _complete_templates:
        return
    marks = [f"MESSAGE{number}MARK" for number in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    text = _render_messages(template, special_tokens, messages, reply=True)
    for role, mark in zip(roles, marks, strict=True):
        if role == "user" and mark not in text:
            raise ModelError(
                "its chat template leaves out what the user says",
                hint="correct the template in tokenizer_config.json or chat_template.jinja, or set chat: never",
            )
    _complete_templates.add((template, roles))
