"""The house: its measures are taken rightly, and nobody goes past a room's door."""

from __future__ import annotations

import ast
from collections import Counter
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


def test_no_script_hides_another():
    """Tests import tools and benches by their bare names: of two of one name, the first on the path would be both."""
    names = Counter()
    for folder in ("tests", "tools", "bench"):
        paths = [*(house.ROOT / folder).glob("*.py"), *(house.ROOT / folder).glob("*/__init__.py")]
        names.update(path.parent.name if path.stem == "__init__" else path.stem for path in paths)
    assert [name for name, count in names.items() if count > 1] == []


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


def test_rooms_and_packages_of_a_room_that_reach_each_other_are_found(small: Path):
    assert house.room_cycles() == []
    (small / "potentia/one/hinge.py").write_text("def f():\n    from potentia import two\n")
    assert house.room_cycles() == [
        "one and two reach each other: potentia.one.hinge → potentia.two",
        "two and one reach each other: potentia.two.good → potentia.one",
    ]
    (small / "potentia/one/hinge.py").write_text("")
    for package, other in (("left", "right"), ("right", "left")):
        (small / "potentia/two" / package).mkdir()
        (small / "potentia/two" / package / "__init__.py").write_text("")
        (small / "potentia/two" / package / "part.py").write_text(
            f"from potentia.two.{other} import part\n"
        )
    assert house.room_cycles() == [
        "two.left and two.right reach each other: potentia.two.left.part → potentia.two.right.part",
        "two.right and two.left reach each other: potentia.two.right.part → potentia.two.left.part",
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
