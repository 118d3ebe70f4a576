"""What an hour of a machine costs, and what work on it cost.

A price is written ``3.5/h``, ``3.5 EUR/h`` or ``0.06/min``. It is given with ``--price``, as ``price`` in a study file,
or for all studies in the user's configuration: ``prices: {cuda: 3.5 EUR/h, cpu: 0.2 EUR/h}`` in ``config.yaml`` of the
folder ``potentia`` among the user's settings (``~/.config``, or ``$XDG_CONFIG_HOME``).
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from potentia.errors import InputError
from potentia.files import read_yaml

HOUR = 3600.0
_SECONDS = {"s": 1.0, "min": 60.0, "h": HOUR, "hour": HOUR, "d": 24 * HOUR, "day": 24 * HOUR}
_PRICE = re.compile(
    r"\s*([^\d\s/.,]{1,5})?\s*(\d+(?:[.,]\d+)?)\s*([^\d\s/.,]{1,5})?\s*/\s*([a-z]+)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Price:
    """The price of an hour of a machine; the currency is empty where nobody says it."""

    per_hour: float
    currency: str = ""

    def of_seconds(self, seconds: float) -> float:
        """Return what so many seconds cost."""
        return self.per_hour * seconds / HOUR

    def format(self, seconds: float) -> str:
        """Write what so many seconds cost: 0.42 EUR."""
        amount = self.of_seconds(seconds)
        if not math.isfinite(amount):
            return "?"
        digits = 2 if amount >= 0.1 or amount == 0 else 2 - math.floor(math.log10(amount)) - 1
        return f"{amount:.{min(digits, 6)}f} {self.currency}".rstrip()

    def __str__(self) -> str:
        return f"{self.per_hour:g} {self.currency}/h".replace(" /", "/")


def parse_price(text: str) -> Price:
    """Read a price."""
    match = _PRICE.fullmatch(text)
    if match is None or match[4].lower() not in _SECONDS:
        raise InputError(f"a price of {text!r}", hint="say 3.5/h, 3.5 EUR/h or 0.06/min")
    amount = float(match[2].replace(",", "."))
    return Price(amount * HOUR / _SECONDS[match[4].lower()], match[1] or match[3] or "")


def find_price(stated: str | None, device: str) -> Price | None:
    """Return the price of a device: as stated, else as the user's configuration has it; None where nobody says it."""
    if stated:
        return parse_price(stated)
    prices = _read_configured_prices()
    name = device.partition(":")[0]
    for key in (device, name, "any"):
        if key in prices:
            return parse_price(prices[key])
    return None


def config_file() -> Path:
    """Return where the user's configuration is, if there is any."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "potentia" / "config.yaml"


def _read_configured_prices() -> dict[str, str]:
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
