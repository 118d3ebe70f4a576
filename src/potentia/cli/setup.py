"""Before a study: ``init`` writes its file, ``demo`` and ``zoo`` bring models, ``doctor`` looks at the machine."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

import potentia
from potentia.cli.app import app
from potentia.cli.options import STUDY, argument, command, flag, many, output
from potentia.cli.output import answer, console, dicts, errors, say
from potentia.errors import InputError, without_password
from potentia.values.findings import Table

FEW = 1_000  # documents of one's own; a tenth of fewer is a small test


@command(
    app,
    "init",
    output=argument("The study file to write.", "OUTPUT", Path, Path("study.yaml")),
    models=STUDY["models"],
    tasks=STUDY["tasks"],
    data=many("Your own data: files, a folder, or a dataset's name on the hub."),
    protocols=STUDY["protocols"],
    force=flag("--force", "Write over a file that is there."),
    quick=flag("--quick", "Small caps and one learning rate, for a try."),
)
def init(asked: Any) -> None:
    """Write a commented study file; what is not given is asked for on a terminal.

    Examples:
      potentia init study.yaml --models HuggingFaceTB/SmolLM2-135M EleutherAI/pythia-160m --tasks arc_easy openbookqa

      potentia init mine.yaml --models HuggingFaceTB/SmolLM2-135M --data my-questions.csv --quick
    """
    file, tasks, data = asked.output, asked.tasks or [], asked.data or []
    if file.exists() and not asked.force:
        raise InputError(f"{file} is there already", hint="give another name, or --force")
    models = asked.models or _ask("Models (hub names or folders, parted by spaces)", "--models")
    if not tasks and not data:
        told = _ask(
            "Tasks of the harness, or files of your own, parted by spaces", "--tasks or --data"
        )
        data = [name for name in told if Path(name).exists()]
        tasks = [name for name in told if name not in data]
    protocols = asked.protocols or ["direct", "train_before_test"]
    potentia.files.write_file(
        file, without_password(study_text(file, models, tasks, data, protocols, asked.quick))
    )
    written = f"{file} is written. See what it will cost, then run it:"
    lines = [f"  potentia {act} {shlex.quote(str(file))}" for act in ("plan", "run")]
    answer(asked.as_json, {"study": str(file)}, written, *lines)


def study_text(
    path: Path,
    models: list[str],
    tasks: list[str],
    data: list[str],
    protocols: list[str],
    quick: bool,
) -> str:
    """Return the study as a file with comments; it is one that can be read."""
    entries: list[Any] = [*tasks, *(_own(one) for one in data)]
    body: dict[str, Any] = {
        "name": path.stem,
        "models": models,
        "tasks": entries,
        "protocols": protocols,
    }
    more = [
        "# caps: {train: 50000, validation: 1000, test: 10000}",
        "# tuning: {recipe: fair}   # the same for all, its rate searched; or {recipe: paper}",
    ]
    if quick:
        body["caps"] = {"train": 400, "validation": 100, "test": 300}
        body["tuning"] = {"epochs": 2, "learning_rates": [1e-3]}
        more = [
            f"caps: {_yaml(body['caps'])}   # documents of each split at most, for a try",
            f"tuning: {_yaml(body['tuning'])}   # without it: five epochs or more, the rate searched",
        ]
    potentia.study.make_study(body)
    lines = [
        f"# potentia run {shlex.quote(str(path))}",
        "#",
        "# All fields of a study file and their defaults: docs/study.md. What is not written has its default.",
        f"name: {_yaml(path.stem)}",
        "models:            # hub names, folders, GGUF files; with facts: {name: …, parameters: 135e6, tokens: 2e12}",
        *(f"  - {_yaml(model)}" for model in models),
        "tasks:             # harness tasks by name, the same in another form (arc_easy:cloze), or your own data",
        *(f"  - {_yaml(entry)}" for entry in entries),
        f"protocols: {_yaml(protocols)}   # direct, few_shot:5, train_before_test, adjust",
        *more,
        "# selection: validation   # or tuned, or paper",
        "# store: potentia.db",
    ]
    return "\n".join(lines) + "\n"


def _own(given: str) -> dict[str, Any]:
    """Describe data of one's own: where it is, and which of its columns is what."""
    path = Path(given)
    if path.exists():
        own = potentia.tasks.OwnData(files=(given,))
        entry: dict[str, Any] = {"name": own.label, "file": given}
    elif given.count("/") == 1 and not path.suffix:
        own = potentia.tasks.OwnData(dataset=given)
        entry = {"name": own.label, "dataset": given}
    else:
        raise InputError(
            f"there is no {given}",
            hint="give a file, a folder, or a dataset of the hub as org/name",
        )
    columns = potentia.tasks.guess_columns(own)
    few = (own.documents_in_one_split() or FEW) < FEW
    return (
        entry | ({"columns": columns} if columns else {}) | ({"ratios": [6, 1, 3]} if few else {})
    )


