"""The scorer gives lm-eval's numbers: HFLM on the same tiny models, architecture by architecture."""

from __future__ import annotations

import math
import random

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from potentia.engine import LoadedModel
from potentia.engine.scoring import Scorer
from potentia.values.requests import Continuation, Document, Generation
from scoring_models import ARCHITECTURES, CORPUS, NEEDS_BOS, tiny

WORDS = " ".join(CORPUS[:3]).split()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny(request.param)


@pytest.fixture(scope="module")
def harness(loaded: LoadedModel) -> HFLM:
    return HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=8)


def _instances(kind: str, arguments: list[tuple]) -> list[Instance]:
    return [Instance(kind, {}, args, i, (f"task{i}", i, 1)) for i, args in enumerate(arguments)]


def _phrase(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))


def _questions() -> list[tuple[str, str]]:
    rng = random.Random(1)
    pairs: list[tuple[str, str]] = []
    for _ in range(8):  # multiple choice: choices of several tokens
        context = f"Question: {_phrase(rng, 3, 9)}?\nAnswer:"
        pairs += [(context, " " + _phrase(rng, 1, 4)) for _ in range(4)]
    for _ in range(4):  # single-token choices
        context = f"Passage: {_phrase(rng, 3, 9)}\nAnswer:"
        pairs += [(context, letter) for letter in (" A", " B", " yes", " no")]
    for _ in range(4):  # winogrande: the contexts differ, the continuation is the same
        stem, end = _phrase(rng, 2, 6), " so she always got the easier cases."
        pairs += [(f"{stem} {name}", end) for name in ("Sarah", "Maria")]
    pairs += [
        ("", "Oxygen is what they give back."),
        ("trailing space ", "plants"),
        ("too long " * 40, " carbon dioxide"),
    ]
    return pairs


def test_loglikelihood(loaded: LoadedModel, harness: HFLM) -> None:
    pairs = _questions()
    if loaded.bos.required:  # left-truncation drops BOS in lm-eval; see the test below
        pairs = pairs[:-1]
    scorer = Scorer(loaded)
    ours = scorer.loglikelihood([Continuation(*pair) for pair in pairs])
    theirs = harness.loglikelihood(_instances("loglikelihood", pairs), disable_tqdm=True)
    assert scorer.notes.rows_by_route.keys() <= {"tree", "plain"}
    assert "tree" in scorer.notes.rows_by_route
    assert [entry.greedy for entry in ours] == [bool(greedy) for _, greedy in theirs]
    assert [entry.logprob for entry in ours] == pytest.approx(
        [value for value, _ in theirs], abs=1e-4
    )


def test_generation(loaded: LoadedModel, harness: HFLM) -> None:
    rng = random.Random(2)
    contexts = [_phrase(rng, 1, 12) for _ in range(12)] + ["very long " * 30]
    if loaded.bos.required:
        contexts = contexts[:-1]
    for stop in ((), ("\n",), ("e", " the"), ("zzz",)):
        ours = Scorer(loaded).generate([Generation(context, stop, 20) for context in contexts])
        keywords = {"until": list(stop), "max_gen_toks": 20, "do_sample": False}
        arguments = [(context, dict(keywords)) for context in contexts]
        theirs = harness.generate_until(_instances("generate_until", arguments), disable_tqdm=True)
        assert ours == theirs


def test_rolling(loaded: LoadedModel, harness: HFLM) -> None:
    texts = [CORPUS[1], CORPUS[3], " ".join(CORPUS[:4]), "x"]
    ours = Scorer(loaded).rolling([Document(text) for text in texts])
    theirs = harness.loglikelihood_rolling(
        _instances("loglikelihood_rolling", [(text,) for text in texts])
    )
    if loaded.bos.required:
        assert ours[2].logprob != pytest.approx(
            theirs[2], abs=1e-2
        )  # lm-eval's later windows lack BOS
        return
    assert [entry.logprob for entry in ours] == pytest.approx(theirs, rel=1e-6, abs=1e-4)


