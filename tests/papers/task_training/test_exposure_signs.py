"""Signs of exposure: what is left to learn, beside models of other families; and whose documents are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potentia.analysis.stats import exact_upper_bound
from potentia.papers.task_training.exposure import (
    Exposure,
    ExposureSign,
    Measures,
    PlantedCopy,
    ProbeReading,
    adjust_for_many,
    area_under,
    calibrate_sign,
    judge_planted_copies,
    measure_exposure_signs,
    read_planted_copies,
    tabulate_exposures,
    tabulate_families,
)
from potentia.values.selection import ProbeResult, SplitLosses

FAMILIES = {name: name for name in ("a", "b", "c", "d", "e", "f")}


def probe(
    model: int,
    *,
    left: float = 1.0,
    of_answer: float | None = None,
    knows: str = "",
    data: str = "docs",
    learning_rate: float = 5e-4,
) -> ProbeResult:
    """A probe of 64 documents of 40 bytes; documents have a difficulty of their own, models a level and some noise."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(model)
    before, sums = {}, {}
    answer = 5 * (left if of_answer is None else of_answer)
    falls = {"text": 7 * left + answer, "answer": answer}
    for split in ("train", "validation", "test"):
        nats = 30 + 5 * rng.normal(size=64) + model + noise.normal(size=64) - 3 * (split == knows)
        losses = {"text": tuple(nats), "answer": tuple(nats / 5)}
        before[split] = SplitLosses(losses, {"text": (40,) * 64, "answer": (8,) * 64})
        if split != "test":
            sums[split] = {loss: sum(losses[loss][:32]) - 32 * fall for loss, fall in falls.items()}
    return ProbeResult(
        version=2,
        learning_rate=learning_rate,
        learned=32,
        data=data,
        before=before,
        after_epochs=(sums,),
    )


def signs(probes: dict[str, ProbeResult], **how) -> tuple[dict[str, ExposureSign], list[str]]:
    readings = {(model, "sst2"): ProbeReading.of(one) for model, one in probes.items()}
    all_signs, problems = measure_exposure_signs(readings, FAMILIES, **how)
    return {sign.model: sign for sign in all_signs}, problems


def test_an_exposed_model_has_less_left_than_a_declared_clean_panel():
    probes = {name: probe(k) for k, name in enumerate("abcde")} | {"f": probe(5, left=0.2)}
    sign_by_model, _ = signs(probes, clean_models="abcde")
    assert sign_by_model["f"].measures.left("text") == pytest.approx(0.2)
    assert sign_by_model["f"].measures.answer_validation == pytest.approx(1.0), (
        "of answers as much as of prompts"
    )
    assert sign_by_model["f"].reference == "declared clean"
    assert sign_by_model["f"].panel == 5
    assert sign_by_model["a"].measures.left("text") == pytest.approx(1.0)


def test_training_on_answers_alone_is_found_by_the_loss_of_answers():
    probes = {name: probe(k) for k, name in enumerate("abcde")} | {
        "f": probe(5, left=1.5, of_answer=0.06)
    }
    sign_by_model, _ = signs(probes, clean_models="abcde")
    assert sign_by_model["f"].measures.left("text") == pytest.approx((7 * 1.5 + 0.3) / 12)
    assert sign_by_model["f"].measures.left("answer") == pytest.approx(0.06 / 1.5)
    shown, clean = calibrate_sign(sign_by_model["f"]), calibrate_sign(sign_by_model["a"])
    assert shown.is_flagged
    assert shown.loss == "answer"
    assert (
        "had 4% as much left to learn of the answers, relative to the prompts" in shown.sentence()
    )
    assert not clean.is_flagged


def test_falls_too_small_to_tell_from_none_count_alike():
    probes = {name: probe(k, of_answer=0.01) for k, name in enumerate("abcde")} | {
        "f": probe(5, of_answer=0.02)
    }
    sign_by_model, _ = signs(probes, clean_models="abcde")
    assert sign_by_model["f"].measures.answer == pytest.approx(1.0)


def test_probes_at_a_rate_without_copies_are_not_judged():
    probes = {name: probe(k, learning_rate=1e-3) for k, name in enumerate("abcde")}
    sign_by_model, _ = signs(probes, clean_models="abcde")
    assert calibrate_sign(sign_by_model["a"]).clean == 0
    assert not calibrate_sign(sign_by_model["a"]).is_flagged


def test_without_four_clean_families_the_upper_quartile_stands_in_and_half_exposed_do_not_hide():
    probes = {name: probe(k, left=0.1 if name in "def" else 1.0) for k, name in enumerate("abcdef")}
    sign_by_model, _ = signs(probes, clean_models="abc")
    assert sign_by_model["f"].reference == "unknown"
    assert sign_by_model["f"].measures.left("text") < 0.2
    assert "whose training data is unknown" in sign_by_model["f"].sentence()


