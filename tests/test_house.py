"""The house: its measures are taken rightly, and nobody goes past a room's door."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import house


def test_nobody_goes_past_a_door():
    assert house.past_doors() == []


@pytest.mark.parametrize(
    "script", sorted((house.ROOT / "bench").glob("*.py")), ids=lambda path: path.stem
)
def test_benches_import_what_is_there(script: Path):
    """They run by hand, so nothing else notices a name that has moved, inside a function above all."""
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "potentia":
            room = import_module(str(node.module))
            lost = [
                name
                for one in node.names
                if not hasattr(room, name := one.name) and not _module(room, name)
            ]
            assert not lost, f"{script.name}:{node.lineno} imports {lost} from {node.module}"


def _module(room: ModuleType, name: str) -> bool:
    return find_spec(f"{room.__name__}.{name}") is not None


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two rooms, a helper beside them, and every way to import."""
    files = {
        "potentia/__init__.py": "",
        "potentia/errors.py": "",
        "potentia/one/__init__.py": "from potentia.one.door import open_door, door\n",
        "potentia/one/door.py": "from potentia.one.hinge import x\ndef open_door(): ...\ndef door(): ...\n",
        "potentia/one/hinge.py": "import potentia.errors\n",
        "potentia/two/__init__.py": "",
        "potentia/two/good.py": "from potentia.one import open_door, door\n",
        "potentia/two/late.py": "def f():\n    from potentia.one.hinge import x\n",
        "potentia/two/typed.py": "if TYPE_CHECKING:\n    from potentia.one import hinge\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "potentia")
    return tmp_path


def test_the_measures_count_what_they_say(small: Path):
    chain = ["potentia.two.good", "potentia.one.door", "potentia.one.hinge", "potentia.errors"]
    assert house.longest_chain() == chain, "through the door, to where the names are made"
    assert house.past_doors() == [
        "potentia.two.late reaches past potentia.one for potentia.one.hinge"
    ]


def test_complexity_is_counted_as_radon_counts_it(small: Path):
    code = """
def plain(): ...
def deciding(a, b):
    for x in a or b:
        if x and a: return [y for y in b if y]
    def inner():
        return 1 if a else 2
    try: ...
    except ValueError: ...
class Two:
    def one(self): return 1 if self else 2
    def two(self): ...
class Empty: ...
"""
    (small / "potentia" / "errors.py").write_text(code)
    one, deciding, door = 1, 8, 2
    assert house.mean_complexity() == (one + deciding + 2 + 1 + 3 + 1 + door + 1) / 9
