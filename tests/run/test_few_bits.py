"""Few bits as a plan sees them: keys of their own, no others; and what is said where bitsandbytes is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiny
from potentia import extras
from potentia.engine.models.identity import fingerprint, quantised_fingerprint
from potentia.errors import MissingExtraError
from potentia.extras import Extra
from potentia.run import plan_study
from potentia.run.cost import estimate_weight_bytes
from potentia.study import make_study


def body(folder: Path, **model: str) -> dict:
    return {
        "models": [{"name": "base", "path": str(folder / "base"), **model}],
        "tasks": [{"name": "colours", "file": str(folder / "colours.jsonl")}],
        "device": "cpu",
        "store": str(folder / "s.db"),
    }


@pytest.fixture
def world(tmp_path: Path) -> Path:
    tiny.save_model(tmp_path / "base", width=64)
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    return tmp_path


def test_bits_name_another_model_and_no_bits_the_one_it_was(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda _: True)
    plans = {
        how: plan_study(make_study(body(world, **({"quantise": how} if how else {}))))
        for how in ("", "8bit", "4bit")
    }
    rows = {how: plan.rows[0] for how, plan in plans.items()}
    whole = fingerprint(str(world / "base"))
    assert (
        rows[""].model_fingerprint
        == rows[""].original_fingerprint
        == rows["4bit"].original_fingerprint
        == whole
    )
    assert len({row.model_fingerprint for row in rows.values()}) == 3
    assert quantised_fingerprint(whole, None) == whole
    assert len({cell.key for plan in plans.values() for cell in plan.iterate_cells()}) == 6
    assert len({plan.key for plan in plans.values()}) == 3
    small, middle, large = (estimate_weight_bytes(rows[how]) for how in ("4bit", "8bit", ""))
    assert small < middle < large


def test_without_the_package_a_study_ends_at_once_and_names_the_extra(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from potentia.cli.app import app

    monkeypatch.setattr(extras, "is_installed", lambda package: package != "bitsandbytes")
    study = make_study(body(world, quantise="4bit"))
    with pytest.raises(MissingExtraError, match="quantise: 4bit needs bitsandbytes") as told:
        plan_study(study)
    assert told.value.hint == Extra.QUANTISE.install_command
    lines = [
        f"models: [{{name: base, path: {world / 'base'}, quantise: 3bit}}]",
        f"tasks: [{{name: c, file: {world / 'colours.jsonl'}}}]",
    ]
    (world / "study.yaml").write_text("\n".join(lines))
    answer = CliRunner().invoke(app, ["run", str(world / "study.yaml")])
    assert answer.exit_code != 0
    assert "quantise" in str(answer.exception) + answer.output
