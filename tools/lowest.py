"""The lowest versions that ``pyproject.toml`` allows, as constraints for pip: what ``make lowest`` installs and tries.

    python tools/lowest.py > constraints.txt
    python tools/lowest.py run --newest torch    # where only one build of torch can be had
    pip install -c constraints.txt -e '.[run]'

A bound is a promise: every package is taken at the version that its own line names, and what it needs in turn is
left to pip. A bound that no set of packages can meet ends in pip's own words.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?\s*>=\s*(?P<version>[\w.]+)")


def lowest_versions(extras: list[str]) -> dict[str, str]:
    """Return the lowest version of every package that the core and some extras name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in extras or project["optional-dependencies"]:
        requirements += project["optional-dependencies"][extra]
    versions = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None:
            versions[match["name"]] = match["version"]
        elif not requirement.startswith("potentia["):
            raise ValueError(f"{requirement!r} has no lower bound")
    return versions


def main() -> None:
    """Print the constraints of the extras that are named, of all where none is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--newest", nargs="*", default=[], help="packages without a constraint")
    arguments = parser.parse_args()
    for name, version in lowest_versions(arguments.extras).items():
        if name not in arguments.newest:
            print(f"{name}=={version}")


if __name__ == "__main__":
    main()
