"""What an hour of a machine costs, and so what work on it costs.

A price is written ``3.5/h``, ``3.5 EUR/h`` or ``0.06/min``. It is given with ``--price``, as ``price`` in a study file,
or for all studies in the user's configuration: ``prices: {cuda: 3.5 EUR/h, cpu: 0.2 EUR/h}`` in the file
``potentia/config.yaml`` below ``~/.config`` or ``$XDG_CONFIG_HOME``.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from potentia.errors import InputError
from potentia.files import read_yaml

HOUR = 3600.0  # seconds
_SECONDS_BY_UNIT = {
    "s": 1.0,
    "min": 60.0,
    "h": HOUR,
    "hour": HOUR,
    "d": 24 * HOUR,
    "day": 24 * HOUR,
}
# (currency) amount (currency) / unit: the currency may stand on either side
_PRICE = re.compile(
    r"\s*([^\d\s/.,]{1,5})?\s*(\d+(?:[.,]\d+)?)\s*([^\d\s/.,]{1,5})?\s*/\s*([a-z]+)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Price:
    """The price of an hour of a machine."""

    per_hour: float
    currency: str = ""  # empty if none is named

    def of_seconds(self, seconds: float) -> float:
        """Return what so many seconds cost."""
        return self.per_hour * seconds / HOUR

    def format(self, seconds: float) -> str:
        """Return what so many seconds cost, as text: 0.42 EUR, and two digits of less than 0.1."""
        amount = self.of_seconds(seconds)
        if not math.isfinite(amount):
            return "?"
        digits = 2
        if 0 < amount < 0.1:
            digits = 1 - math.floor(math.log10(amount))
        return f"{amount:.{min(digits, 6)}f} {self.currency}".rstrip()

    def __str__(self) -> str:
        return f"{self.per_hour:g} {self.currency}/h".replace(" /", "/")


def parse_price(text: str) -> Price:
    """Return the price that a text such as ``3.5 EUR/h`` names; raise for any other text."""
    match = _PRICE.fullmatch(text)
    if match is None or match[4].lower() not in _SECONDS_BY_UNIT:
        raise InputError(f"{text!r} is no price", hint="say 3.5/h, 3.5 EUR/h or 0.06/min")
    amount = float(match[2].replace(",", "."))
    return Price(amount * HOUR / _SECONDS_BY_UNIT[match[4].lower()], match[1] or match[3] or "")


def find_price(stated_price: str | None, device: str) -> Price | None:
    """Return the price of a device: the stated one, else that of the user's configuration; None if there is none.

    Of the configuration's keys the device itself (``cuda:0``) goes before its kind (``cuda``), and that before ``any``.
    ``device`` is the device that computes: ``auto``, not resolved to one yet, finds the price of ``any`` alone.
    """
    if stated_price:
        return parse_price(stated_price)
    prices = _read_configured_prices()
    device_type = device.partition(":")[0]
    for key in (device, device_type, "any"):
        if key in prices:
            return parse_price(prices[key])
    return None


def config_file() -> Path:
    """Return the path of the user's configuration, whether it exists or not."""
    config_folder = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config_folder) / "potentia" / "config.yaml"


def _read_configured_prices() -> dict[str, str]:
    """Return the prices of the user's configuration, as text by device; empty if there are none."""
    file = config_file()
    if not file.is_file():
        return {}
    content, _ = read_yaml(file, description="the configuration")
    prices = content.get("prices") if isinstance(content, dict) else None
    if prices is None:
        return {}
    if not isinstance(prices, dict):
        raise InputError(
            "prices is a table of devices", where=str(file), hint="prices: {cuda: 3.5 EUR/h}"
        )
    return {str(device): str(price) for device, price in prices.items()}
