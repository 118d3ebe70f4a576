"""Potentia's scorer as a model of lm-evaluation-harness, registered as ``potentia``.

lm-eval 0.4.13 knows no plug-ins: run ``potentia-lm-eval`` (or ``python -m``), whose flags are lm-eval's own. Later
versions find the model by its entry point.

    potentia-lm-eval --model potentia --model_args pretrained=MODEL --tasks arc_easy
    python -m potentia.integrations.lm_eval --model potentia --model_args pretrained=MODEL --tasks arc_easy

In Python, importing this module is enough: ``lm_eval.simple_evaluate(model="potentia", model_args={...})``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from tqdm import tqdm

from potentia.engine import Ids, LoadedModel, load, write_chat
from potentia.engine.scoring import Scorer
from potentia.errors import InputError
from potentia.values.requests import Continuation, Document, Generation, decoding_options

DEFAULT_NEW_TOKENS = 256
DEFAULT_DEVICE = "cuda:0"  # what lm-eval's command line passes where nobody named a device, with a GPU or without


@register_model("potentia")
class PotentiaLM(TemplateLM):  # type: ignore[misc]
    """Likelihoods, perplexity and greedy generation by Potentia; tasks, metrics and filters by lm-eval.

    ``pretrained`` is a Hub name, a folder, a ``.gguf`` file, or a model already loaded with ``potentia.engine.load``.
    Batch sizes are found by the scorer: ``batch_size`` and ``max_batch_size`` are accepted and not used.
    """

    def __init__(
        self,
        pretrained: str | LoadedModel,
        *,
        device: str | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        gguf_file: str | None = None,
        quantise: str | None = None,
        trust_remote_code: bool = False,
        token_budget: int | None = None,
        max_length: int | None = None,
        think_end_token: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(pretrained, LoadedModel):
            self.loaded = pretrained
        else:
            self.loaded = load(
                pretrained,
                device=_choose_device(device),
                dtype=dtype,
                revision=revision,
                gguf_file=gguf_file,
                quantise=quantise,
                trust_remote_code=trust_remote_code,
            )
        if max_length is not None:
            self.loaded = replace(self.loaded, max_length=int(max_length))
        self.tokenizer = self.loaded.tokenizer
        self.think_end_token = think_end_token
        if token_budget is not None:
            token_budget = int(token_budget)  # lm-eval's command line may pass a text
        self.scorer = Scorer(self.loaded, token_budget=token_budget)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int | None:
        """The token before an empty context."""
        return self.loaded.bos.prefix_id

    @property
    def max_length(self) -> int:
        """How many tokens the model reads at once."""
        return self.loaded.max_length

    @property
    def max_gen_toks(self) -> int:
        """How many tokens to write where a task does not say."""
        return DEFAULT_NEW_TOKENS

    @property
    def tokenizer_name(self) -> str:
        """A name for caches of requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> Ids:
        """Return the token ids of a text, with BOS where the policy asks for it unless told otherwise."""
        if add_special_tokens is None:
            return self.loaded.encoder.prompt(string)
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation the way the model's template does; without the system turn where it knows none."""
        return write_chat(self.tokenizer, chat_history, reply=add_generation_prompt)

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether greedy decoding would write it."""
        continuations = [Continuation(*request.args) for request in requests]
        with _progress_bar("loglikelihood", len(requests), hidden=disable_tqdm) as bar:
            likelihoods = self.scorer.loglikelihood(continuations, progress=bar.update)
        answers = [(likelihood.logprob, likelihood.greedy) for likelihood in likelihoods]
        self._cache_answers("loglikelihood", requests, answers)
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], Ids, Ids]], **_: Any
    ) -> list[tuple[float, bool]]:
        token_pairs = [(context, continuation) for _, context, continuation in requests]
        likelihoods = self.scorer.loglikelihood_ids(token_pairs)
        return [(likelihood.logprob, likelihood.greedy) for likelihood in likelihoods]

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of each whole text."""
        documents = [Document(request.args[0]) for request in requests]
        with _progress_bar("loglikelihood_rolling", len(requests), hidden=disable_tqdm) as bar:
            likelihoods = self.scorer.rolling(documents, progress=bar.update)
        answers = [likelihood.logprob for likelihood in likelihoods]
        self._cache_answers("loglikelihood_rolling", requests, answers)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return greedy continuations, each cut at its first stop string."""
        generations = [self._read_generation(request) for request in requests]
        with _progress_bar("generate_until", len(requests), hidden=disable_tqdm) as bar:
            texts = self.scorer.generate(generations, progress=bar.update)
        if self.think_end_token:
            texts = [
                postprocess_generated_text(text, list(generation.stop), self.think_end_token)
                for text, generation in zip(texts, generations, strict=True)
            ]
        self._cache_answers("generate_until", requests, texts)
        return texts

    def _read_generation(self, request: Instance) -> Generation:
        """Read a request for a generated text; refuse one that asks for sampling."""
        context, options = request.args
        settings = normalize_gen_kwargs(options, self.max_gen_toks)
        if settings.get("do_sample"):
            raise InputError(
                "the potentia model decodes greedily, and this task asks for sampling",
                hint="set do_sample=false in --gen_kwargs, or use --model hf",
            )
        stops = handle_stop_sequences(settings.get("until"), eos=self.tokenizer.eos_token)
        return Generation(
            context=context,
            stop=tuple(stop for stop in stops if stop),
            max_tokens=settings["max_gen_toks"],
            options=decoding_options(settings),
        )

    def _cache_answers(
        self, request_type: str, requests: Sequence[Instance], answers: Sequence[Any]
    ) -> None:
        """Hand the answers to lm-eval's cache of requests."""
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(request_type, request.args, answer)


def _choose_device(device: str | None) -> str:
    """Return the device to load on.

    Where there is no GPU, lm-eval's default counts as no choice, as in its own models.
    """
    if device == DEFAULT_DEVICE:
        import torch

        return device if torch.cuda.is_available() else "auto"
    return device or "auto"


def _progress_bar(description: str, total: int, *, hidden: bool) -> tqdm:
    """Return a bar that counts the requests of one kind."""
    return tqdm(total=total, desc=f"potentia: {description}", disable=hidden)


def main() -> None:
    """Run lm-eval's own command line, with this model among those it knows."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
