"""The treatment experiment on the zoo (section 3.1): a random half trains on a test's form, then all are adjusted.

The models are those whose pretraining did not hold the form. Half of them, one of each pair next to each other in
compute, are fine-tuned as a whole on people of no split: that is training on the test task, done on purpose. Their
exposure is known, so θ must appear under direct evaluation and vanish after the same adjustment of all.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from potentia import zoo
from potentia.analysis.test_task import Cohort, assign_half
from potentia.lab.laboratory import model_spec, studies, write_study
from potentia.study import Tuning

TASK = "ask"
SUFFIX = "treated"
RECIPE = Tuning(method="full", epochs=5, learning_rates=(1e-3,), batch=16, loss="completion")


@dataclass(frozen=True)
class TreatmentLayout:
    """The study of the experiment and its facts."""

    study: Path
    facts: Path
    store: Path
    treated: tuple[str, ...]
    control: tuple[str, ...]

    def commands(self) -> tuple[str, ...]:
        """Return what to run, to be pasted."""
        return (
            f"potentia run {self.study}",
            f"potentia analyze test-task {self.store} --study treatment --facts {self.facts} --exposed --chance 0.25",
        )


def lay_out_treatment(folder: Path, *, names: Collection[str] | None = None, seed: int = 0) -> TreatmentLayout:
    """Tune the half below ``folder`` (a laboratory) and write the study; models that are there already stay.

    ``names`` restricts the experiment to some of the models that did not see the form.
    """
    folder = Path(folder)
    models = [m for m in zoo.models("base") if TASK not in m.exposure and (names is None or m.name in names)]
    half = assign_half(
        Cohort.build({"model": m.name, "family": m.family, "compute": m.flops} for m in models), seed=seed
    )
    specs, facts = [], []
    for model, is_treated in zip(models, half.members, strict=True):
        spec = model_spec(model)
        if is_treated:
            spec |= {"name": f"{model.name}-{SUFFIX}", "path": f"models/{model.name}-{SUFFIX}"}
            if not (folder / spec["path"] / "model.safetensors").exists():
                _treat(folder / "models" / model.name, folder / spec["path"], seed)
        specs.append(spec)
        facts.append((spec["name"], model, TASK if is_treated else ""))
    body = studies()["adjust"][1] | {"models": specs}
    body["tasks"] = [task for task in body["tasks"] if task["name"] == TASK]
    path = folder / "treatment.yaml"
    why = f"The treatment experiment: half of these models were tuned on the form of {TASK}, then all are adjusted."
    write_study(path, why, {"name": "treatment", **body, "store": str((folder / "potentia.db").resolve())})
    return TreatmentLayout(
        path,
        _write_facts(folder / "treatment.csv", facts),
        folder / "potentia.db",
        tuple(name for name, _, seen in facts if seen),
        tuple(name for name, _, seen in facts if not seen),
    )


def _treat(source: Path, target: Path, seed: int) -> None:
    """Fine-tune all weights on items about the people set aside for exposure, and write them as a model folder."""
    from transformers.utils import logging

    from potentia.engine import load
    from potentia.engine.tune import FullTrainer, encode_examples
    from potentia.run import schedule
    from potentia.values.requests import Example

    logging.disable_progress_bar()
    asked = zoo.items(zoo.make_world(), zoo.BENCHMARK[TASK], "exposure")
    examples = [Example(item.prompt, f" {item.answer}") for item in asked]
    loaded = load(str(source), device="cpu")
    try:
        encoded = encode_examples(loaded.encoder, examples, end_id=loaded.tokenizer.eos_token_id)
        with FullTrainer(loaded) as trainer:
            trainer.train(encoded, schedule(RECIPE, RECIPE.learning_rates[0]), seed=seed)
            target.mkdir(parents=True, exist_ok=True)
            trainer.save(target)
    finally:
        loaded.close()
    zoo.write_tokenizer(target)


def _write_facts(path: Path, facts: list[tuple[str, zoo.ZooModel, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("name", "family", "kind", "parameters_b", "tokens_b", "date", "exposure"))
        for name, m, seen in facts:
            size, tokens = f"{m.parameters / 1e9:.9f}", f"{m.tokens / 1e9:.9f}"
            table.writerow((name, m.family, "base", size, tokens, m.date, seen))
    return path