def test_bos_in_every_window(loaded: LoadedModel, harness: HFLM) -> None:
    """Where the model needs BOS, a long document is the sum of its windows, each scored after BOS."""
    if not loaded.bos.required:
        pytest.skip("the tokenizer adds no BOS")
    text = " ".join(CORPUS[:4])
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    bos, most = loaded.tokenizer.bos_token_id, loaded.max_length
    pieces = [(None, [bos], ids[:most])]
    done = most
    while done < len(ids):
        end = min(done + most - 1, len(ids))
        start = end - most
        pieces.append((None, [bos, *ids[start:done]], ids[done:end]))
        done = end
    expected = sum(value for value, _ in harness._loglikelihood_tokens(pieces, disable_tqdm=True))
    (ours,) = Scorer(loaded).rolling([Document(text)])
    assert ours.tokens == len(ids)
    assert ours.logprob == pytest.approx(expected, rel=1e-6, abs=1e-4)


def test_truncation_keeps_bos(loaded: LoadedModel, harness: HFLM) -> None:
    context, continuation = "too long " * 40, " carbon dioxide"
    scorer = Scorer(loaded)
    (ours,) = scorer.loglikelihood([Continuation(context, continuation)])
    assert scorer.notes.truncated == 1
    before, after = harness._encode_pair(context, continuation)
    if loaded.bos.required:
        before = [before[0], *(before[-(loaded.max_length - len(after)) :])]
    ((expected, _),) = harness._loglikelihood_tokens([(None, before, after)], disable_tqdm=True)
    assert ours.logprob == pytest.approx(expected, abs=1e-4)
    assert math.isfinite(ours.logprob)


def test_bos_policy_follows_the_tokenizer(loaded: LoadedModel) -> None:
    kind = loaded.target_architecture
    assert loaded.bos.required is (kind in NEEDS_BOS)
    start, end = loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id
    assert loaded.bos.prefix_id == (end if start is None else start)


def test_a_continuation_longer_than_the_model_reads(loaded: LoadedModel, harness: HFLM) -> None:
    """lm-eval scores no such continuation: its tokens are those of lm-eval's rolling windows after the context."""
    context, continuation = (
        "Question: which gas do plants take in?",
        " carbon dioxide and oxygen" * 12,
    )
    before, after = harness._encode_pair(context, continuation)
    most = loaded.max_length
    assert len(after) > 2 * most
    if loaded.bos.required:
        bos = loaded.tokenizer.bos_token_id
        pieces = [(None, before[-1:], after[:most])]
        for done in range(most, len(after), most - 1):
            end = min(done + most - 1, len(after))
            pieces.append((None, [bos, *after[end - most : done]], after[done:end]))
    else:
        windows = get_rolling_token_windows(after, before[-1], most, context_len=1)
        pieces = [(None, *make_disjoint_window(window)) for window in windows]
    expected = sum(value for value, _ in harness._loglikelihood_tokens(pieces, disable_tqdm=True))
    scorer = Scorer(loaded)
    (ours,) = scorer.loglikelihood([Continuation(context, continuation)])
    assert scorer.notes.windowed == 1
    assert ours.tokens == len(after)
    assert ours.logprob == pytest.approx(expected, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_generation_ends_at_every_end_token_of_the_model(kind: str, continuous: bool) -> None:
    """Chat models name several end tokens in their generation config."""
    loaded = tiny(kind)
    contexts = [" ".join(WORDS[first : first + 5]) for first in range(12)]
    requests = [Generation(context, (), 20) for context in contexts]
    scorer = Scorer(loaded, continuous=continuous)
    until_end = scorer.generate(requests)
    written = _written_tokens(loaded, contexts[0])
    ends = {loaded.tokenizer.eos_token_id, written[4], written[7]}
    loaded.model.generation_config.eos_token_id = sorted(ends)
    ours = Scorer(loaded, continuous=continuous).generate(requests)
    expected = []
    for context in contexts:
        tokens = _written_tokens(loaded, context)
        if tokens[-1] in ends:  # transformers writes the end token, which is no part of the text
            tokens = tokens[:-1]
        expected.append(loaded.tokenizer.decode(tokens, skip_special_tokens=True))
    assert ours == expected
    assert ours != until_end


def _written_tokens(loaded: LoadedModel, context: str) -> list[int]:
    """Return the tokens that the model's own ``generate`` writes after a context."""
    prompt = loaded.tokenizer(context, return_tensors="pt")["input_ids"]
    written = loaded.model.generate(prompt, max_new_tokens=20, do_sample=False)
    return written[0, prompt.shape[1] :].tolist()
