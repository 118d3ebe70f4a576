"""The laboratory: the zoo laid out with study files, so that methods can be tried where the truth is planted.

Families of zoo models saw different benchmark forms in pretraining, checkpoints of two runs are kept, four models have
an instruct version, and seven small models differ in seed or data alone. Each study file asks one question about them;
all write to one store, so a cell that two of them need is computed once.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from potentia import zoo
from potentia.files import write_if_changed
from potentia.lab.demo import model_spec, zoo_tuning
from potentia.study import make_study

# Two benchmarks of each family that saw any: four options each, recall of single facts (``both``: of two).
BENCHMARKS = ("ask", "table", "record", "both", "beside", "fix")
TRACKED = ("ask", "table", "record", "beside")  # over checkpoints, and for base against instruct
PROMPT_FORMS = ("blank_ppl", "option_ppl")
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
        """Return the commands of every experiment, to be pasted."""
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
        studies = lab_studies()
        runs: dict[str, list[str]] = {}
        for study_name, path in self.studies.items():
            runs.setdefault(studies[study_name].experiment, []).append(f"potentia run {path}")
        return {
            experiment: (*runs[experiment], analysis) for experiment, analysis in analyses.items()
        }


def lay_out_laboratory(folder: Path) -> Laboratory:
    """Write models, benchmarks, facts and study files below ``folder``; what is there already stays valid."""
    folder = Path(folder)
    models = zoo.write_model_folders(folder / "models")
    _lay_out_runs(folder)
    tasks = zoo.write_task_files(folder / "tasks")
    tasks[GIVEAWAY] = zoo.write_skewed_task(folder / "tasks", GIVEAWAY, gives_away=True)
    _write_auxiliary(folder / "tasks", tasks)
    facts = _write_facts(folder / "facts.csv")
    store = (folder / "potentia.db").resolve()
    study_files = {}
    for study_name, study in lab_studies().items():
        study_file = folder / f"{study_name}.yaml"
        settings = {"name": study_name, **study.body, "store": str(store)}
        make_study(settings)  # a study that is written is one that can be read
        study_text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=110)
        write_if_changed(
            study_file, f"# potentia run {study_file}\n#\n# {study.question}\n{study_text}"
        )
        study_files[study_name] = study_file
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
    """A study file: the experiment that it is part of, and its body, paths relative to the laboratory's folder."""

    experiment: str  # an analysis of ``Laboratory.commands``, which may need two studies
    question: str
    body: dict[str, object]


def lab_studies() -> dict[str, LabStudy]:
    """Return every study of the laboratory by name."""
    base_models = zoo.models("base")
    unexposed_models = [model for model in base_models if SHOWN not in model.exposure]
    paired_models = [model for model in zoo.models("base", "instruct") if model.family == "aster"]
    robustness_models = [*base_models, *zoo.models("lab")]
    return {
        "adjust": LabStudy(
            "adjust",
            "Training on the test task: every family saw some of these forms, and tuning on all of them makes it even.",
            {"models": _model_specs(base_models), **_adjusted_settings()},
        ),
        "treatment": LabStudy(
            "treatment",
            f"The treatment experiment: half of these models are tuned on {SHOWN} first, then all are adjusted.",
            {"models": _model_specs(unexposed_models), **_treatment_settings()},
        ),
        "checkpoints-direct": LabStudy(
            "checkpoints",
            "Stability over pretraining: the benchmarks' own prompts and BOSE's forms, as the checkpoints are.",
            {"models": _pretraining_runs(), **_direct_settings()},
        ),
        "checkpoints-tuned": LabStudy(
            "checkpoints",
            "Stability over pretraining: train-before-test at every checkpoint.",
            {"models": _pretraining_runs(), **_tuned_settings()},
        ),
        "answers": LabStudy(
            "answers",
            "Answers beyond accuracy: bits per byte, blind twins (giveaway has a planted artefact), pass@k, two runs.",
            {"models": _pretraining_runs(), **_answer_settings()},
        ),
        "consistency-direct": LabStudy(
            "consistency",
            "Base models and their instruct versions, by the benchmarks' own prompts and BOSE's forms.",
            {"models": _model_specs(paired_models), **_direct_settings()},
        ),
        "consistency-tuned": LabStudy(
            "consistency",
            "Base models and their instruct versions, train-before-test.",
            {"models": _model_specs(paired_models), **_tuned_settings()},
        ),
        "robustness": LabStudy(
            "robustness",
            "Proxy tasks: models that differ in seed or data alone, beside the base models.",
            {"models": _model_specs(robustness_models), **_adjusted_settings()},
        ),
    }


def _model_specs(models: Iterable[zoo.ZooModel]) -> list[dict[str, object]]:
    """Return the models as a study names them."""
    return [model_spec(model) for model in models]


def _adjusted_settings() -> dict[str, object]:
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
        "tuning": _full_tuning(learning_rate=2e-3),
        "selection": "tuned",  # validation would keep the untuned model just where it had seen the form
        "device": "cpu",
    }


