"""The hub of models, seen from a command: whether it answers, and names that look like its own but are folders.

A name of the shape ``own/tiny-x`` may be a repository or a folder. Where the folder ``own`` is here, a name that is
neither is a typing error: it is said at once, with what the folder holds.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable
from pathlib import Path

from potentia.errors import StudyError

REPOSITORY_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SECONDS_TO_ANSWER = 10.0
SECONDS_REMEMBERED = 60.0  # a run that waits for checkpoints sees when the hub is back
MOST_NAMES = 8  # of the folders that a hint lists


def is_repository_name(source: str) -> bool:
    """Whether a source may be a repository of the hub: ``owner/name``."""
    return bool(REPOSITORY_NAME.fullmatch(source)) and not source.startswith(".")


def hub_answers() -> bool:
    """Whether the hub can be reached. It is asked once a minute, and not five times in a row as a download does."""
    return _ask_hub(int(time.monotonic() // SECONDS_REMEMBERED))


@functools.lru_cache(maxsize=1)
def _ask_hub(minute: int) -> bool:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
    except Exception:  # the errors of the hub's clients have no common base
        return False
    return True


def has_repository(repository: str) -> bool:
    """Whether the hub, or its cache on this machine, has a repository."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    for file_name in ("config.json", "adapter_config.json"):
        if isinstance(try_to_load_from_cache(repository, file_name), str):
            return True
    if not hub_answers():
        return False
    try:
        return bool(HfApi().repo_exists(repository))
    except Exception:  # a name that the hub does not allow, a proxy, a login
        return False


def check_model_folders(sources: Iterable[str]) -> None:
    """Refuse models of which one should be a folder and is none."""
    for source in sources:
        check_model_folder(source)


def check_model_folder(source: str) -> None:
    """Refuse a model that is no folder, no file and no repository, where its name says that it should be a folder."""
    path = Path(source).expanduser()
    if path.exists() or "/" not in source:
        return
    has_parent = path.parent.is_dir()
    if is_repository_name(source) and (not has_parent or has_repository(source)):
        return
    raise StudyError(
        f"{source}: no such folder{_list_folders(path.parent)}",
        hint="a model is a folder with a config.json, a GGUF file, or a name on the hub",
    )


def _list_folders(parent: Path) -> str:
    """Say which folders of models are there instead."""
    if not parent.is_dir():
        return ""
    names = sorted(entry.name for entry in parent.iterdir() if (entry / "config.json").is_file())
    if not names:
        return f"; {parent}/ holds no folder of a model"
    listed_names = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        listed_names += f" and {len(names) - MOST_NAMES} more"
    return f"; in {parent}/ there are {listed_names}"
