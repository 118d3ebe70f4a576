"""What a benchmark is worth: noise is dropped, a real one is kept, and what is wrong is named."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.benchmark import find_benchmark, judge_benchmark
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.values.scores import ScoreMatrix

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
    found = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert found.verdict == "drop"
    assert "differ no more than chance" in found.reasons[0]
    assert abs(found.reliability) < 0.6
    assert found.at_floor >= 0.5
    assert found.headline().startswith("Drop mine: models hardly differ")
    assert not [s for s in found.suspects if s.reason == "negative discrimination"]


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
    found = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert (found.verdict, found.at_floor) == ("keep", 0.0)
    assert found.reliability > 0.8
    assert found.agreement.low > 0.3
    assert found.resolved > 0.5
    assert 500 < found.needed < 50_000


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
    found = judge_benchmark(matrix, "mine", items=items)
    assert found.verdict == "fix"
    assert "answered better by worse models" in " ".join(found.reasons)
    assert {s.document for s in found.suspects if s.reason.startswith("neg")} <= set(range(20))
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
        found = find_benchmark(Evidence.of(scores), "cola")
        assert (found.chance, found.at_floor == 1.0) == (guess, guess == 0.5)
        assert ("as a guess does" in " ".join(found.reasons)) == (guess == 0.5)
        assert ("documents it has", None, None, None) in found.tables()[1].rows


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
    found = find_benchmark(Evidence.of({"direct": low, "train_before_test": tuned}), "mine")
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.1)
    assert found.direct_tuned == pytest.approx(1.0)
    assert found.protocol == "train_before_test"
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
        own = draw()
        mixed = 0.8 * ability + 0.6 * own
        if name == "mine" and mine == "unrelated":
            mixed = own
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
    found = judge_benchmark(matrix, "y")
    assert found.verdict == "cannot tell"
    assert "agrees with the others" not in found.headline()
    assert found.headline().startswith("Whether to keep y cannot be told with 4 models")


@pytest.mark.parametrize("models", [4, 5, 8])
def test_an_unrelated_benchmark_is_rarely_said_to_agree(models: int) -> None:
    said = 0
    for seed in range(40):
        found = judge_benchmark(sound_and_other(seed, models, 1000, mine="unrelated"), "mine")
        said += "agrees with the others" in " ".join(found.reasons)
    assert said <= 5  # 2 % and three standard errors


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
    kept = 0
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
        for given in (items, None):
            found = judge_benchmark(matrix, "mine", items=given, families=families)
            kept += found.verdict == "keep"
    assert kept <= 7  # 2 % of 80 and three standard errors


def test_a_table_without_errors_cannot_be_told() -> None:
    matrix = sound_and_other(0, 20, 1000, mine="unrelated")
    bare = ScoreMatrix.build(matrix.models, matrix.tasks, matrix.values)
    found = judge_benchmark(bare, "mine")
    assert found.verdict == "cannot tell"
    assert "neither items nor standard errors" in found.reasons[0]


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
