"""The probe records what is left to learn of a task, before a row is tuned, and changes no score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from potentia.run import run_study
from potentia.run.probe import name_shared_passages
from potentia.store import Store
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=120)
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    body = {
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "protocols": ["train_before_test"],
        "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def ran(new_study: Study) -> tuple[dict, float]:
    result = run_study(new_study)
    assert result.failed == 0, result.reasons
    with Store.open(new_study.store) as store:
        return store.provenance.read_probes(study=new_study.name), store.cells.read()[0].score.value


def test_both_losses_of_every_document_before_any_update_and_their_sums_after_each_epoch(
    world: Path, tmp_path: Path
) -> None:
    from potentia import engine, tasks

    probes, score = ran(
        study(world, tmp_path / "on.db", probe={"on": True, "documents": 24, "learning_rate": 1e-2})
    )
    probe = probes["base", "colours"]
    for kind in ("text", "answer"):
        assert [
            len(probe.before[split].nats[kind]) for split in ("train", "validation", "test")
        ] == [
            24,
            12,
            12,
        ]
        falls = [
            sum(probe.before["train"].nats[kind][:12]),
            *(sums["train"][kind] for sums in probe.after_epochs),
        ]
        assert falls[0] > falls[1] > falls[2]
        assert probe.after_epochs[1]["validation"][kind] < sum(
            probe.before["validation"].nats[kind][:12]
        )

    task = tasks.load(str(world / "colours.jsonl"))
    documents = task.documents("test")
    chosen = np.random.default_rng(0).permutation(len(documents))[:12]
    loaded = engine.load(str(world / "base"), device="cpu")
    example = task.examples([documents[int(chosen[0])]])[0]
    import torch

    prompt = len(loaded.tokenizer(example.context)["input_ids"])
    ids = torch.tensor([loaded.tokenizer(example.context + example.continuation)["input_ids"]])
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            loaded.model(ids).logits[0, :-1], ids[0, 1:], reduction="none"
        )
    assert probe.before["test"].nats["text"][0] == pytest.approx(losses.sum().item(), abs=2e-3)
    assert probe.before["test"].nats["answer"][0] == pytest.approx(
        losses[prompt - 1 :].sum().item(), abs=2e-3
    )
    sizes = {kind: values[0] for kind, values in probe.before["test"].bytes.items()}
    answer = len(example.continuation.encode())
    assert sizes == {"text": len(example.context.encode()) + answer, "answer": answer}

    without, same = ran(study(world, tmp_path / "off.db", probe=False))
    assert without == {}
    assert same == score


def test_progress_of_the_probe_ends_at_its_total(world: Path) -> None:
    from potentia import engine, tasks
    from potentia.run.probe import ModelProbe
    from potentia.study import Probe

    done, ended = [0, 0], []

    def phase(name: str, total: int, **_: object) -> None:
        ended.append(done.copy())
        done[:] = [0, total]

    def advance(amount: int) -> None:
        done[0] += amount

    def reach(amount: int) -> None:
        done[0] = amount

    loaded = engine.load(str(world / "base"), device="cpu")
    task = tasks.load(str(world / "colours.jsonl"))
    settings = Probe(on=True, documents=16)
    ModelProbe(
        loaded, {"colours": task}, settings, phase=phase, progress=advance, reach=reach
    ).run()
    phase("over", 0)
    assert len(ended) == 3
    assert all(reached == total for reached, total in ended)


def test_by_default_it_is_made_where_it_costs_little(world: Path, tmp_path: Path) -> None:
    few = study(world, tmp_path / "few.db")
    assert ran(few)[0] == {}
    many = study(
        world,
        tmp_path / "many.db",
        probe={"documents": 16},
        tuning={"learning_rates": [3e-3, 1e-3], "epochs": 40},
    )
    from potentia import tasks
    from potentia.run.probe import estimate_probe_cost, is_probed

    task = tasks.load(str(world / "colours.jsonl"))
    assert is_probed(many.probe, many.tuning, task)
    assert estimate_probe_cost(many.probe, many.tuning, task) < 0.03
    assert not is_probed(few.probe, few.tuning, task)


class PassageTask:
    """A task whose documents are their own passages."""

    def cluster_label(self, document: str) -> str:
        """Return the passage of a document."""
        return document


def test_passages_are_recorded_where_documents_share_one() -> None:
    assert name_shared_passages(PassageTask(), ["a", "a", "", "b"]) == ("a", "a", "", "b")
    assert name_shared_passages(PassageTask(), ["a", "b", "", ""]) == ()
