"""Both tuned protocols are one machine: adapters or all weights, seeds, the race, steps, every rule of selection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from potentia.run import plan_study, run_study
from potentia.store import CellRecord, LaneRecord, Store
from potentia.study import Study, make_study

TUNING = {"learning_rates": [3e-3], "epochs": 3, "loss": "text", "race": False}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=60)
    tiny.save_questions(folder / "raced.jsonl", n=120)
    tiny.save_questions(folder / "auxiliary.jsonl", n=60, seed=1)
    tiny.save_texts(folder / "notes.jsonl")
    return folder


def study(world: Path, store: Path, protocol: str, **changes: object) -> Study:
    body = {
        "name": "tuned",
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [
            {"name": name, "file": str(world / f"{name}.jsonl")} for name in ("colours", "notes")
        ],
        "protocols": [protocol],
        "adjust": {"data": str(world / "auxiliary.jsonl"), "form": "own"},
        "tuning": TUNING,
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def ran(new_study: Study) -> tuple[dict[str, CellRecord], list[LaneRecord]]:
    result = run_study(new_study)
    assert result.failed == 0, result.reasons
    with Store.open(new_study.store) as store:
        cells = {f"{cell.task} {cell.protocol}": cell for cell in store.cells.read()}
        return cells, store.lanes.read()


@pytest.fixture(scope="module")
def bare(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellRecord]:
    return ran(study(world, tmp_path_factory.mktemp("bare") / "direct.db", "direct"))[0]


BOTH = pytest.mark.parametrize("protocol", ["train_before_test", "adjust"])


def trainer_losses(world: Path, recipe: dict) -> list[float]:
    """The same fine-tuning by Hugging Face's Trainer: the mean loss of each epoch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    from potentia import engine, tasks
    from potentia.engine.lane_spec import data_order
    from potentia.engine.training import encode_examples

    loaded = engine.load(str(world / "base"), device="cpu")
    task = tasks.load(str(world / "colours.jsonl"))
    texts = [replace(text, end=True) for text in task.examples(task.documents("train"))]
    encoded = encode_examples(loaded.encoder, texts, end_id=loaded.tokenizer.eos_token_id)
    rows = [encoded.cut_text(i, 1024)[0].tolist() for i in range(len(encoded))]
    order = [int(i) for epoch in range(recipe["epochs"]) for i in data_order(0, epoch, len(rows))]
    batch = 8
    assert len(rows) % batch == 0, "epochs end where batches do, so they can be laid end to end"

    def collate(chosen):
        width = max(map(len, chosen))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in chosen])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in chosen])
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": ids.masked_fill(mask == 0, -100),
        }

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    losses: list[float] = []

    class Logged(InOrder):
        def log(self, logs, *args, **kwargs):
            if "loss" in logs:
                losses.append(logs["loss"])

    Logged(
        model=AutoModelForCausalLM.from_pretrained(world / "base").eval(),
        args=TrainingArguments(
            output_dir=str(world / "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=recipe["learning_rates"][0],
            weight_decay=0.01,
            max_grad_norm=1.0,
            lr_scheduler_type="linear",
            optim="adamw_torch",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[rows[i] for i in order],
        data_collator=collate,
        processing_class=AutoTokenizer.from_pretrained(world / "base"),
    ).train()
    per = len(rows) // batch
    return [sum(losses[at : at + per]) / per for at in range(0, len(losses), per)]


def test_full_tuning_before_the_test_tunes_all_weights_as_trainer_does(world: Path, tmp_path: Path):
    one = {"tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}]}
    losses = {}
    for method in ("full", "lora"):
        _, (lane,) = ran(
            study(
                world,
                tmp_path / f"{method}.db",
                "train_before_test",
                tuning=TUNING | {"method": method},
                **one,
            )
        )
        losses[method] = [point.train_loss for point in lane.epochs[1:]]
    assert losses["full"] == pytest.approx(trainer_losses(world, TUNING), abs=2e-5)
    assert min(abs(a - b) for a, b in zip(losses["full"], losses["lora"], strict=True)) > 0.01


def test_full_and_lora_are_other_cells(world: Path, tmp_path: Path):
    keys = {
        plan_study(study(world, tmp_path / "s.db", protocol, tuning=TUNING | {"method": method}))
        .rows[0]
        .cells[0]
        .key
        for protocol in ("train_before_test", "adjust")
        for method in ("full", "lora")
    }
    assert len(keys) == 4


@BOTH
@pytest.mark.parametrize("method", ["lora", "full"])
def test_seeds_choose_and_test_for_themselves(
    world: Path, bare: dict[str, CellRecord], tmp_path: Path, protocol: str, method: str
):
    """The gain is over the bare model, whatever was tested before the direct score that the study did not ask for."""
    tuning = TUNING | {"method": method, "learning_rates": [1e-8, 1e-2]}
    cells, lanes = ran(
        study(world, tmp_path / "s.db", protocol, seeds=2, tuning=tuning, selection="tuned")
    )
    for name in ("colours", "notes"):
        cell = cells[f"{name} {protocol}"]
        values = [seed.value for seed in cell.selection.seeds]
        assert len(values) == 2
        assert cell.score.value == pytest.approx(sum(values) / 2)
        assert cell.direct_value == bare[f"{name} direct"].score.value
        assert cell.gain == cell.score.value - cell.direct_value != 0
        assert cell.score.seeds == pytest.approx(values), (
            "every seed's value comes back from the store"
        )
        assert cell.score.stderr >= abs(values[0] - values[1]) / 2, "the seeds' part is in it"
        if method == "lora":
            assert cell.provenance.training.form.value == cell.score.origin.path
            assert cell.provenance.training.targets
            assert cell.provenance.engine.load
        mine = [lane for lane in lanes if lane.task == name]
        assert sorted((lane.learning_rate, lane.seed) for lane in mine) == [
            (1e-8, 0),
            (1e-8, 1),
            (1e-2, 0),
            (1e-2, 1),
        ]
        for seed, chosen in enumerate(cell.selection.seeds):
            (best,) = [lane for lane in mine if lane.seed == seed and lane.selected]
            assert best.learning_rate == chosen.learning_rate
    best = cells[f"colours {protocol}"].selection
    assert [seed.learning_rate for seed in best.seeds] == [1e-2, 1e-2], "what learns wins"


@BOTH
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_race_drops_what_is_behind(world: Path, tmp_path: Path, protocol: str, method: str):
    one = {"tasks": [{"name": "colours", "file": str(world / "raced.jsonl")}]}
    tuning = TUNING | {"method": method, "learning_rates": [1e-2, 1e-8], "epochs": 4, "race": True}
    cells, lanes = ran(study(world, tmp_path / "s.db", protocol, tuning=tuning, **one))
    status = {lane.learning_rate: lane.status for lane in lanes}
    assert status == {1e-2: "done", 1e-8: "dropped"}
    cell = cells[f"colours {protocol}"]
    slow = next(lane for lane in lanes if lane.learning_rate == 1e-8)
    assert cell.selection.epochs_saved_by_race == 4 - (len(slow.epochs) - 1) > 0
    assert cell.selection.learning_rate == 1e-2


@BOTH
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_papers_rule_reports_the_direct_score_where_tuning_does_not_help(
    world: Path, tmp_path: Path, protocol: str, method: str
):
    tuning = TUNING | {"method": method, "learning_rates": [1e-9], "epochs": 1}
    cells, _ = ran(study(world, tmp_path / "s.db", protocol, tuning=tuning, selection="paper"))
    cell = cells[f"colours {protocol}"]
    assert (cell.selection.kept_direct, cell.selection.tuned, cell.gain) == (True, False, 0)


def test_epochs_know_their_tokens_and_time(world: Path, tmp_path: Path):
    from potentia import tasks

    train = tasks.load(str(world / "colours.jsonl")).documents("train")
    _, lanes = ran(study(world, tmp_path / "s.db", "train_before_test"))
    lane = next(lane for lane in lanes if lane.task == "colours")
    first, *epochs = lane.epochs
    assert (first.tokens, first.seconds) == (0, 0.0)
    assert all(point.seconds > 0 for point in epochs)
    assert len({point.tokens for point in epochs}) == 1
    assert epochs[0].tokens > 5 * len(train)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_scores_on_the_way_are_the_chosen_rates(world: Path, tmp_path: Path, method: str):
    """With several rates the step's score is of the rate that is chosen in the end, for each benchmark."""
    adjust = {"data": str(world / "auxiliary.jsonl"), "form": "own", "at_steps": [5, 10]}
    alone = {}
    rates = (1e-8, 1e-2)
    for rate in rates:
        tuning = TUNING | {"method": method, "learning_rates": [rate]}
        alone[rate], _ = ran(
            study(
                world,
                tmp_path / f"{rate}.db",
                "adjust",
                tuning=tuning,
                adjust=adjust,
                selection="tuned",
            )
        )
    tuning = TUNING | {"method": method, "learning_rates": list(rates)}
    cells, _ = ran(
        study(world, tmp_path / "s.db", "adjust", tuning=tuning, adjust=adjust, selection="tuned")
    )
    for name in ("colours", "notes"):
        rate = cells[f"{name} adjust"].selection.learning_rate
        for protocol in ("adjust@5", "adjust@10", "adjust"):
            score, score_alone = (
                replace(score, origin=replace(score.origin, recipe=None))  # the grids differ
                for score in (
                    cells[f"{name} {protocol}"].score,
                    alone[rate][f"{name} {protocol}"].score,
                )
            )
            assert score == score_alone
            assert cells[f"{name} {protocol}"].selection.learning_rate == rate
    assert cells["colours adjust"].selection.learning_rate == 1e-2, "not the first rate"


@pytest.mark.parametrize(("method", "rates"), [("lora", [3e-3]), ("full", [1e-3, 3e-3])])
def test_a_stopped_adjustment_scores_no_step_twice(
    world: Path, tmp_path: Path, method: str, rates: list[float], monkeypatch: pytest.MonkeyPatch
):
    from potentia.run import final_test
    from potentia.run.tuning import RowTuning

    adjust = {"data": str(world / "auxiliary.jsonl"), "form": "own", "at_steps": [3, 10]}
    tuning = TUNING | {"method": method, "learning_rates": rates}
    whole, halted = (
        study(world, tmp_path / f"{n}.db", "adjust", tuning=tuning, adjust=adjust) for n in "ab"
    )
    tested: list[str] = []
    evaluate = final_test.evaluate_test_split

    def spy(setup, scorer, name, *state, **options):
        if "progress" not in options:  # on the way
            tested.append(name)
        return evaluate(setup, scorer, name, *state, **options)

    monkeypatch.setattr(final_test, "evaluate_test_split", spy)
    expected, _ = ran(whole)
    once = len(tested)
    assert once == 2 * 2 * len(rates), "each rate on each task at each step"
    steps: list[int] = []
    step = RowTuning._report_step
    monkeypatch.setattr(
        RowTuning,
        "_report_step",
        lambda self, info: steps.append(self._steps_ended + info.done) or step(self, info),
    )
    for until in (4, 11, 25)[
        : 1 + len(rates)
    ]:  # after each of the steps that are scored; in the second rate
        with monkeypatch.context() as patch:
            patch.setattr(
                RowTuning,
                "is_stop_requested",
                lambda self, until=until: bool(steps) and steps[-1] >= until,
            )
            assert run_study(halted).interrupted
        if len(rates) == 1 and until == 4:
            with Store.open(halted.store) as store:
                assert {cell.protocol for cell in store.cells.read()} == {"adjust@3"}, (
                    "committed as it came"
                )
    resumed_cells, _ = ran(halted)
    assert len(tested) == 2 * once
    assert {place: cell.score for place, cell in resumed_cells.items()} == {
        p: c.score for p, c in expected.items()
    }
    with Store.open(halted.store) as store:
        (record,) = store.studies.read()
        ended = [
            (e.payload["task"], e.payload["protocol"])
            for e in store.events.read(record.key)
            if e.kind == "cell"
        ]
    assert len(ended) == len(set(ended)) == 6


def test_a_stopped_full_tuning_before_the_test_goes_on_where_it_was(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from potentia.engine.training.full import FullTuningJob
    from potentia.run.tuning import RowTuning

    tuning = TUNING | {"method": "full", "learning_rates": [1e-3, 3e-3]}
    whole, halted = (
        study(world, tmp_path / f"{n}.db", "train_before_test", tuning=tuning) for n in "ab"
    )
    steps_made: list[int] = []
    make_step = FullTuningJob.step
    monkeypatch.setattr(
        FullTuningJob,
        "step",
        lambda self, rows, rate: steps_made.append(1) or make_step(self, rows, rate),
    )
    expected, lanes = ran(whole)
    once = len(steps_made)
    for share in (0.2, 0.5, 0.9):
        with monkeypatch.context() as patch:
            patch.setattr(
                RowTuning,
                "is_stop_requested",
                lambda self, share=share: len(steps_made) >= once * (1 + share),
            )
            assert run_study(halted).interrupted
    resumed_cells, again = ran(halted)
    assert len(steps_made) == 2 * once, "no step was made twice"
    assert {place: cell.score for place, cell in resumed_cells.items()} == {
        p: c.score for p, c in expected.items()
    }
    curves = [
        [[(p.epoch, p.value, p.train_loss, p.tokens) for p in lane.epochs] for lane in of]
        for of in (lanes, again)
    ]
    assert curves[0] == curves[1]
    assert not any(tmp_path.joinpath("b.db.lanes").glob("*")), "nothing is left behind"


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_stopped_race_drops_its_lanes_when_the_whole_one_does(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    from potentia.run.tuning import RowTuning

    one = {"tasks": [{"name": "colours", "file": str(world / "raced.jsonl")}]}
    tuning = TUNING | {
        "method": method,
        "learning_rates": [1e-2, 1e-3, 1e-8],
        "epochs": 4,
        "race": True,
    }
    whole, halted = (
        study(world, tmp_path / f"{n}.db", "train_before_test", tuning=tuning, **one)
        for n in ("whole", "halted")
    )
    asked: list[int] = []
    monkeypatch.setattr(RowTuning, "is_stop_requested", lambda self: bool(asked.append(1)))
    cells, lanes = ran(whole)
    steps = len(asked)
    assert "dropped" in {lane.status for lane in lanes}
    for share in (0.3, 0.3):
        with monkeypatch.context() as patch:
            asked.clear()
            patch.setattr(
                RowTuning,
                "is_stop_requested",
                lambda self, n=share * steps: asked.append(1) or len(asked) > n,
            )
            assert run_study(halted).interrupted
    again, resumed = ran(halted)
    curves = [
        {
            lane.learning_rate: (lane.status, [(p.epoch, p.value) for p in lane.epochs])
            for lane in of
        }
        for of in (lanes, resumed)
    ]
    assert curves[0] == curves[1]
    assert [cell.score for cell in again.values()] == [cell.score for cell in cells.values()]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_one_diverging_rate_costs_the_others_nothing(world: Path, tmp_path: Path, method: str):
    tuning = TUNING | {"method": method, "learning_rates": [3e-3, 1e30], "clip": 1e30}
    cells, lanes = ran(study(world, tmp_path / "s.db", "adjust", tuning=tuning))
    assert len(cells) == 2
    assert cells["colours adjust"].selection.failed_lanes
    assert {lane.status for lane in lanes if lane.learning_rate == 1e30} == {"failed"}
