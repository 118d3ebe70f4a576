"""``demo`` brings models to try, ``doctor`` looks at the machine and at a model."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

import potentia
from potentia.cli.app import app
from potentia.cli.command import command
from potentia.cli.model_check import check_model
from potentia.cli.option_groups import Device, OptionalText, OutputOptions
from potentia.cli.output import console, error_console, print_answer, print_lines
from potentia.extras import Extra, find_missing_packages, is_installed, require_extra
from potentia.hub import check_model_folder
from potentia.values.findings import Table

# --- demo and zoo -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DemoOptions(OutputOptions):
    """The options of ``potentia demo``."""

    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where models, scores and report go."
        ),
    ] = Path("potentia-demo")
    full: Annotated[
        bool, typer.Option("--full", help="12 models on 11 tasks, 264 results: four times as long.")
    ] = False
    zoo: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead: lay out all models, tasks and ready studies here, to try every method.",
        ),
    ] = None

    @property
    def usual_duration(self) -> str:
        """How long it takes, measured on two cores of a laptop's speed."""
        return "two to four minutes" if self.full else "half a minute to a minute"

    def command_line(self) -> str:
        """Return the command that goes on with this demo."""
        words = f"potentia demo -o {shlex.quote(str(self.output))}"
        return f"{words} --full" if self.full else words


@command(app, "demo", DemoOptions, needs=Extra.RUN)
def demo(options: DemoOptions) -> None:
    """Fine-tune and test eight of the built-in models on six of the built-in tasks, then show what that changes.

    The models are tiny and come with Potentia. Which test each family trained for is planted, so the truth is known.
    Run it again and it is done at once.

    Examples:
      potentia demo

      potentia demo --zoo lab
    """
    from potentia.cli.progress_view import watch_study

    if options.zoo is not None:
        _lay_out_zoo(options.zoo, options.as_json)
        return
    study = potentia.lab.demo_study(options.output, full=options.full)
    study_plan = potentia.run.plan_study(study)
    pending_cells = sum(len(row.pending) for row in study_plan.rows)
    if pending_cells and not options.as_json:
        console.print(
            f"[bold]Potentia demo[/bold]: {len(study_plan.rows)} tiny models × {len(study.tasks)} tasks, before "
            f"and after the same fine-tuning: {pending_cells} results to compute on this CPU, "
            f"{options.usual_duration} on two cores."
        )
    workers = min(4, os.cpu_count() or 1)
    result = potentia.run.run_study(study_plan, workers=workers, watch=watch_study)
    if result.interrupted:
        error_console.print("[bold]Stopped.[/bold] Everything finished is saved.")
        print_lines(f"To go on: {options.command_line()}", to=error_console)
        raise typer.Exit(130)
    report_file = options.output / "report.html"
    rankings = None
    if result.computed or not report_file.exists():
        evidence = potentia.evidence.read(study.store, study=study_plan.key)
        report = potentia.show.make_report(evidence)
        rankings = report.rankings
        report_file = potentia.show.save_report(report, report_file)
    finding = potentia.lab.demo_findings(study, rankings, study_key=study_plan.key)
    print_answer(
        options.as_json,
        {
            **finding.to_dict(),
            "report": str(report_file),
            "computed": result.computed,
            "failed": result.failed,
        },
        *finding.tables(),
        f"{study.note}\n",
        f"Report: {report_file.resolve().as_uri()}",
        f"Live:   potentia serve {shlex.quote(str(study.store))}",
    )
    raise typer.Exit(result.exit_code)


ZOO_QUESTIONS = {
    "adjust": "How much is it worth to have seen a test's form, and does the same fine-tuning for all remove that?",
    "answers": "What do answers show beyond accuracy, and which task is answered without its question?",
    "checkpoints": "Do scores grow with pretraining?",
    "consistency": "Does the better base model become the better instruct model?",
    "robustness": "Does the data move a task more than the seed does?",
    "treatment": "Tune a random half on the test's form: does θ appear, and vanish when all are tuned?",
}


