from __future__ import annotations

import subprocess
import sys

import pytest

import potentia


@pytest.mark.parametrize("name", [name for name in dir(potentia) if not name.startswith("_")])
def test_every_public_name_is_there(name: str):
    assert getattr(potentia, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = potentia.nothing_of_the_kind


def test_import_is_light():
    code = "import sys, potentia; sys.exit(1 if {'torch', 'numpy', 'transformers', 'pandas'} & set(sys.modules) else 0)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