def test_these_very_documents_are_told_from_others_like_them():
    probes = {name: probe(k) for k, name in enumerate("abcd")}
    probes |= {"e": probe(4, left=0.1, knows="train"), "f": probe(5, left=0.1, knows="test")}
    sign_by_model, _ = signs(probes, clean_models="abcd")
    e, f = sign_by_model["e"].measures, sign_by_model["f"].measures
    assert e.train_documents > 5 > abs(e.test_documents)
    assert f.test_documents > 5 > abs(f.train_documents)
    assert "these very training examples" in calibrate_sign(sign_by_model["e"]).sentence()
    assert "nothing shows that it saw these very examples" in sign_by_model["a"].sentence()


def probe_passages(rng: np.random.Generator, *, names_passages: bool) -> ProbeResult:
    """Eight passages of eight documents a split, each of which a model finds easier or harder; none was seen."""
    before, sums = {}, {}
    for split in ("train", "validation", "test"):
        nats = 30 + np.repeat(2.0 * rng.normal(size=8), 8) + rng.normal(size=64)
        losses = {"text": tuple(nats), "answer": tuple(nats / 5)}
        names = tuple(f"{split} {k // 8}" for k in range(64)) if names_passages else ()
        sizes = {"text": (40,) * 64, "answer": (8,) * 64}
        before[split] = SplitLosses(losses, sizes, names)
        sums[split] = {loss: 0.9 * sum(losses[loss][:32]) for loss in losses}
    return ProbeResult(2, 5e-4, 32, "docs", before=before, after_epochs=(sums,))


def test_documents_that_share_a_passage_make_no_model_know_them():
    beyond = {False: 0, True: 0}
    for names_passages in beyond:
        rng = np.random.default_rng(7)
        for _ in range(40):
            probes = {name: probe_passages(rng, names_passages=names_passages) for name in "abcdef"}
            sign_by_model, _ = signs(probes)
            gammas = [gamma for sign in sign_by_model.values() for gamma in sign.measures.gammas]
            beyond[names_passages] += sum(gamma > 2.5 for gamma in gammas)
    assert beyond[True] <= 0.04 * 480  # 1 to 2 % by chance, of the larger of two t values
    assert beyond[False] > 0.15 * 480


def test_who_is_left_out_is_said():
    probes = {name: probe(k) for k, name in enumerate("abcde")} | {"f": probe(5, data="others")}
    sign_by_model, problems = signs(probes)
    assert "f" not in sign_by_model
    assert problems == ["sst2: probed on other examples or at another learning rate: f"]
    alone, problems = signs({"a": probe(0), "b": probe(1)})
    assert not alone
    assert problems == [
        "sst2: fewer than 3 models of other families, not known to have seen the task, to compare with: a, b"
    ]


def rows(count: int, overlap: float) -> list[PlantedCopy]:
    rng = np.random.default_rng(0)
    results = []
    for k in range(count):
        for way, level in (("", 1.0), ("same", overlap)):
            text, answer = level * np.exp(0.2 * rng.normal(size=2))
            measures = Measures(text, text, answer, answer, 0.0, 0.0)
            results.append(
                PlantedCopy("made", f"m{k}", f"family {k % 4}", "t", way, "unknown", 5e-4, measures)
            )
    return results


def test_a_result_is_flagged_where_calibration_allows_and_only_there():
    apart = judge_planted_copies(rows(40, 0.1))
    assert all(sign.is_flagged == bool(row.way) for row, sign in apart)
    assert {sign.clean for _, sign in apart} == {30}, "the family in question has no say"
    mixed = judge_planted_copies(rows(40, 0.9))
    assert sum(sign.is_flagged for row, sign in mixed if not row.way) <= 3, (
        "one in twenty of forty, and its noise"
    )
    table = tabulate_exposures(rows(40, 0.1), "unknown")
    assert [row[:3] for row in table.rows] == [("none (false alarms)", 40, 0), ("same", 40, 40)]
    assert table.rows[1][4] == 1.0


@pytest.mark.parametrize("rate", [5e-4, pytest.param(2e-3, marks=pytest.mark.long)])
def test_the_calibration_that_is_shipped_finds_exposure_in_form_and_names_what_escapes(rate):
    from potentia.papers.task_training.exposure import IN_FORM, read_planted_copies

    alike = [row for row in read_planted_copies() if row.rate == rate]
    in_form = {row.way_label for row in alike if row.way in IN_FORM}
    assert {"same", "same answers"} <= in_form
    for reference in ("declared clean", "unknown"):
        result = {row[0]: row for row in tabulate_exposures(alike, reference).rows}
        clean = result["none (false alarms)"]
        assert clean[2] <= 0.055 * clean[1]
        assert min(result[way][4] for way in in_form) >= 0.9
        assert result["form answers"][2] < result["form answers"][1] / 2, (
            "another prompt form escapes"
        )