def _lay_out_zoo(folder: Path, as_json: bool) -> None:
    """Lay out the built-in models, benchmarks and ready studies, to try every method where the truth is planted.

    Families of these tiny models saw different test forms in pretraining; two have kept their checkpoints, four have
    an instruct version, seven differ in seed or data alone. Nothing is downloaded.
    """
    laboratory = potentia.lab.lay_out_laboratory(folder)
    commands_by_question = laboratory.commands()
    answer = {
        "folder": str(folder),
        "models": laboratory.models,
        "tasks": laboratory.tasks,
        "facts": str(laboratory.facts),
        "store": str(laboratory.store),
        "commands": commands_by_question,
    }
    contents = (
        f"{laboratory.models} models, {laboratory.tasks} benchmarks, {laboratory.facts.name}"
        f" and {len(laboratory.studies)} studies"
    )
    lines = [f"{contents} in {folder}", ""]
    for question, commands in commands_by_question.items():
        lines.append(ZOO_QUESTIONS[question])
        lines += [f"  {line}" for line in commands]
        lines.append("")
    lines.append("What each of them found here, and what the truth is: docs/laboratory.md")
    print_answer(as_json, answer, *lines)


# --- doctor -----------------------------------------------------------------------------------------------------------

_CORE_PACKAGES = ("numpy", "scipy", "SQLAlchemy", "pydantic", "jinja2", "fastapi", "typer")
_RUN_PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "datasets",
    "lm-eval",
    "accelerate",
    "safetensors",
    "math-verify",
)
_OTHER_PACKAGES = ("pandas", "pyarrow", "scikit-learn", "vl-convert-python")
_HUB_SECONDS = 3.0


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    name: str
    memory_gib: float
    bfloat16: bool


@dataclass
class MachineState:
    """What models would run on here."""

    kind: str = "cpu"
    cores: int | None = field(default_factory=os.cpu_count)
    gpus: list[Gpu] = field(default_factory=list)
    apple_gpu: str | None = None
    threads: int | None = None
    problem: str | None = None

    def table(self, hub_state: HubState) -> Table:
        """Return the machine, and whether the hub answers, as a table."""
        table_rows = [("kind", self.kind), ("cores", str(self.cores))]
        for gpu_number, gpu in enumerate(self.gpus):
            table_rows.append((f"gpu {gpu_number}", f"{gpu.name}, {gpu.memory_gib} GiB"))
        if self.apple_gpu is not None:
            table_rows.append(("Apple GPU", self.apple_gpu))
        if self.problem is not None:
            table_rows.append(("problem", self.problem))
        table_rows.append(("hub", f"{hub_state.endpoint}: {hub_state.state}"))
        return Table("Machine", ("what", "found"), table_rows)

    def to_dict(self) -> dict[str, Any]:
        """Return what is known of the machine."""
        return {
            field_name: value for field_name, value in asdict(self).items() if value is not None
        }


@dataclass(frozen=True)
class CacheFolder:
    """A folder that Potentia or a library writes to."""

    use: str
    path: str
    exists: bool
    writable: bool
    free_gib: float


@dataclass(frozen=True)
class HubState:
    """Whether the hub answers, and else what may help."""

    endpoint: str
    state: str
    fix: str | None


@dataclass(frozen=True)
class MissingPart:
    """Something that is not here, what it is needed for, and how to get it."""

    what: str
    needed_for: str
    get_it: str


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(OutputOptions):
    """The options of ``potentia doctor``."""

    model: Annotated[
        OptionalText,
        typer.Argument(metavar="[MODEL]", help="A folder, a GGUF file or a name of the Hub."),
    ] = None
    device: Device = None
    dtype: Annotated[
        OptionalText, typer.Option(metavar="NAME", help="auto, float32, bfloat16, float16.")
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that the model brings.")
    ] = False


