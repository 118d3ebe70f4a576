"""The laboratory: the zoo laid out with study files, so that methods can be tried where the truth is planted.

Families of zoo models saw different benchmark forms in pretraining, checkpoints of two runs are kept, four models have
an instruct version, and seven small models differ in seed or data alone. Each study file asks one question about them;
all write to one store, so a cell that two of them need is computed once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potentia import zoo
from potentia.analysis.test_task import Cohort, assign_half
from potentia.lab.demo import model_spec, recipe
from potentia.study import Tuning, make_study

# Two benchmarks of each family that saw any: four options each, recall of single facts (``both``: of two).
BENCHMARKS = ("ask", "table", "record", "both", "beside", "fix")
TRACKED = ("ask", "table", "record", "beside")  # over checkpoints, and for base against instruct
FORMS = ("blank_ppl", "option_ppl")
AUXILIARY = "auxiliary"
AUXILIARY_DOCUMENTS = 1000  # of each form: 940 steps of 32 in five epochs
ON_THE_WAY = (188, 564)  # steps after which all are scored too
CAPS = {"train": 500, "validation": 200, "test": 500}


@dataclass(frozen=True)
class Laboratory:
    """What lies in the folder, and what to run."""

    folder: Path
    models: int
    tasks: int
    facts: Path
    store: Path
    studies: dict[str, Path]

    def commands(self) -> dict[str, tuple[str, ...]]:
        """Return the commands of every question, to be pasted."""
        store, facts = self.store, self.facts
        mixes = " ".join(m.name for m in zoo.models("lab") if m.mix != "ordinary")
        seeds = " ".join(m.name for m in zoo.models("lab") if m.mix == "ordinary")
        ask = {
            "adjust": (f"potentia analyze test-task {store} --study adjust --facts {facts} --exposed --chance 0.25",),
            "checkpoints": (
                f"potentia analyze checkpoints {store} --study checkpoints-direct checkpoints-tuned --baseline direct",
            ),
            "consistency": (
                f"potentia analyze consistency {store} --study consistency-direct consistency-tuned"
                " --protocols direct train_before_test"
                " --baseline direct --instruct-by same",
            ),
            "robustness": (
                f"potentia analyze proxy {store} --study robustness --target both --protocol adjust"
                f" --normalise feature --top 2 --data-group {mixes} --seed-group {seeds}",
            ),
        }
        files: dict[str, list[str]] = {}
        for name, path in self.studies.items():
            files.setdefault(name.split("-")[0], []).append(f"potentia run {path}")
        return {question: (*files[question], *ask[question]) for question in ask}


def lay_out(folder: Path) -> Laboratory:
    """Write models, benchmarks, facts and study files below ``folder``; what is there already stays valid."""
    folder = Path(folder)
    models = zoo.model_folders(folder / "models")
    tasks = zoo.task_folder(folder / "tasks")
    _write_auxiliary(folder / "tasks", tasks)
    facts = folder / "facts.csv"
    names = (f"{m.base_model}@{m.steps}" if m.kind == "checkpoint" else m.name for m in zoo.models())
    write_facts(facts, ((name, m, m.exposure) for name, m in zip(names, zoo.models(), strict=True)))
    store = (folder / "potentia.db").resolve()
    written = {}
    for name, (why, body) in studies().items():
        path = folder / f"{name}.yaml"
        write_study(path, why, {"name": name, **body, "store": str(store)})
        written[name] = path
    return Laboratory(folder, len(models), len(tasks), facts, folder / "potentia.db", written)


# --- the studies -----------------------------------------------------------------------------------------------------


def studies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return every study: its question and its body, paths relative to the laboratory's folder."""
    base, lab = zoo.models("base"), zoo.models("lab")
    pairs = [m for m in zoo.models("base", "instruct") if m.family == "aster"]
    adjusted = {
        "tasks": _tasks(BENCHMARKS),
        "protocols": ["direct", "adjust"],
        "caps": CAPS,
        "adjust": {
            "data": f"tasks/{AUXILIARY}.yaml",
            "form": "own",
            "cap": len(BENCHMARKS) * AUXILIARY_DOCUMENTS,
            "at_steps": list(ON_THE_WAY),
        },
        # all weights, as the paper does: what a form is worth is gone sooner than with adapters
        "tuning": {"method": "full", "epochs": 5, "learning_rates": [2e-3], "batch": 32, "loss": "completion"},
        "selection": "tuned",  # validation would keep the untuned model just where it had seen the form
        "device": "cpu",
    }
    plain = {"tasks": _tasks(TRACKED), "protocols": ["train_before_test"], "caps": CAPS, "device": "cpu"}
    plain["tuning"] = recipe(learning_rates=(3e-3,))
    forms = {"tasks": _tasks(TRACKED, FORMS), "protocols": ["direct"], "caps": CAPS, "device": "cpu"}
    return {
        "adjust": (
            "Training on the test task: every family saw some of these forms, and tuning on all of them makes it even.",
            {"models": [model_spec(m) for m in base], **adjusted},
        ),
        "checkpoints-direct": (
            "Stability over pretraining: the benchmarks' own prompts and BOSE's forms, as the checkpoints are.",
            {"models": _series(), **forms},
        ),
        "checkpoints-tuned": (
            "Stability over pretraining: train-before-test at every checkpoint.",
            {"models": _series(), **plain},
        ),
        "consistency-direct": (
            "Base models and their instruct versions, by the benchmarks' own prompts and BOSE's forms.",
            {"models": [model_spec(m) for m in pairs], **forms},
        ),
        "consistency-tuned": (
            "Base models and their instruct versions, train-before-test.",
            {"models": [model_spec(m) for m in pairs], **plain},
        ),
        "robustness": (
            "Proxy tasks: models that differ in seed or data alone, beside the base models.",
            {"models": [model_spec(m) for m in (*base, *lab)], **adjusted},
        ),
    }