def _ask(question: str, flag: str) -> list[str]:
    if not sys.stdin.isatty():
        raise InputError(
            f"{flag} is missing", hint=f"give {flag}, or run this on a terminal to be asked"
        )
    answer: str = typer.prompt(question)
    return answer.split()


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


@command(
    app,
    "demo",
    output=output("Where models, scores and report go.", Path("potentia-demo")),
    quick=flag("--quick", "Fewer models, tasks and epochs: about two minutes."),
)
def demo(asked: Any) -> None:
    """Fine-tune and test every embedded model on every embedded task, then show what that changes.

    The models are tiny and ours; which test each family trained for is planted, so the truth is known.
    Run it again and it is done at once.

    Example: potentia demo --quick
    """
    from potentia.cli.view import watch

    study = potentia.lab.demo_study(asked.output, quick=asked.quick)
    plan = potentia.run.plan_study(study)
    todo = sum(len(row.pending) for row in plan.rows)
    if todo and not asked.as_json:
        console.print(
            f"[bold]Potentia demo[/bold]: {len(plan.rows)} tiny models × {len(study.tasks)} tasks, as they are "
            f"and after the same fine-tuning: {todo} cells to compute on this CPU."
        )
    result = potentia.run.run_study(plan, workers=min(4, os.cpu_count() or 1), watch=watch)
    if result.interrupted:
        errors.print("[bold]Stopped.[/bold] Everything finished is saved.")
        again = (
            f"potentia demo -o {shlex.quote(str(asked.output))}{' --quick' if asked.quick else ''}"
        )
        say(f"To go on: {again}", to=errors)
        raise typer.Exit(130)
    report, found = asked.output / "report.html", None
    if result.computed or not report.exists():
        data = potentia.show.make_report(potentia.evidence.read(study.store, study=study.name))
        found, report = data.rankings, potentia.show.save_report(data, report)
    finding = potentia.lab.demo_findings(study, found)
    answer(
        asked.as_json,
        {**finding.to_dict(), "report": str(report), "failed": result.failed},
        *finding.tables(),
        "The effect is planted: each family of these models saw some test forms in pretraining and not others.",
        "It shows the mechanism at work; it is no evidence about real models.\n",
        f"Report: {report.resolve().as_uri()}",
        f"Live:   potentia serve {shlex.quote(str(study.store))}",
    )
    raise typer.Exit(result.exit_code)


@command(
    app,
    "zoo",
    folder=argument("Where models, tasks, facts and study files go.", "FOLDER", Path, Path("lab")),
)
def zoo(asked: Any) -> None:
    """Lay out the embedded models, benchmarks and ready studies, to try every method where the truth is planted.

    Families of these tiny models saw different test forms in pretraining; two have kept their checkpoints, four have
    an instruct version, seven differ in seed or data alone. Nothing is downloaded.

    Example: potentia zoo lab
    """
    made = potentia.lab.lay_out(asked.folder)
    told = {
        "folder": str(asked.folder),
        "models": made.models,
        "tasks": made.tasks,
        "facts": str(made.facts),
    }
    told |= {"store": str(made.store), "commands": made.commands()}
    counted = f"{made.models} models, {made.tasks} benchmarks, {made.facts.name} and {len(made.studies)} studies"
    lines = [f"{counted} in {asked.folder}", ""]
    for question, commands in made.commands().items():
        lines += [QUESTIONS[question], *(f"  {line}" for line in commands), ""]
    answer(
        asked.as_json,
        told,
        *lines,
        "What each of them found here, and what the truth is: docs/laboratory.md",
    )


QUESTIONS = {
    "adjust": "What is having seen a test's form worth, and does the same tuning for all take it away?",
    "checkpoints": "Do scores grow with pretraining?",
    "consistency": "Does the better base model become the better instruct model?",
    "robustness": "Does the data move a task more than the seed does?",
    "treatment": "Tune a random half on the test's form: does θ appear, and vanish when all are tuned?",
}


_PARTS = (
    "torch",
    "transformers",
    "peft",
    "datasets",
    "lm-eval",
    "accelerate",
    "safetensors",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "statsmodels",
    "pyarrow",
    "SQLAlchemy",
    "vl-convert-python",
    "math-verify",
    "typer",
)
# Extra → the modules it brings and what needs them.
_EXTRAS = {
    "web": (("fastapi", "uvicorn"), "the live board: potentia serve"),
    "ray": (("ray",), "rows on several machines: --executor ray"),
    "postgres": (("psycopg",), "stores on PostgreSQL"),
    "track": (("wandb", "mlflow", "tensorboard"), "metrics in W&B, MLflow or TensorBoard"),
    "gguf": (("gguf",), "models in GGUF files"),
}
_HUB_SECONDS = 3.0


