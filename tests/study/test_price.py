"""Prices are read as people write them, and found where they are configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import InputError, StudyError
from potentia.study import Price, find_price, parse_price, read_study


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("3.5/h", Price(3.5)),
        ("3.5 EUR/h", Price(3.5, "EUR")),
        ("$2/h", Price(2.0, "$")),
        ("0,06 €/min", Price(3.6, "€")),
        ("24/day", Price(1.0)),
    ],
)
def test_prices_as_people_write_them(text: str, price: Price) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize("text", ["3.5", "cheap", "3/parsec", ""])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no price") as error:
        parse_price(text)
    assert "3.5/h" in str(error.value.hint)


def test_a_study_with_no_price_is_refused_before_anything_runs() -> None:
    settings = {"models": ["a"], "tasks": ["b"], "price": "3,5"}
    with pytest.raises(StudyError, match="'3,5' is no price") as error:
        read_study(None, settings)
    assert "3.5/h" in str(error.value.hint)


def test_small_amounts_keep_their_digits() -> None:
    assert Price(3.6, "EUR").format(1800) == "1.80 EUR"
    assert Price(3.6).format(1.0) == "0.0010"


def test_the_users_configuration_has_prices_by_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_price(None, "cuda:0") is None
    (tmp_path / "potentia").mkdir()
    (tmp_path / "potentia" / "config.yaml").write_text("prices: {cuda: 3.5 EUR/h}")
    assert find_price(None, "cuda:0") == Price(3.5, "EUR")
    assert find_price(None, "cpu") is None
    assert find_price("1/h", "cuda") == Price(1.0)
