"""The name of a model that a result file knows only by a path: the nearest folder that tells which model it is.

Files called ``MODEL-TASK.json`` name their model a second time. That name counts where the path tells no model from
another, and it joins two paths of one model in one folder of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Folders that many models have: what tools call the place of the weights, not the model.
_COMMON_FOLDERS = frozenset(
    {
        "adapter",
        "base",
        "best",
        "checkpoint",
        "checkpoints",
        "final",
        "hf",
        "huggingface",
        "last",
        "latest",
        "main",
        "merged",
        "model",
        "models",
        "output",
        "outputs",
        "pretrained",
        "snapshot",
        "snapshots",
        "weights",
    }
)
_REVISION = re.compile(r"[0-9a-f]{7,64}")  # a commit, as in the hub's cache
_STEP = re.compile(r"(?:checkpoint|global_step|step|iter)[-_]?(\d+)")
_PLACES = frozenset({"", ".", "..", "~"})  # where a path begins
_HUB_CACHE = "models--"  # models--google--gemma-7b


@dataclass(frozen=True)
class FileNaming:
    """What one result file says of its model: the path of the weights, and MODEL of ``MODEL-TASK.json``."""

    file: Path
    weights_path: str
    model_in_file_name: str  # empty where the file has another form of name

    @property
    def model(self) -> str:
        """The model's name by the path; by the file's name where the path tells nothing."""
        if self.model_in_file_name and not _is_telling(self.weights_path):
            return self.model_in_file_name
        return name_model_by_path(self.weights_path)

    @property
    def ends_with_common_folder(self) -> bool:
        """Whether the path goes on below the last folder that tells a model."""
        folders, _ = _strip_common_folders(self.weights_path)
        return _is_path(self.weights_path) and len(folders) < len(_list_folders(self.weights_path))

    @property
    def folder_of_model(self) -> str:
        """The folder that the model's own folder lies in."""
        return self.model.rpartition("/")[0]

    @property
    def is_called_alike(self) -> bool:
        """Whether the last telling folder of the path is the model of the file's name."""
        is_path = _is_path(self.weights_path)
        return is_path and self.model.rpartition("/")[2] == self.model_in_file_name


@dataclass(frozen=True)
class ModelNames:
    """The names of the models of some files, and what a reader must know of them."""

    names: Mapping[Path, str]  # by file; files whose path tells their model are absent
    notes: tuple[str, ...]


def name_model_by_path(path: str) -> str:
    """Return a path without the folders at its end that do not tell one model from another.

    ``/fast/gemma-7b/snapshots/model/`` is ``/fast/gemma-7b``; a step stays, as in ``/runs/gemma-7b@1000``; a folder
    of the hub's cache is the repository. A name that is no path stays as it is.
    """
    if not _is_path(path):
        return path
    repository = _find_hub_repository(path)
    if repository is not None:
        return repository
    folders, step = _strip_common_folders(path)
    if not folders:
        return path
    start = "/" if path.startswith("/") else ""
    return f"{start}{'/'.join(folders)}{step}"


def find_model_in_file_name(file: Path, tasks: Iterable[str]) -> str:
    """Return MODEL of a file called ``MODEL-TASK.json``, TASK being one of its results; else an empty string."""
    ends = [f"-{task}" for task in tasks if file.stem.endswith(f"-{task}")]
    return file.stem.removesuffix(max(ends, key=len)) if ends else ""


def choose_model_names(namings: Sequence[FileNaming]) -> ModelNames:
    """Return the names that the files of each folder give to their models together, where the paths alone mislead."""
    namings_by_folder: dict[Path, list[FileNaming]] = {}
    for naming in namings:
        if naming.model_in_file_name:
            namings_by_folder.setdefault(naming.file.parent, []).append(naming)
    names: dict[Path, str] = {}
    notes: list[str] = []
    for folder, namings_of_folder in namings_by_folder.items():
        for chosen in (
            _join_paths_of_models(namings_of_folder, folder),
            _divide_shared_paths(namings_of_folder, folder),
        ):
            names.update(chosen.names)
            notes += chosen.notes
    return ModelNames(names, tuple(notes))