@command(app, "doctor")
def doctor(asked: Any) -> None:
    """Print versions, device, cache folders, whether the hub answers, and what is missing.

    Example:
      potentia doctor
    """
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "potentia": potentia.__version__,
    }
    versions |= {part: _version(part) for part in _PARTS}
    device, hub, caches = _device(), _hub(), _caches()
    missing = dicts(("what", "needed for", "get it"), _missing(versions, device, hub))
    machine = [("kind", device["kind"]), ("cores", str(device["cores"]))]
    machine += [
        (f"gpu {i}", f"{gpu['name']}, {gpu['memory_gib']} GiB")
        for i, gpu in enumerate(device["gpus"])
    ]
    machine += [("problem", device["problem"])] if "problem" in device else []
    machine.append(("hub", f"{hub['endpoint']}: {hub['state']}"))
    places = [
        (c["use"], c["path"], "yes" if c["writable"] else "no", f"{c['free_gib']} GiB")
        for c in caches
    ]
    wanted = tuple(tuple(one.values()) for one in missing)
    answer(
        asked.as_json,
        {"versions": versions, "device": device, "caches": caches, "hub": hub, "missing": missing},
        Table(
            "Versions",
            ("part", "version"),
            tuple((part, found or "missing") for part, found in versions.items()),
        ),
        Table("Machine", ("what", "found"), tuple(machine)),
        Table("Folders", ("for", "path", "writable", "free"), tuple(places)),
        Table(
            "Missing" if wanted else "Nothing is missing",
            ("what", "needed for", "how to get it"),
            wanted,
        ),
    )
    raise typer.Exit(int(None in versions.values()))


def _version(part: str) -> str | None:
    try:
        return metadata.version(part)
    except metadata.PackageNotFoundError:
        return None


def _missing(
    versions: dict[str, str | None], device: dict[str, Any], hub: dict[str, Any]
) -> list[tuple[str, str, str]]:
    """Return what is missing, what it is needed for, and how to get it."""
    again = "pip install --upgrade potentia"
    wanted = [(part, "Potentia itself", again) for part, found in versions.items() if found is None]
    for extra, (modules, purpose) in _EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        wanted += (
            [(", ".join(absent), purpose, f"pip install 'potentia[{extra}]'")] if absent else []
        )
    if device["kind"] == "cpu":
        large = "models beyond a few hundred million parameters in good time"
        wanted.append(("a GPU", large, "a machine with CUDA and a torch built for it"))
    if hub["fix"]:
        wanted.append(("the hub", "models and benchmarks that are not on this disk", hub["fix"]))
    return wanted


def _device() -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "cpu", "cores": os.cpu_count(), "gpus": []}
    try:
        import torch
    except (ImportError, OSError) as error:
        return {**found, "problem": f"torch cannot be loaded: {error}"}
    found["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        found["kind"] = "cuda"
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            memory = round(facts.total_memory / 2**30, 1)
            found["gpus"].append(
                {
                    "name": facts.name,
                    "memory_gib": memory,
                    "bfloat16": torch.cuda.is_bf16_supported(),
                }
            )
    elif torch.backends.mps.is_available():
        found["kind"] = "mps"
    return found


def _caches() -> list[dict[str, Any]]:
    from datasets import config
    from huggingface_hub import constants

    rows = []
    for use, place in (
        ("models", constants.HF_HUB_CACHE),
        ("datasets", config.HF_DATASETS_CACHE),
        ("results", "."),
    ):
        path = Path(place).expanduser().absolute()
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        free = round(shutil.disk_usage(existing).free / 2**30, 1)
        rows.append((use, str(path), path.exists(), os.access(existing, os.W_OK), free))
    return dicts(("use", "path", "exists", "writable", "free_gib"), rows)


def _hub() -> dict[str, Any]:
    """Say whether the hub answers, and else what may help."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    local = "or work from local folders with --data-dir"
    state, fix = "reachable", f"check network and proxy (HTTPS_PROXY, HF_ENDPOINT), {local}"
    if constants.HF_HUB_OFFLINE:
        state, fix = "switched off (HF_HUB_OFFLINE)", f"unset HF_HUB_OFFLINE, {local}"
    else:
        try:
            request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
            urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()
        except urllib.error.HTTPError as error:
            state = state if error.code < 500 else f"answers with error {error.code}"
        except (OSError, ValueError) as error:
            state = f"not reachable ({getattr(error, 'reason', error)})"
    return {
        "endpoint": constants.ENDPOINT,
        "state": state,
        "fix": None if state == "reachable" else fix,
    }
