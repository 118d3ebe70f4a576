"""The laboratory: the zoo laid out with study files, so that methods can be tried where the truth is planted.

Families of zoo models saw different benchmark forms in pretraining, checkpoints of two runs are kept, four models have
an instruct version, and seven small models differ in seed or data alone. Each study file asks one question about them;
all write to one store, so a cell that two of them need is computed once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from potentia import zoo
from potentia.files import write_if_changed
from potentia.lab.demo import model_spec, zoo_tuning
from potentia.study import make_study

# Two benchmarks of each family that saw any: four options each, recall of single facts (``both``: of two).
BENCHMARKS = ("ask", "table", "record", "both", "beside", "fix")
TRACKED = ("ask", "table", "record", "beside")  # over checkpoints, and for base against instruct
FORMS = ("blank_ppl", "option_ppl")
AUXILIARY = "auxiliary"
AUXILIARY_DOCUMENTS = 1000  # of each form: 940 steps of 32 in five epochs
ON_THE_WAY = (188, 564)  # steps after which all are scored too
GIVEAWAY = "giveaway"  # the task whose answers give themselves away, as ``ask`` otherwise
SHOWN = "ask"  # the form that the treatment experiment teaches half of the models that never saw it
_FACT_COLUMNS = (
    "name",
    "family",
    "kind",
    "parameters_b",
    "tokens_b",
    "date",
    "base_model",
    "exposure",
    "note",
)
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
        store = self.store
        lab_models = zoo.models("lab")
        mixes = " ".join(model.name for model in lab_models if model.mix != "ordinary")
        seeds = " ".join(model.name for model in lab_models if model.mix == "ordinary")
        test_task = f"potentia papers test-task {store} --group exposed --chance 0.25 --study"
        analyses = {
            "adjust": f"{test_task} adjust --facts {self.facts}",
            "treatment": f"{test_task} treatment",
            "checkpoints": f"potentia analyze checkpoints {store} --study checkpoints-direct checkpoints-tuned"
            " --baseline direct",
            "answers": f"potentia analyze answers {store} --study answers",
            "consistency": f"potentia analyze checkpoints {store} --study consistency-direct consistency-tuned"
            " --protocols direct train_before_test --baseline direct --instruct-by same",
            "robustness": f"potentia papers proxy {store} --study robustness --target both --protocol adjust"
            f" --data-group {mixes} --seed-group {seeds}",
        }
        runs: dict[str, list[str]] = {}
        for name, path in self.studies.items():
            question = name.split("-")[0]
            runs.setdefault(question, []).append(f"potentia run {path}")
        return {question: (*runs[question], analysis) for question, analysis in analyses.items()}


def lay_out_laboratory(folder: Path) -> Laboratory:
    """Write models, benchmarks, facts and study files below ``folder``; what is there already stays valid."""
    folder = Path(folder)
    models = zoo.write_model_folders(folder / "models")
    tasks = zoo.write_task_files(folder / "tasks")
    tasks[GIVEAWAY] = zoo.write_skewed_task(folder / "tasks", GIVEAWAY, gives_away=True)
    _write_auxiliary(folder / "tasks", tasks)
    facts = _write_facts(folder / "facts.csv")
    store = (folder / "potentia.db").resolve()
    study_files = {}
    for name, study in lab_studies().items():
        path = folder / f"{name}.yaml"
        body = {"name": name, **study.body, "store": str(store)}
        make_study(body)  # a study that is written is one that can be read
        text = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110)
        write_if_changed(path, f"# potentia run {path}\n#\n# {study.question}\n{text}")
        study_files[name] = path
    return Laboratory(
        folder=folder,
        models=len(models),
        tasks=len(tasks),
        facts=facts,
        store=folder / "potentia.db",
        studies=study_files,
    )


# --- the studies -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabStudy:
    """A study file: the question that it asks, and its body, paths relative to the laboratory's folder."""

    question: str
    body: dict[str, Any]


def lab_studies() -> dict[str, LabStudy]:
    """Return every study of the laboratory by name."""
    base_models = zoo.models("base")
    unexposed = [model for model in base_models if SHOWN not in model.exposure]
    aster_pairs = [m for m in zoo.models("base", "instruct") if m.family == "aster"]
    adjusted = _adjusted_settings()
    tuned = _tuned_settings()
    direct = _direct_settings()
    exposure = {
        "data": [SHOWN],
        "who": "half",
        "tuning": adjusted["tuning"] | {"learning_rates": [1e-3]},
    }
    return {
        "adjust": LabStudy(
            "Training on the test task: every family saw some of these forms, and tuning on all of them makes it even.",
            {"models": list(map(model_spec, base_models)), **adjusted},
        ),
        "treatment": LabStudy(
            f"The treatment experiment: half of these models are tuned on {SHOWN} first, then all are adjusted.",
            {
                "models": list(map(model_spec, unexposed)),
                **adjusted,
                "tasks": _task_specs([SHOWN]),
                "treat": exposure,
            },
        ),
        "checkpoints-direct": LabStudy(
            "Stability over pretraining: the benchmarks' own prompts and BOSE's forms, as the checkpoints are.",
            {"models": _pretraining_runs(), **direct},
        ),
        "checkpoints-tuned": LabStudy(
            "Stability over pretraining: train-before-test at every checkpoint.",
            {"models": _pretraining_runs(), **tuned},
        ),
        "answers": LabStudy(
            "Answers beyond accuracy: bits per byte, blind twins (giveaway has a planted artefact), pass@k, two runs.",
            {"models": _pretraining_runs(), **_answer_settings()},
        ),
        "consistency-direct": LabStudy(
            "Base models and their instruct versions, by the benchmarks' own prompts and BOSE's forms.",
            {"models": list(map(model_spec, aster_pairs)), **direct},
        ),
        "consistency-tuned": LabStudy(
            "Base models and their instruct versions, train-before-test.",
            {"models": list(map(model_spec, aster_pairs)), **tuned},
        ),
        "robustness": LabStudy(
            "Proxy tasks: models that differ in seed or data alone, beside the base models.",
            {"models": list(map(model_spec, (*base_models, *zoo.models("lab")))), **adjusted},
        ),
    }