@command(app, "doctor", DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Look at the machine: versions, device, folders, what is missing; with MODEL, whether it computes correctly.

    A model's scores, texts, gradients and updates are compared with plain transformers' and PEFT's; the exit code is 1
    where something is off by more than rounding.

    Examples:
      potentia doctor

      potentia doctor ./my-model --dtype bfloat16
    """
    if options.model is not None:
        require_extra(Extra.RUN, "checking a model")
        check_model_folder(options.model)
        is_right = check_model(
            options.model,
            device=options.device,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
            as_json=options.as_json,
        )
        raise typer.Exit(int(not is_right))
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "potentia": potentia.__version__,
    }
    for package in (*_CORE_PACKAGES, *_RUN_PACKAGES, *_OTHER_PACKAGES):
        versions[package] = _find_version(package)
    machine = _inspect_machine()
    hub_state = _ask_hub()
    caches = _inspect_caches()
    missing = _find_missing_parts(versions, machine, hub_state)
    version_rows = [(package, version or "missing") for package, version in versions.items()]
    folder_rows = []
    for cache in caches:
        writable = "yes" if cache.writable else "no"
        folder_rows.append((cache.use, cache.path, writable, f"{cache.free_gib} GiB"))
    missing_rows = [
        (missing_part.what, missing_part.needed_for, missing_part.get_it)
        for missing_part in missing
    ]
    missing_facts = []
    for part in missing:
        facts = {"what": part.what, "needed for": part.needed_for, "get it": part.get_it}
        missing_facts.append(facts)
    answer = {
        "versions": versions,
        "device": machine.to_dict(),
        "caches": [asdict(cache) for cache in caches],
        "hub": asdict(hub_state),
        "missing": missing_facts,
    }
    print_answer(
        options.as_json,
        answer,
        Table("Versions", ("part", "version"), version_rows),
        machine.table(hub_state),
        Table("Folders", ("for", "path", "writable", "free"), folder_rows),
        Table(
            "Missing" if missing else "Nothing is missing",
            ("what", "needed for", "how to get it"),
            missing_rows,
        ),
    )
    raise typer.Exit(int(any(versions[package] is None for package in _CORE_PACKAGES)))


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _find_missing_parts(
    versions: dict[str, str | None], machine: MachineState, hub_state: HubState
) -> list[MissingPart]:
    """Return what is missing, what it is needed for, and how to get it."""
    missing = [
        MissingPart(package, "Potentia itself", "pip install --upgrade potentia")
        for package in _CORE_PACKAGES
        if versions[package] is None
    ]
    for extra in Extra:
        packages = find_missing_packages(extra)
        if packages:
            missing_part = MissingPart(", ".join(packages), extra.purpose, extra.install_command)
            missing.append(missing_part)
    if machine.kind == "cpu":
        missing.append(
            MissingPart(
                "a GPU",
                "models beyond a few hundred million parameters in good time",
                "a machine with CUDA and a torch built for it",
            )
        )
    if hub_state.fix is not None:
        missing.append(
            MissingPart("the hub", "models and benchmarks that are not on this disk", hub_state.fix)
        )
    return missing


def _inspect_machine() -> MachineState:
    """Return the device that models would run on."""
    machine = MachineState()
    if not is_installed("torch"):
        machine.problem = "torch is not installed: models cannot be run"
        return machine
    try:
        import torch
    except (ImportError, OSError) as error:
        machine.problem = f"torch cannot be loaded: {error}"
        return machine
    machine.threads = torch.get_num_threads()
    if torch.cuda.is_available():
        machine.kind = "cuda"
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory_gib = round(properties.total_memory / 2**30, 1)
            machine.gpus.append(Gpu(properties.name, memory_gib, torch.cuda.is_bf16_supported()))
    elif torch.backends.mps.is_available():
        machine.apple_gpu = "taken with --device mps alone, which has not been tried"
    return machine


def _find_hub_cache() -> Path:
    """Return where the hub's library keeps models, by its variables: importing it would cost seconds."""
    hub_home = _find_hub_home()
    return Path(os.environ.get("HF_HUB_CACHE") or hub_home / "hub")


def _find_dataset_cache() -> Path:
    hub_home = _find_hub_home()
    return Path(os.environ.get("HF_DATASETS_CACHE") or hub_home / "datasets")


def _find_hub_home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("HF_HOME") or cache / "huggingface")


def _inspect_caches() -> list[CacheFolder]:
    """Return the folders of models, datasets and results, with the disk that is free there."""
    folders = {"models": str(_find_hub_cache()), "datasets": str(_find_dataset_cache())}
    folders["results"] = "."
    caches = []
    for cache_name, folder in folders.items():
        cache_folder = Path(folder).expanduser().absolute()
        existing = next(
            parent for parent in (cache_folder, *cache_folder.parents) if parent.exists()
        )
        free_gib = round(shutil.disk_usage(existing).free / 2**30, 1)
        caches.append(
            CacheFolder(
                use=cache_name,
                path=str(cache_folder),
                exists=cache_folder.exists(),
                writable=os.access(existing, os.W_OK),
                free_gib=free_gib,
            )
        )
    return caches


def _ask_hub() -> HubState:
    """Return whether the hub answers, and else what may help."""
    import urllib.error
    import urllib.request

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    local = "or work from local folders with --data-dir"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return HubState(endpoint, "switched off (HF_HUB_OFFLINE)", f"unset HF_HUB_OFFLINE, {local}")
    fix = f"check network and proxy (HTTPS_PROXY, HF_ENDPOINT), {local}"
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            return HubState(endpoint, f"answers with error {error.code}", fix)
    except (OSError, ValueError) as error:
        return HubState(endpoint, f"not reachable ({getattr(error, 'reason', error)})", fix)
    return HubState(endpoint, "reachable", None)