def _join_paths_of_models(namings: Sequence[FileNaming], folder: Path) -> ModelNames:
    """Give one name to paths that end with the same model, as the names of the files say too.

    Of ``/fast/models/gemma-7b`` and ``/fast/gemma-7b`` the one counts that lies where most other models lie.
    """
    models_by_place = Counter(naming.folder_of_model for naming in namings)
    namings_by_model: dict[str, list[FileNaming]] = {}
    for naming in namings:
        if naming.is_called_alike:
            namings_by_model.setdefault(naming.model_in_file_name, []).append(naming)
    names = {}
    notes = []
    for model, namings_of_model in namings_by_model.items():
        usual = max(namings_of_model, key=lambda naming: models_by_place[naming.folder_of_model])
        other_paths = dict.fromkeys(naming.model for naming in namings_of_model)
        del other_paths[usual.model]
        if other_paths:
            names.update({naming.file: usual.model for naming in namings_of_model})
            notes += [
                f"{path} counts as {usual.model}: the files of {folder} call both {model}"
                for path in other_paths
            ]
    return ModelNames(names, tuple(notes))


def _divide_shared_paths(namings: Sequence[FileNaming], folder: Path) -> ModelNames:
    """Name models by their files where several have one path, which ends with a folder such as ``latest``."""
    namings_by_path: dict[str, list[FileNaming]] = {}
    for naming in namings:
        if naming.ends_with_common_folder and not naming.is_called_alike:
            namings_by_path.setdefault(naming.model, []).append(naming)
    names = {}
    notes = []
    for path, namings_of_path in namings_by_path.items():
        model_by_file = {naming.file: naming.model_in_file_name for naming in namings_of_path}
        if len(set(model_by_file.values())) > 1:
            names.update(model_by_file)
            notes.append(
                f"models of {folder} are called as its files are: {path} is the path of several"
            )
    return ModelNames(names, tuple(notes))


def _find_hub_repository(path: str) -> str | None:
    """Return the repository whose folder of the hub's cache a path leads through."""
    for folder in path.split("/"):
        if folder.startswith(_HUB_CACHE):
            return folder.removeprefix(_HUB_CACHE).replace("--", "/")
    return None


def _strip_common_folders(path: str) -> tuple[list[str], str]:
    """Return the folders of a path up to the last that tells a model, and the step behind it (``@1000``)."""
    folders = _list_folders(path)
    step = ""
    while folders and not _tells_model(folders[-1]):
        step_folder = _STEP.fullmatch(folders[-1].casefold())
        if step_folder is not None and not step:
            step = f"@{step_folder[1]}"
        folders.pop()
    return folders, step


def _list_folders(path: str) -> list[str]:
    return [folder for folder in path.split("/") if folder]


def _is_telling(path: str) -> bool:
    """Whether a path tells one model from another: ``/fast/snapshots/model/`` leads to no folder of a model."""
    if not _is_path(path) or _find_hub_repository(path) is not None:
        return True
    telling_folders, _ = _strip_common_folders(path)
    return len(telling_folders) > 1 or telling_folders == _list_folders(path)


def _is_path(model_name: str) -> bool:
    """Whether a name is a path of the file system: a repository of the hub has at most one slash inside."""
    return model_name.startswith(("/", "./", "../", "~")) or model_name.rstrip("/").count("/") > 1


def _tells_model(folder: str) -> bool:
    lower_folder = folder.casefold()
    if lower_folder in _COMMON_FOLDERS or lower_folder in _PLACES:
        return False
    return not (_REVISION.fullmatch(lower_folder) or _STEP.fullmatch(lower_folder))