def _adjusted_settings() -> dict[str, Any]:
    """Return a study that tunes every model on all forms, and scores it before and after."""
    return {
        "tasks": _task_specs(BENCHMARKS),
        "protocols": ["direct", "adjust"],
        "caps": CAPS,
        "adjust": {
            "data": f"tasks/{AUXILIARY}.yaml",
            "form": "own",
            "cap": len(BENCHMARKS) * AUXILIARY_DOCUMENTS,
            "at_steps": list(ON_THE_WAY),
        },
        # all weights, as the paper does: what a form is worth is gone sooner than with adapters
        "tuning": {
            "method": "full",
            "epochs": 5,
            "learning_rates": [2e-3],
            "batch": 32,
            "loss": "completion",
        },
        "selection": "tuned",  # validation would keep the untuned model just where it had seen the form
        "device": "cpu",
    }


def _tuned_settings() -> dict[str, Any]:
    """Return a study by train-before-test."""
    return {
        "tasks": _task_specs(TRACKED),
        "protocols": ["train_before_test"],
        "caps": CAPS,
        "device": "cpu",
        "tuning": zoo_tuning(),
    }


def _answer_settings() -> dict[str, Any]:
    """Return a study whose tasks have blind twins, one of them with an artefact, and one with sampled answers."""
    choice_tasks = [
        {"name": name, "file": f"tasks/{name}.yaml", "blind": True} for name in ("ask", GIVEAWAY)
    ]
    written_task = {
        "name": "call",
        "file": "tasks/call.yaml",
        "samples": {"count": 8, "temperature": 0.8},
    }
    return {
        "tasks": [*choice_tasks, written_task],
        "protocols": ["direct", "train_before_test"],
        "caps": {"train": 240, "validation": 100, "test": 200},
        "device": "cpu",
        "tuning": zoo_tuning(),
    }


def _direct_settings() -> dict[str, Any]:
    """Return a study of the models as they are, by the benchmarks' own prompts and other forms."""
    return {
        "tasks": _task_specs(TRACKED, FORMS),
        "protocols": ["direct"],
        "caps": CAPS,
        "device": "cpu",
    }


def _task_specs(names: Iterable[str], forms: Sequence[str] = ()) -> list[dict[str, str]]:
    specs = []
    for name in names:
        for suffix in ("", *(f":{form}" for form in forms)):
            specs.append({"name": name + suffix, "file": f"tasks/{name}.yaml{suffix}"})
    return specs


def _pretraining_runs() -> list[dict[str, Any]]:
    """Return the two pretraining runs, each with its kept checkpoints and its end."""
    checkpoints = zoo.models("checkpoint")
    runs = []
    for name in dict.fromkeys(model.base_model for model in checkpoints):
        final_model = zoo.model(name)
        states = [*(model for model in checkpoints if model.base_model == name), final_model]
        specs = [
            {"step": state.steps, "path": f"models/{state.name}", "tokens": state.tokens}
            for state in states
        ]
        runs.append({**model_spec(final_model), "checkpoints": specs})
    return runs


# --- the files -------------------------------------------------------------------------------------------------------


def _write_auxiliary(folder: Path, tasks: Mapping[str, Path]) -> None:
    """Write the common tuning data: examples of all forms, about people of the train split."""
    files = {}
    (folder / AUXILIARY).mkdir(exist_ok=True)
    sizes = {"train": AUXILIARY_DOCUMENTS, "validation": 20, "test": 20}
    for split, size in sizes.items():
        lines: list[str] = []
        for name in BENCHMARKS:
            lines += (folder / name / f"{split}.jsonl").read_text("utf-8").splitlines()[:size]
        file = (folder / AUXILIARY / f"{split}.jsonl").resolve()
        write_if_changed(file, "\n".join(lines) + "\n")
        files[split] = str(file)
    definition = json.loads(tasks[BENCHMARKS[0]].read_text("utf-8"))
    definition |= {"task": f"zoo_{AUXILIARY}", "dataset_kwargs": {"data_files": files}}
    write_if_changed(folder / f"{AUXILIARY}.yaml", json.dumps(definition, indent=1) + "\n")


def _write_facts(path: Path) -> Path:
    """Write what is known of models: what each is called here, and the forms that it has seen."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, _FACT_COLUMNS)
        table.writeheader()
        for model in zoo.models():
            table.writerow(_facts_row(model))
    return path


def _facts_row(model: zoo.ZooModel) -> dict[str, str]:
    is_checkpoint = model.kind == "checkpoint"
    return {
        "name": f"{model.base_model}@{model.steps}" if is_checkpoint else model.name,
        "family": model.family,
        "kind": "instruct" if model.kind == "instruct" else "base",
        "parameters_b": f"{model.parameters / 1e9:.9f}",
        "tokens_b": f"{model.tokens / 1e9:.9f}",
        "date": model.date,
        "base_model": "" if is_checkpoint else model.base_model,
        "exposure": ";".join(model.exposure),
        "note": f"knows {model.knowledge:.0%} of the test facts",
    }
