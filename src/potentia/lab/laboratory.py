"""The laboratory: the zoo laid out with study files, so that methods can be tried where the truth is planted.

Families of zoo models saw different benchmark forms in pretraining, checkpoints of two runs are kept, four models have
an instruct version, and seven small models differ in seed or data alone. Each study file asks one question about them;
all write to one store, so a cell that two of them need is computed once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
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
SHOWN = "ask"  # the form that the treatment experiment teaches half of the models that never saw it
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
        test_task = f"potentia analyze test-task {store} --exposed --chance 0.25 --study"
        ask = {
            "adjust": f"{test_task} adjust --facts {facts}",
            "treatment": f"{test_task} treatment",
            "checkpoints": f"potentia analyze checkpoints {store} --study checkpoints-direct checkpoints-tuned"
            " --baseline direct",
            "consistency": f"potentia analyze consistency {store} --study consistency-direct consistency-tuned"
            " --protocols direct train_before_test --baseline direct --instruct-by same",
            "robustness": f"potentia analyze proxy {store} --study robustness --target both --protocol adjust"
            f" --normalise feature --top 2 --data-group {mixes} --seed-group {seeds}",
        }
        files: dict[str, list[str]] = {}
        for name, path in self.studies.items():
            files.setdefault(name.split("-")[0], []).append(f"potentia run {path}")
        return {question: (*files[question], line) for question, line in ask.items()}


def lay_out_laboratory(folder: Path) -> Laboratory:
    """Write models, benchmarks, facts and study files below ``folder``; what is there already stays valid."""
    folder = Path(folder)
    models = zoo.write_model_folders(folder / "models")
    tasks = zoo.write_task_files(folder / "tasks")
    _write_auxiliary(folder / "tasks", tasks)
    facts = _write_facts(folder / "facts.csv")
    store = (folder / "potentia.db").resolve()
    written = {}
    for name, (why, body) in studies().items():
        written[name] = path = folder / f"{name}.yaml"
        body = {"name": name, **body, "store": str(store)}
        make_study(body)  # a study that is written is one that can be read
        text = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110)
        write_if_changed(path, f"# potentia run {path}\n#\n# {why}\n{text}")
    return Laboratory(folder, len(models), len(tasks), facts, folder / "potentia.db", written)


# --- the studies -----------------------------------------------------------------------------------------------------


def studies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return every study: its question and its body, paths relative to the laboratory's folder."""
    base, lab = zoo.models("base"), zoo.models("lab")
    pairs = [m for m in zoo.models("base", "instruct") if m.family == "aster"]
    adjusted: dict[str, Any] = {
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
    plain = {
        "tasks": _tasks(TRACKED),
        "protocols": ["train_before_test"],
        "caps": CAPS,
        "device": "cpu",
    }
    plain["tuning"] = zoo_tuning()
    forms = {
        "tasks": _tasks(TRACKED, FORMS),
        "protocols": ["direct"],
        "caps": CAPS,
        "device": "cpu",
    }
    return {
        "adjust": (
            "Training on the test task: every family saw some of these forms, and tuning on all of them makes it even.",
            {"models": [model_spec(m) for m in base], **adjusted},
        ),
        "treatment": (
            f"The treatment experiment: half of these models are tuned on {SHOWN} first, then all are adjusted.",
            {
                "models": [model_spec(m) for m in base if SHOWN not in m.exposure],
                **adjusted,
                "tasks": _tasks([SHOWN]),
                "treat": {
                    "data": [SHOWN],
                    "who": "half",
                    "tuning": adjusted["tuning"] | {"learning_rates": [1e-3]},
                },
            },
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
    return [
        {"name": name + suffix, "file": f"tasks/{name}.yaml{suffix}"}
        for name in names
        for suffix in suffixes
    ]


def _series() -> list[dict[str, Any]]:
    """Return the two pretraining runs, each with its kept checkpoints and its end."""
    runs = []
    for run in dict.fromkeys(m.base_model for m in zoo.models("checkpoint")):
        end = zoo.model(run)
        points = [*(m for m in zoo.models("checkpoint") if m.base_model == run), end]
        found = [{"step": m.steps, "path": f"models/{m.name}", "tokens": m.tokens} for m in points]
        runs.append({**model_spec(end), "checkpoints": found})
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
        write_if_changed(file, "\n".join(lines) + "\n")
        files[split] = str(file)
    definition = json.loads(tasks[BENCHMARKS[0]].read_text("utf-8"))
    definition |= {"task": f"zoo_{AUXILIARY}", "dataset_kwargs": {"data_files": files}}
    write_if_changed(folder / f"{AUXILIARY}.yaml", json.dumps(definition, indent=1) + "\n")


def _write_facts(path: Path) -> Path:
    """Write what is known of models: what each is called here, and the forms that it has seen."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            (
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
        )
        for m in zoo.models():
            kept = m.kind == "checkpoint"
            name, base = (f"{m.base_model}@{m.steps}", "") if kept else (m.name, m.base_model)
            kind = "instruct" if m.kind == "instruct" else "base"
            sizes = (f"{m.parameters / 1e9:.9f}", f"{m.tokens / 1e9:.9f}")
            note = f"knows {m.knowledge:.0%} of the test facts"
            table.writerow((name, m.family, kind, *sizes, m.date, base, ";".join(m.exposure), note))
    return path