def test_bounds_and_areas():
    assert exact_upper_bound(0, 60) == pytest.approx(0.0596, abs=1e-4)
    assert exact_upper_bound(3, 3) == 1.0
    assert area_under(np.array([1.0, 2.0]), np.array([3.0, 1.5])) == pytest.approx(0.75)


def test_the_finding_shows_every_cell_and_never_accuses():
    probes = {name: probe(k) for k, name in enumerate("abcde")} | {"f": probe(5, left=0.1)}
    sign_by_model, problems = signs(probes, clean_models="abcde")
    finding = Exposure(tuple(sign_by_model.values()), tuple(problems))
    (chart,) = finding.charts()
    assert chart.values.shape == (6, 1)
    assert "may have seen the test all the same" in finding.tables()[0].note
    assert "contaminated" not in str([table.note for table in finding.tables()])


def real_rows(reference: str) -> list[PlantedCopy]:
    """Return the calibration of real models beside one kind of reference."""
    return [row for row in read_planted_copies() if row.rate == 5e-4 and row.reference == reference]


@pytest.mark.parametrize("reference", ["declared clean", "unknown"])
def test_no_family_has_many_false_alarms(reference: str):
    """Five of 29 clean cells of the strongest family were flagged when all families shared one threshold."""
    table = tabulate_families(real_rows(reference), reference)
    rates = {str(row[0]): float(row[3]) for row in table.rows}
    bounds = [float(row[4]) for row in table.rows]
    assert len(rates) == 5
    assert max(rates.values()) <= 0.05
    assert all(bound >= rate for bound, rate in zip(bounds, rates.values(), strict=True))


def test_most_exposed_copies_are_still_found():
    result = {
        str(row[0]): (row[2], row[1])
        for row in tabulate_exposures(real_rows("unknown"), "unknown").rows
    }
    for way, least in (("same", 1.0), ("once", 1.0), ("other", 0.75), ("same answers", 0.75)):
        flagged, cells = result[way]
        assert int(str(flagged)) >= least * int(str(cells))


def test_a_validation_loss_that_rises_is_no_sign_where_training_falls_as_ever():
    """A strong model overfits the probe: nothing is left by validation alone, and it learns its examples as any."""
    overfitted = Measures(0.99, -0.9, 1.0, 1.0, 0.0, 0.0)
    assert overfitted.left("text") == pytest.approx(0.495)
    assert Measures(0.2, -0.4, 1.0, 1.0, 0.0, 0.0).left("text") == pytest.approx(0.1)


def test_each_loss_is_held_against_its_own_clean_copies():
    """One clean copy with little left of answers hid every copy with little left of texts."""
    made = rows(40, 0.1)
    odd = replace(made[0], measures=Measures(1.0, 1.0, 0.05, 0.05, 0.0, 0.0))
    exposed = [
        replace(row, measures=replace(row.measures, answer=1.0, answer_validation=1.0))
        if row.way
        else row
        for row in made[1:]
    ]
    flagged = [sign.is_flagged for row, sign in judge_planted_copies([odd, *exposed]) if row.way]
    assert sum(flagged) >= 0.9 * len(flagged)


def test_results_that_were_looked_at_count():
    """One low cell is flagged alone, and not among many innocent ones that make such a value likely."""
    low = ExposureSign(
        "m", "m", "t", Measures(*[1.0] * 6), "unknown", 5e-4, p_value=0.02, adjusted=0.02
    )
    others = [
        ExposureSign("m", "m", f"t{k}", low.measures, "unknown", 5e-4, p_value=0.5)
        for k in range(20)
    ]
    (alone,) = adjust_for_many([low])
    among_many = adjust_for_many([low, *others])[0]
    assert alone.adjusted == pytest.approx(0.02)
    assert among_many.adjusted == pytest.approx(0.42)
    assert adjust_for_many([]) == []


def test_very_documents_are_known_in_one_clean_cell_of_a_hundred():
    """A γ of 3 was called one in 700 and reached by 1.4 % and 2.7 % of the clean cells."""
    rows = real_rows("declared clean") + [row for row in read_planted_copies() if row.rate == 2e-3]
    clean = [sign for row, sign in judge_planted_copies(rows) if not row.way]
    for split in ("training", "test"):
        assert np.mean([split in sign.known_documents for sign in clean]) <= 0.025