def _full_tuning(learning_rate: float) -> dict[str, object]:
    """Return a recipe for full fine-tuning, as in "Training on the test task".

    It removes the advantage of having seen a prompt form in fewer steps than LoRA.
    """
    return {
        "method": "full",
        "epochs": 5,
        "learning_rates": [learning_rate],
        "batch": 32,
        "loss": "completion",
    }


def _treatment_settings() -> dict[str, object]:
    """Return the adjusted study of one form that half of the models are exposed to before."""
    exposure = {"data": [SHOWN], "who": "half", "tuning": _full_tuning(learning_rate=1e-3)}
    return {**_adjusted_settings(), "tasks": _task_specs([SHOWN]), "treat": exposure}


def _tuned_settings() -> dict[str, object]:
    """Return a study by train-before-test."""
    return {
        "tasks": _task_specs(TRACKED),
        "protocols": ["train_before_test"],
        "caps": CAPS,
        "device": "cpu",
        "tuning": zoo_tuning(),
    }


def _answer_settings() -> dict[str, object]:
    """Return a study whose tasks have blind twins, one of them with an artefact, and one with sampled answers."""
    choice_tasks = [
        {"name": task_name, "file": f"tasks/{task_name}.yaml", "blind": True}
        for task_name in ("ask", GIVEAWAY)
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


def _direct_settings() -> dict[str, object]:
    """Return a study of the models as they are, by the benchmarks' own prompts and in other prompt forms."""
    return {
        "tasks": _task_specs(TRACKED, PROMPT_FORMS),
        "protocols": ["direct"],
        "caps": CAPS,
        "device": "cpu",
    }


def _task_specs(task_names: Iterable[str], forms: Sequence[str] = ()) -> list[dict[str, str]]:
    specs = []
    for task_name in task_names:
        for suffix in ("", *(f":{form}" for form in forms)):
            specs.append({"name": task_name + suffix, "file": f"tasks/{task_name}.yaml{suffix}"})
    return specs


def _pretraining_runs() -> list[dict[str, object]]:
    """Return the models of the two pretraining runs, each with its checkpoints; the final model is the last of them."""
    runs = []
    for run_models in _group_checkpoints().values():
        specs = [
            {"step": model.steps, "path": f"models/{model.name}", "tokens": model.tokens}
            for model in run_models
        ]
        runs.append({**model_spec(run_models[-1]), "checkpoints": specs})
    return runs


def _group_checkpoints() -> dict[str, list[zoo.ZooModel]]:
    """Return the checkpoints of every pretraining run by its name, the final model last."""
    checkpoints = zoo.models("checkpoint")
    models_by_run: dict[str, list[zoo.ZooModel]] = {}
    for run_name in dict.fromkeys(str(model.base_model) for model in checkpoints):
        run_models = [model for model in checkpoints if model.base_model == run_name]
        models_by_run[run_name] = [*run_models, zoo.find_model(run_name)]
    return models_by_run


# --- the files -------------------------------------------------------------------------------------------------------


def _lay_out_runs(folder: Path) -> None:
    """Give each pretraining run a folder of its checkpoints, as trainers write them: ``runs/aster-159k/step390``."""
    for run_name, run_models in _group_checkpoints().items():
        for model in run_models:
            checkpoint = folder / "runs" / run_name / f"step{model.steps}"
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            if checkpoint.exists():
                continue
            try:
                checkpoint.symlink_to(Path("../../models") / model.name, target_is_directory=True)
            except OSError:  # this system, or this user, has no links
                shutil.copytree(folder / "models" / model.name, checkpoint)


def _write_auxiliary(folder: Path, tasks: Mapping[str, Path]) -> None:
    """Write the common tuning data: examples of all forms, about people of the train split."""
    files = {}
    (folder / AUXILIARY).mkdir(exist_ok=True)
    sizes = {"train": AUXILIARY_DOCUMENTS, "validation": 20, "test": 20}
    for split, example_count in sizes.items():
        lines: list[str] = []
        for benchmark in BENCHMARKS:
            lines += (
                (folder / benchmark / f"{split}.jsonl")
                .read_text("utf-8")
                .splitlines()[:example_count]
            )
        split_file = (folder / AUXILIARY / f"{split}.jsonl").resolve()
        write_if_changed(split_file, "\n".join(lines) + "\n")
        files[split] = str(split_file)
    definition = json.loads(tasks[BENCHMARKS[0]].read_text("utf-8"))
    definition |= {"task": f"zoo_{AUXILIARY}", "dataset_kwargs": {"data_files": files}}
    write_if_changed(folder / f"{AUXILIARY}.yaml", json.dumps(definition, indent=1) + "\n")


def _write_facts(facts_file: Path) -> Path:
    """Write what is known of models: what each is called here, and the forms that it has seen."""
    with facts_file.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, _FACT_COLUMNS)
        table.writeheader()
        for model in zoo.models():
            table.writerow(_facts_row(model))
    return facts_file


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
