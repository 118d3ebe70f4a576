"""What a benchmark is worth: noise is dropped, a real one is kept, and what is wrong is named."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_store import make_store
from potentia.analysis.benchmark import find_benchmark, judge_benchmark
from potentia.analysis.benchmark.classification import (
    BaselineVerdict,
    Classification,
    LabelledTest,
)
from potentia.analysis.rankings.screening import compare_models, screen_tasks
from potentia.errors import InputError
from potentia.evidence import Evidence, read
from potentia.values.baselines import Baseline
from potentia.values.scores import ScoreMatrix, TaskOutcomes

MODELS = [f"m{i}" for i in range(10)]


def answers(rng: np.random.Generator, shares: np.ndarray, n: int) -> np.ndarray:
    """Right and wrong answers to items of unequal difficulty, by models of these mean shares."""
    hard = rng.normal(size=n)
    logits = np.log(shares / (1 - shares))[:, None] + hard[None, :]
    return (rng.random((len(shares), n)) < 1 / (1 + np.exp(-logits))).astype(float)


def world(rng: np.random.Generator, mine: np.ndarray) -> tuple[ScoreMatrix, dict]:
    """Six other tasks that rank models alike, and a task with these answers (models, items)."""
    skill = np.linspace(0.35, 0.75, len(mine))
    columns = [mine.mean(axis=1), *(answers(rng, skill, 400).mean(axis=1) for _ in range(6))]
    values = np.stack(columns, axis=1)
    n = np.full(values.shape, 400.0)
    n[:, 0] = mine.shape[1]
    errors = np.sqrt(values * (1 - values) / n)
    tasks = ["mine", *(f"t{k}" for k in range(6))]
    matrix = ScoreMatrix.build(MODELS, tasks, values, stderr=errors, n=n)
    return matrix, {m: dict(enumerate(row.tolist())) for m, row in zip(MODELS, mine, strict=True)}


def noise(rng: np.random.Generator) -> np.ndarray:
    return (rng.random((len(MODELS), 200)) < 0.25).astype(float)


def test_noise_is_dropped_with_the_reason() -> None:
    rng = np.random.default_rng(0)
    matrix, items = world(rng, noise(rng))
    benchmark = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert benchmark.verdict == "drop"
    assert "differ no more than by chance" in benchmark.reasons[0]
    assert abs(benchmark.reliability) < 0.6
    assert benchmark.at_floor >= 0.5
    assert benchmark.headline().startswith("Drop mine: models hardly differ")
    assert not [s for s in benchmark.suspects if s.reason == "negative discrimination"]


@pytest.mark.parametrize("with_items", [True, False])
def test_noise_is_rarely_taken_for_more(with_items: bool) -> None:
    verdicts = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        matrix, items = world(rng, noise(rng))
        verdicts.append(
            judge_benchmark(matrix, "mine", items=items if with_items else None, seed=seed).verdict
        )
    assert verdicts.count("drop") >= 51
    assert verdicts.count("keep") <= 3


def test_a_real_benchmark_is_kept() -> None:
    rng = np.random.default_rng(1)
    matrix, items = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    benchmark = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert (benchmark.verdict, benchmark.at_floor) == ("keep", 0.0)
    assert benchmark.reliability > 0.8
    assert benchmark.agreement.low > 0.3
    assert benchmark.resolved > 0.5
    assert 500 < benchmark.needed < 50_000


def test_what_is_wrong_is_named() -> None:
    rng = np.random.default_rng(2)
    matrix, items = world(rng, answers(rng, np.linspace(0.48, 0.56, 10), 40))
    small = judge_benchmark(matrix, "mine", items=items)
    assert small.verdict in ("fix", "drop")
    against, turned = world(rng, answers(rng, np.linspace(0.8, 0.3, 10), 500))
    assert judge_benchmark(against, "mine", items=turned).verdict == "drop"
    ceiling, solved = world(rng, answers(rng, np.linspace(0.99, 0.999, 10), 500))
    assert "ceiling" in " ".join(judge_benchmark(ceiling, "mine", items=solved).reasons)
    mislabelled = answers(rng, np.linspace(0.2, 0.9, 10), 300)
    mislabelled[:, :20] = np.arange(10)[:, None] < 5
    matrix, items = world(rng, mislabelled)
    benchmark = judge_benchmark(matrix, "mine", items=items)
    assert benchmark.verdict == "fix"
    assert "answered better by weaker models" in " ".join(benchmark.reasons)
    assert {s.document for s in benchmark.suspects if s.reason.startswith("neg")} <= set(range(20))
    fine, _ = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    shared = judge_benchmark(fine, "mine", in_train=7)
    assert "7 test examples are also in the training split" in " ".join(shared.reasons)


def test_the_level_of_a_guess_follows_the_metric() -> None:
    """A guess has an MCC of 0 on CoLA, not the accuracy of a coin."""
    rng = np.random.default_rng(4)
    matrix, _ = world(rng, answers(rng, np.linspace(0.1, 0.4, 10), 500))
    tasks = ["cola", *matrix.tasks[1:]]
    for metric, guess in (("mcc", 0.0), ("acc", 0.5), ("", 0.0)):
        scores = ScoreMatrix.build(
            MODELS, tasks, matrix.values, stderr=matrix.stderr, metrics=[metric] * len(tasks)
        )
        benchmark = find_benchmark(Evidence.of(scores), "cola")
        assert (benchmark.chance, benchmark.at_floor == 1.0) == (guess, guess == 0.5)
        assert ("no better than a guess" in " ".join(benchmark.reasons)) == (guess == 0.5)
        measures = [row[0] for row in benchmark.tables()[1].rows]
        assert "test examples" not in measures  # their number is not known
        assert "score of a guess" in measures


def test_direct_beside_tuned_and_what_cannot_be_judged() -> None:
    rng = np.random.default_rng(3)
    matrix, _ = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    low = ScoreMatrix.build(
        MODELS, matrix.tasks, matrix.values - 0.1, stderr=matrix.stderr, n=matrix.n
    )
    tuned = ScoreMatrix.build(
        MODELS,
        matrix.tasks,
        matrix.values,
        stderr=matrix.stderr,
        n=matrix.n,
        protocol="train_before_test",
    )
    benchmark = find_benchmark(Evidence.of({"direct": low, "train_before_test": tuned}), "mine")
    assert benchmark.gain is not None
    assert benchmark.gain.value == pytest.approx(0.1)
    assert benchmark.direct_tuned == pytest.approx(1.0)
    assert benchmark.protocol == "train_before_test"
    with pytest.raises(InputError, match="no scores of other"):
        find_benchmark(Evidence.of(matrix), "other")
    with pytest.raises(InputError, match="scores of 3 models"):
        judge_benchmark(matrix.select(models=MODELS[:3]), "mine")


# --- what cannot be told -------------------------------------------------------------------------------------------


def sound_and_other(seed: int, models: int, n: int, *, families: int = 1, mine: str) -> ScoreMatrix:
    """Six benchmarks that load 0.8 on one ability, and ``mine``: as sound, unrelated, or pure noise."""
    rng = np.random.default_rng(seed)
    kin = np.arange(models) // families
    shared = 0.95 if families > 1 else 0.0

    def draw() -> np.ndarray:
        return shared * rng.normal(size=models)[kin] + np.sqrt(1 - shared**2) * rng.normal(
            size=models
        )

    ability = draw()
    columns = []
    for name in ("mine", *(f"t{k}" for k in range(6))):
        own_scores = draw()
        mixed = 0.8 * ability + 0.6 * own_scores
        if name == "mine" and mine == "unrelated":
            mixed = own_scores
        elif name == "mine" and mine == "noise":
            mixed = np.zeros(models)
        columns.append(0.5 + 0.08 * mixed)
    truth = np.clip(np.stack(columns, axis=1), 0.02, 0.98)
    values = rng.binomial(n, truth) / n
    errors = np.sqrt(values * (1 - values) / (n - 1))
    tasks = ["mine", *(f"t{k}" for k in range(6))]
    names = [f"m{k}" for k in range(models)]
    return ScoreMatrix.build(names, tasks, values, stderr=errors, n=np.full(values.shape, n))


def test_a_reversed_ranking_of_four_models_is_not_said_to_agree() -> None:
    """ "Keep y: its ranking agrees with the others: mean τ −1.00" was said of four models."""
    up = np.linspace(0.3, 0.6, 4)
    values = np.stack([up, up[::-1]], axis=1)
    matrix = ScoreMatrix.build(
        ["a", "b", "c", "d"], ["x", "y"], values, stderr=np.full((4, 2), 0.01)
    )
    benchmark = judge_benchmark(matrix, "y")
    assert benchmark.verdict == "cannot tell"
    assert "agrees with the others" not in benchmark.headline()
    assert benchmark.headline().startswith("4 models cannot tell whether to keep y")


@pytest.mark.parametrize("models", [4, 5, 8])
def test_an_unrelated_benchmark_is_rarely_said_to_agree(models: int) -> None:
    agreements = 0
    for seed in range(40):
        benchmark = judge_benchmark(sound_and_other(seed, models, 1000, mine="unrelated"), "mine")
        agreements += "agrees with the others" in " ".join(benchmark.reasons)
    assert agreements <= 5  # 2 % and three standard errors


@pytest.mark.parametrize(("models", "n"), [(5, 200), (8, 1000), (12, 200)])
def test_a_sound_benchmark_is_rarely_accused(models: int, n: int) -> None:
    """ "It measures something else" was said of 72 %, "drop" of 40 % of benchmarks as sound as the others."""
    verdicts = [
        judge_benchmark(sound_and_other(seed, models, n, mine="sound"), "mine").verdict
        for seed in range(40)
    ]
    assert verdicts.count("fix") + verdicts.count("drop") <= 6  # 5 % and three standard errors


def test_an_unrelated_benchmark_is_accused_where_models_are_many() -> None:
    verdicts = [
        judge_benchmark(sound_and_other(seed, 30, 1000, mine="unrelated"), "mine").verdict
        for seed in range(12)
    ]
    assert verdicts.count("fix") >= 8


def test_noise_does_not_escape_by_near_copies() -> None:
    """Copies of a model err on the same items: counted as models, they made noise look like differences."""
    rng = np.random.default_rng(0)
    kept_verdicts = 0
    models = [f"m{k}" for k in range(24)]
    families = {model: f"f{k // 3}" for k, model in enumerate(models)}
    for _ in range(40):
        base = sound_and_other(int(rng.integers(1e6)), 24, 1000, families=3, mine="noise")
        guesses = (rng.random((8, 300)) < 0.25).astype(float)
        changed = (rng.random((24, 300)) < 0.25).astype(float)
        is_changed = rng.random((24, 300)) < 0.1
        answered = np.where(is_changed, changed, np.repeat(guesses, 3, axis=0))
        values = base.values.copy()
        values[:, 0] = answered.mean(axis=1)
        stderr = base.stderr.copy()
        stderr[:, 0] = answered.std(axis=1, ddof=1) / np.sqrt(300)
        matrix = ScoreMatrix.build(models, base.tasks, values, stderr=stderr)
        items = {m: dict(enumerate(row.tolist())) for m, row in zip(models, answered, strict=True)}
        for known_items in (items, None):
            benchmark = judge_benchmark(matrix, "mine", items=known_items, families=families)
            kept_verdicts += benchmark.verdict == "keep"
    assert kept_verdicts <= 7  # 2 % of 80 and three standard errors


def test_a_table_without_errors_cannot_be_told() -> None:
    matrix = sound_and_other(0, 20, 1000, mine="unrelated")
    bare = ScoreMatrix.build(matrix.models, matrix.tasks, matrix.values)
    benchmark = judge_benchmark(bare, "mine")
    assert benchmark.verdict == "cannot tell"
    assert "neither results by example nor standard errors" in benchmark.reasons[0]
    assert "column stderr" in benchmark.reasons[0]
    assert f"{benchmark.task}_stderr" in benchmark.reasons[0]
    assert "stderr or n" not in benchmark.reasons[0]


def test_the_report_says_one_thing_of_a_task() -> None:
    """Tasks to distrust and verdicts were two rules: a task was to be dropped, and "all may stay"."""
    from potentia.analysis.benchmark import find_benchmarks
    from potentia.analysis.rankings import find_rankings

    tuned = sound_and_other(3, 20, 1000, mine="unrelated")
    direct = ScoreMatrix.build(
        tuned.models, tuned.tasks, tuned.values, stderr=tuned.stderr, n=tuned.n
    )
    after = ScoreMatrix.build(
        tuned.models,
        tuned.tasks,
        tuned.values + np.array([0.1] * 6 + [0.0]),
        stderr=tuned.stderr,
        n=tuned.n,
        protocol="train_before_test",
    )
    evidence = Evidence.of({"direct": direct, "train_before_test": after})
    flagged = set(find_rankings(evidence).screening.flagged_tasks)
    accused = {v.task for v in find_benchmarks(evidence) if v.verdict in ("fix", "drop")}
    assert flagged == accused
    assert "t5" in accused


def write_lm_eval(folder: Path, model: str, task: str, right: np.ndarray) -> None:
    """Write the results and samples of one model as lm-eval does; hashes say nothing to a person."""
    stamp = f"{task}_2026-01-01T00-00-00.000000"
    model_folder = folder / model
    model_folder.mkdir(parents=True, exist_ok=True)
    results = {
        "results": {task: {"acc,none": right.mean(), "acc_stderr,none": 0.02}},
        "model_name": model,
    }
    (model_folder / f"results_{stamp}.json").write_text(json.dumps(results))
    samples = []
    for doc_id, value in enumerate(right):
        question = f"Q: is {doc_id} of {task} even?\nA:"
        sample = {
            "doc_id": doc_id,
            "doc_hash": hashlib.sha256(question.encode()).hexdigest(),
            "arguments": {"gen_args_0": {"arg_0": question, "arg_1": " yes"}},
            "filter": "none",
            "acc": value,
        }
        samples.append(json.dumps(sample))
    (model_folder / f"samples_{task}_{stamp}.jsonl").write_text("\n".join(samples))


def test_suspect_examples_of_lm_eval_have_its_number_and_the_question(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    mislabelled = answers(rng, np.linspace(0.2, 0.9, 10), 200)
    mislabelled[:, :20] = np.arange(10)[:, None] < 5
    other = answers(rng, np.linspace(0.2, 0.9, 10), 200)
    for position, model in enumerate(MODELS):
        write_lm_eval(tmp_path, model, "mine", mislabelled[position])
        write_lm_eval(tmp_path, model, "other", other[position])
    table = find_benchmark(read(tmp_path), "mine").tables()[-1]
    assert table.title == "Examples of mine to check"
    assert table.columns[:2] == ("doc_id", "question")
    for doc_id, question, *_ in table.rows:
        assert doc_id in range(20)
        assert question == f"Q: is {doc_id} of mine even? A:"


def test_suspect_examples_of_a_store_have_their_question(tmp_path: Path) -> None:
    store = tmp_path / "made.db"
    make_store(store)
    evidence = read(store)
    protocol = next(iter(evidence.outcomes))
    task = next(iter(evidence.outcomes[protocol]))
    values_by_model = evidence.outcomes[protocol][task]
    texts = evidence.example_texts(protocol, task)
    assert texts.keys() == next(iter(values_by_model.values())).keys()
    assert all(text.doc_id == key and text.question for key, text in texts.items())


def make_labelled(
    accuracy: float,
    baselines: dict[Baseline, float],
    *,
    documents: int,
    frozen: float | None = None,
) -> Classification:
    embeddings = {} if frozen is None else {"acc": frozen, "stderr": 0.02}
    scores = (accuracy, accuracy, accuracy)
    test = LabelledTest("m", scores, 0.02, np.nan, constant=None, unknown=0.0, frozen=embeddings)
    cheap = {name: {"acc": value, "stderr": 0.02} for name, value in baselines.items()}
    return Classification(
        "t", "direct", ("yes", "no"), (test,), cheap, np.eye(2), documents=documents
    )


@pytest.mark.parametrize(("documents", "start"), [(1, "1 tested example is"), (8, "8 tested")])
def test_a_handful_of_tested_examples_says_nothing_of_baselines(documents: int, start: str) -> None:
    finding = make_labelled(0.0, {Baseline.MAJORITY: 0.0}, documents=documents)
    assert finding.verdict is BaselineVerdict.UNKNOWN
    sentence = finding.verdict_sentence()
    assert sentence.startswith(start)
    assert "too few" in sentence
    assert "Use that" not in sentence


def test_the_most_frequent_label_is_no_classifier_to_use() -> None:
    finding = make_labelled(0.93, {Baseline.MAJORITY: 0.95, Baseline.TFIDF: 0.94}, documents=200)
    assert finding.verdict is BaselineVerdict.LOSES
    sentence = finding.verdict_sentence()
    assert "always answering the most frequent label (0.95 against 0.93)" in sentence
    assert "Use that" not in sentence + finding.advise()
    assert "of the rare labels" in sentence


def test_of_equal_classifiers_the_one_on_words_is_used_and_a_better_one_on_embeddings_is() -> None:
    equal = make_labelled(
        0.6, {Baseline.MAJORITY: 0.4, Baseline.TFIDF: 0.9}, documents=200, frozen=0.9
    )
    assert (equal.best_baseline, equal.best_embedding_model) == (Baseline.TFIDF, None)
    better = make_labelled(
        0.6, {Baseline.MAJORITY: 0.4, Baseline.TFIDF: 0.9}, documents=200, frozen=0.95
    )
    assert better.best_embedding_model == "m"
    assert better.verdict_sentence().endswith("(0.95 against 0.60). Use that.")


def test_two_families_of_near_copies_are_two_witnesses() -> None:
    """Of two families, all models counted as independent: unrelated benchmarks "agreed" in a quarter of studies."""
    agreements = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        family = np.arange(12) // 6
        truth = 0.08 * rng.normal(size=(2, 7))[family] + 0.016 * rng.normal(size=(12, 7))
        values = rng.binomial(500, np.clip(0.5 + truth, 0.02, 0.98)) / 500
        models = [f"m{k}" for k in range(12)]
        matrix = ScoreMatrix.build(
            models,
            [f"t{k}" for k in range(7)],
            values,
            stderr=np.sqrt(values * (1 - values) / 499),
        )
        families = {model: f"f{family[k]}" for k, model in enumerate(models)}
        benchmark = judge_benchmark(matrix, "t0", families=families)
        agreements += "agrees with the others" in " ".join(benchmark.reasons)
    assert agreements <= 3


def test_subsets_of_one_benchmark_do_not_accuse_the_others() -> None:
    """Twelve subsets agree with each other more than benchmarks do; 38 % of sound benchmarks were accused of that."""
    accused = 0
    subsets = [f"mmlu_{number}" for number in range(12)]
    others = ["arc_easy", "boolq", "piqa", "hellaswag"]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        ability = rng.normal(size=20)
        of_mmlu = 0.7 * ability + 0.71 * rng.normal(size=20)
        columns = [0.95 * of_mmlu + 0.3 * rng.normal(size=20) for _ in subsets]
        columns += [0.7 * ability + 0.71 * rng.normal(size=20) for _ in others]
        truth = np.clip(0.5 + 0.08 * np.array(columns).T, 0.02, 0.98)
        values = rng.binomial(1000, truth) / 1000
        matrix = ScoreMatrix.build(
            [f"m{k}" for k in range(20)],
            [*subsets, *others],
            values,
            stderr=np.sqrt(values * (1 - values) / 999),
        )
        accused += judge_benchmark(matrix, "hellaswag").verdict in ("fix", "drop")
    assert accused <= 5  # 5 % and three standard errors


def test_items_that_share_a_passage_do_not_make_models_differ() -> None:
    """Equal models, ten questions to a passage: they "differed" in a third of the studies."""
    differing = 0
    resolved = []
    models = [f"m{k}" for k in range(8)]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        effects = np.repeat(rng.normal(size=(8, 50)), 10, axis=1)
        logits = 0.3 + 0.7 * rng.normal(size=500) + effects
        answered = (rng.random((8, 500)) < 1 / (1 + np.exp(-logits))).astype(float)
        skill = np.linspace(0.4, 0.6, 8)[:, None]
        values = np.hstack([answered.mean(axis=1, keepdims=True), np.tile(skill, 4)])
        matrix = ScoreMatrix.build(
            models, ["mine", "a", "b", "c", "d"], values, stderr=np.full(values.shape, 0.03)
        )
        by_model = {
            model: dict(enumerate(row))
            for model, row in zip(models, answered.tolist(), strict=True)
        }
        items = TaskOutcomes(by_model, {k: f"p{k // 10}" for k in range(500)})
        benchmark = judge_benchmark(matrix, "mine", items=items)
        differing += benchmark.differences_p < 0.02
        resolved.append(benchmark.resolved)
    assert differing <= 3  # 2 % and three standard errors
    assert np.mean(resolved) < 0.08


def test_the_page_says_what_its_intervals_draw() -> None:
    matrix = sound_and_other(0, 12, 1000, mine="sound")
    families = {f"m{k}": f"f{k // 3}" for k in range(9)}
    (_, measures, *_) = judge_benchmark(matrix, "mine", families=families).tables()
    assert "by bootstrap over families" in measures.note
    assert "3 models without a known family" in measures.note
    families_of_six = {f"m{k}": f"f{k // 6}" for k in range(12)}
    (_, measures, *_) = judge_benchmark(matrix, "mine", families=families_of_six).tables()
    assert "by bootstrap over models" in measures.note


def test_gains_that_test_noise_hides_are_no_fault() -> None:
    """All models gained 0.02, and four of five benchmarks of 200 examples were to be fixed for "no improvement"."""
    accused = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = 0.5 + 0.08 * (0.8 * rng.normal(size=(12, 1)) + 0.6 * rng.normal(size=(12, 6)))
        scores = []
        for protocol, gain in (("direct", 0.0), ("train_before_test", 0.02)):
            values = rng.binomial(200, np.clip(truth + gain, 0.02, 0.98)) / 200
            scores.append(
                ScoreMatrix.build(
                    [f"m{k}" for k in range(12)],
                    [f"t{k}" for k in range(6)],
                    values,
                    stderr=np.sqrt(values * (1 - values) / 199),
                    protocol=protocol,
                )
            )
        verdict = judge_benchmark(scores[1], "t0", direct=scores[0])
        accused += "no improvement" in verdict.reasons[0]
    assert accused <= 2


def test_what_seeds_move_makes_no_models_differ() -> None:
    studies = 60
    differ = {False: 0, True: 0}
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        shares = np.clip(0.6 + 0.04 * rng.standard_normal(len(MODELS)), 0.05, 0.95)
        right = (rng.random((len(MODELS), 1_000)) < shares[:, None]).astype(float)
        deviation = np.array([0.04])
        for knows_seeds in (False, True):
            matrix = ScoreMatrix.build(
                MODELS,
                ["own"],
                right.mean(axis=1)[:, None],
                stderr=np.full((len(MODELS), 1), 0.0155),
                n=np.full((len(MODELS), 1), 1_000.0),
                metrics=["acc"],
            )
            if knows_seeds:
                seeds = np.empty((len(MODELS), 1), dtype=object)
                matrix = replace(matrix, seeds=seeds, seed_deviations=deviation)
            by_model = zip(MODELS, right, strict=True)
            items = {model: dict(enumerate(row.tolist())) for model, row in by_model}
            family = np.arange(len(MODELS))
            differ[knows_seeds] += compare_models(matrix, 0, items, family).p_value < 0.02
    assert differ[True] <= 4  # 2 % expected
    assert differ[False] > 50


def alike_benchmarks(rng: np.random.Generator, models: int, tasks: int, loading: float) -> str:
    """Say what is said of the last of so many benchmarks that have so much in common."""
    skill = rng.normal(size=(models, 1))
    own = np.sqrt(1 - loading**2) * rng.normal(size=(models, tasks))
    shares = np.clip(0.5 + 0.12 * (loading * skill + own), 0.02, 0.98)
    values = rng.binomial(5_000, shares) / 5_000
    names = [3 * letter for letter in "abcdefghijklmnop"[:tasks]]
    matrix = ScoreMatrix.build(
        [f"m{k}" for k in range(models)],
        names,
        values,
        stderr=np.sqrt(values * (1 - values) / 5_000),
        n=np.full(values.shape, 5_000.0),
    )
    return " ".join(judge_benchmark(matrix, names[-1]).reasons)


def test_few_models_do_not_show_that_one_of_two_benchmarks_is_enough() -> None:
    """Of eight models some two of twelve benchmarks rank alike by luck in one study of ten."""
    assert "one of the two is enough" not in alike_benchmarks(np.random.default_rng(0), 8, 4, 1.0)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        assert "one of the two is enough" in alike_benchmarks(rng, 24, 4, 1.0)
        assert "one of the two is enough" not in alike_benchmarks(rng, 24, 4, 0.8)


def test_four_models_have_no_interval_of_agreement() -> None:
    scores = np.array([0.3, 0.4, 0.5, 0.6])
    values = np.stack([scores, scores, scores, scores[::-1]], axis=1)
    matrix = ScoreMatrix.build(
        MODELS[:4], ["a", "b", "c", "d"], values, stderr=np.full(values.shape, 0.015)
    )
    benchmark = judge_benchmark(matrix, "d")
    assert benchmark.agreement.value == -1.0
    assert np.isnan(benchmark.agreement.low)
    assert "interval" not in benchmark.reasons[0]


def test_a_task_has_the_same_flags_whether_its_agreement_is_tested_or_not() -> None:
    """The terminal tests what decides, the report everything: they told two stories in two of twelve studies."""
    for seed in (2, 11, 14):
        rng = np.random.default_rng(seed)
        models, tasks = int(rng.integers(5, 13)), int(rng.integers(3, 9))
        skill = rng.normal(size=(models, 1))
        ability = 0.8 * skill + 0.6 * rng.normal(size=(models, tasks))
        ability[:, 0] = 0.0
        ability[:, 1] *= -1
        rng.binomial(300, np.clip(0.5 + 0.08 * ability, 0.02, 0.98))  # as before fine-tuning
        values = rng.binomial(300, np.clip(0.6 + 0.08 * ability, 0.02, 0.98)) / 300
        matrix = ScoreMatrix.build(
            [f"m{row}" for row in range(models)],
            [3 * letter for letter in "abcdefgh"[:tasks]],
            values,
            stderr=np.sqrt(values * (1 - values) / 299),
            n=np.full(values.shape, 300.0),
            metrics=["acc"] * tasks,
        )
        flags = screen_tasks(matrix).flags
        tested = screen_tasks(matrix, tested=matrix.tasks).flags
        assert {(flag.task, flag.reason) for flag in flags} == {
            (flag.task, flag.reason) for flag in tested
        }


def test_the_best_of_many_candidates_rarely_beats_a_baseline_that_is_as_good() -> None:
    """Of six candidates the best beat a baseline as good as they are in 8 to 11 % of the tests."""
    beats = 0
    studies = 400
    rng = np.random.default_rng(0)
    for _ in range(studies):
        right = rng.random((7, 400)) < 1 / (1 + np.exp(-0.8 - 0.5 * rng.normal(size=400)))
        accuracies = right.mean(axis=1)
        errors = np.sqrt(accuracies * (1 - accuracies) / 399)
        best_first = 1 + np.argsort(-accuracies[1:])
        tests = [
            LabelledTest(
                f"m{k}", (accuracies[k],) * 3, errors[k], np.nan, constant=None, unknown=0.0
            )
            for k in best_first
        ]
        words = {Baseline.TFIDF: {"acc": accuracies[0], "stderr": errors[0]}}
        finding = Classification("t", "direct", ("a", "b"), tuple(tests), words, np.eye(2), 400)
        beats += finding.verdict == "beats"
        if finding.verdict != "loses":
            assert "95 % interval for the best of 6" in finding.verdict_sentence()
    assert 0 < beats / studies <= 0.05