def _tasks(names: Iterable[str], forms: Iterable[str] = ()) -> list[dict[str, str]]:
    suffixes = ("", *(f":{form}" for form in forms))
    return [{"name": name + suffix, "file": f"tasks/{name}.yaml{suffix}"} for name in names for suffix in suffixes]


def _series() -> list[dict[str, Any]]:
    """Return the two pretraining runs, each with its kept checkpoints and its end."""
    runs = []
    for run in dict.fromkeys(m.base_model for m in zoo.models("checkpoint")):
        end = zoo.model(run)
        points = [*(m for m in zoo.models("checkpoint") if m.base_model == run), end]
        runs.append(
            {
                **model_spec(end),
                "checkpoints": [{"step": m.steps, "path": f"models/{m.name}", "tokens": m.tokens} for m in points],
            }
        )
    return runs


# --- the files -------------------------------------------------------------------------------------------------------


def _write_auxiliary(folder: Path, tasks: Mapping[str, Path]) -> None:
    """Write the common tuning data: examples of all forms, about people of the train split."""
    files = {}
    (folder / AUXILIARY).mkdir(exist_ok=True)
    for split, many in (("train", AUXILIARY_DOCUMENTS), ("validation", 20), ("test", 20)):
        lines = [
            line
            for name in BENCHMARKS
            for line in (folder / name / f"{split}.jsonl").read_text("utf-8").splitlines()[:many]
        ]
        file = (folder / AUXILIARY / f"{split}.jsonl").resolve()
        _keep(file, "\n".join(lines) + "\n")
        files[split] = str(file)
    definition = json.loads(tasks[BENCHMARKS[0]].read_text("utf-8"))
    definition |= {"task": f"zoo_{AUXILIARY}", "dataset_kwargs": {"data_files": files}}
    _keep(folder / f"{AUXILIARY}.yaml", json.dumps(definition, indent=1) + "\n")


def write_facts(path: Path, told: Iterable[tuple[str, zoo.ZooModel, Iterable[str]]]) -> Path:
    """Write what is known of models: what each is called here, and the forms that it has seen."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("name", "family", "kind", "parameters_b", "tokens_b", "date", "base_model", "exposure", "note"))
        for name, m, seen in told:
            kind, base = (
                ("instruct" if m.kind == "instruct" else "base"),
                "" if m.kind == "checkpoint" else m.base_model,
            )
            sizes = (f"{m.parameters / 1e9:.9f}", f"{m.tokens / 1e9:.9f}")
            note = f"knows {m.knowledge:.0%} of the test facts"
            table.writerow((name, m.family, kind, *sizes, m.date, base, ";".join(seen), note))
    return path


def write_study(path: Path, why: str, body: dict[str, Any]) -> None:
    """Write a study file that opens with its command and its question."""
    import yaml

    make_study(body)  # a study that is written is one that can be read
    text = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110)
    _keep(path, f"# potentia run {path}\n#\n# {why}\n{text}")


def _keep(path: Path, text: str) -> None:
    """Write only what changed, so that dataset caches keyed by time of change stay valid."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


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
        facts.append((spec["name"], model, [TASK] if is_treated else []))
    body = studies()["adjust"][1] | {"models": specs}
    body["tasks"] = [task for task in body["tasks"] if task["name"] == TASK]
    path = folder / "treatment.yaml"
    why = f"The treatment experiment: half of these models were tuned on the form of {TASK}, then all are adjusted."
    write_study(path, why, {"name": "treatment", **body, "store": str((folder / "potentia.db").resolve())})
    return TreatmentLayout(
        path,
        write_facts(folder / "treatment.csv", facts),
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
            trainer.tune(encoded, schedule(RECIPE, RECIPE.learning_rates[0]), seed=seed)
            target.mkdir(parents=True, exist_ok=True)
            trainer.save(target)
    finally:
        loaded.close()
    zoo.write_tokenizer(target)
