"""The paper that charts are drawn on: SVG text by text and line by line, scales with round marks, widths of words.

Colours are classes (``chart.css``), so that one drawing serves the light page, the dark page and the file for a paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

FONT = 11.0  # pixels
LINE = 17.0  # that one line of text takes
NARROW = frozenset("fijlrt.,:;'|!()[]- ")
WIDE = frozenset("mwMW@%→")
MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (  # corners; none of a circle
    (),
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, -1.2), (1.2, 1), (-1.2, 1)),
)
MARK = 3.6  # pixels from the middle of a mark to its end
DASHES = ("", "5 3", "1.5 2.5", "6 2 1.5 2")
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HUES = 8  # colours of chart.css; past them they repeat with another dash or marker


def width_of(text: str, size: float = FONT) -> float:
    """Return about how wide a text is in a plain sans-serif; a little more rather than less."""
    letters = sum(
        0.38 if c in NARROW else 0.95 if c in WIDE else 0.71 if c.isupper() else 0.62 for c in text
    )
    return letters * size


def widest(texts: Iterable[str], size: float = FONT) -> float:
    """Return the width of the widest text."""
    return max((width_of(text, size) for text in texts), default=0.0)


def wrapped(text: str, width: float, size: float = FONT) -> list[str]:
    """Break a text into lines of at most this width."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cut(names: Sequence[str], most: int = 30) -> list[str]:
    """Leave out the middle of long names; a name that would look like another stays whole."""
    short = [n if len(n) <= most else f"{n[: most - 12]}…{n[-11:]}" for n in names]
    return [s if short.count(s) == 1 else n for s, n in zip(short, names, strict=True)]


@dataclass
class Sheet:
    """The elements drawn so far."""

    parts: list[str] = field(default_factory=list)

    def add(self, element: str, tip: str = "", **attributes: object) -> None:
        """Add an element; ``tip`` is what the pointer shows. A trailing underscore of a name is left out."""
        named = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{_plain(value)}"'
            for key, value in attributes.items()
            if value != ""
        )
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(
            f"<{element}{named}>{inside}</{element}>" if inside else f"<{element}{named}/>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        class_: str = "",
        anchor: str = "",
        turn: int = 0,
        tip: str = "",
    ) -> None:
        """Write a text whose middle line is at y."""
        place = (
            f'transform="translate({x:.1f} {y:.1f}) rotate({turn})"'
            if turn
            else f'x="{x:.1f}" y="{y:.1f}"'
        )
        side = f' text-anchor="{anchor}"' if anchor else ""
        kind = f' class="{class_}"' if class_ else ""
        inside = f"<title>{escape(tip)}</title>" if tip and tip != text else ""
        self.parts.append(f'<text {place} dy=".35em"{side}{kind}>{escape(text)}{inside}</text>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, class_: str = "grid", dash: str = ""
    ) -> None:
        """Draw a straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke_dasharray=dash)

    def marker(self, x: float, y: float, place: int, tip: str = "") -> None:
        """Draw the mark of the n-th series."""
        kind, hue = MARKERS[place // HUES % len(MARKERS)], f"f{place % HUES}"
        if not kind:
            self.add("circle", tip, cx=x, cy=y, r=MARK, class_=hue)
            return
        path = "L".join(f"{x + MARK * right:.1f} {y + MARK * down:.1f}" for right, down in kind)
        self.add("path", tip, d=f"M{path}z", class_=hue)

    def path(
        self, points: Sequence[tuple[float, float]], class_: str, dash: str = "", tip: str = ""
    ) -> None:
        """Draw a line through points; a point that is not known breaks it."""
        written, pen = [], "M"
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                pen = "M"
                continue
            written.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        if written:
            self.add("path", tip, d="".join(written), class_=class_, stroke_dasharray=dash)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(str(value))


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear or logarithmic, with round marks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    marks: tuple[tuple[float, str], ...] = ()

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        low, high, at = (math.log10(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def inside(self, value: float) -> float:
        """Return the place of a value, at the end of the scale where it lies beyond."""
        return self(min(self.high, max(self.low, value)))


def make_scale(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    span: tuple[float, float] | None = None,
    log: bool = False,
    most: int = 6,
) -> Scale:
    """Return a scale over the values, or over the ``span``; without one it ends at round marks."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.1, 1.0]
    low, high = span or (min(known), max(known))
    if log:
        low, high = (low, high) if span else (low / 1.15, high * 1.15)
        return Scale(low, high, start, end, True, _log_marks(low, high))
    step, digits = round_step(
        low, high, most, whole=high - low > 2 and all(v == round(v) for v in known)
    )
    if span is None:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        high = max(high, low + step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    marks = tuple((k * step, f"{k * step + 0.0:.{digits}f}") for k in range(first, last + 1))
    return Scale(low, high, start, end, False, marks)


def round_step(low: float, high: float, most: int, *, whole: bool = False) -> tuple[float, int]:
    """Return a round distance of marks, of which there are about ``most``, and the decimals that they need."""
    wanted = (high - low) / max(1, most - 1) or abs(high) / 10 or 0.1
    wanted = max(1.0, math.ceil(wanted)) if whole else wanted
    size = 10.0 ** math.floor(math.log10(wanted))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    factor = next(k for k in factors if size * k >= wanted * (1 - 1e-9))
    step = size * factor
    return step, max(0, -math.floor(math.log10(step) + 1e-9) + (factor == 2.5))


def _log_marks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    whole = [(10.0**p, _power(p)) for p in powers if low <= 10.0**p <= high]
    if len(whole) > 8:
        return tuple(whole[:: math.ceil(len(whole) / 8)])
    if len(whole) > 2:
        return tuple(whole)
    return tuple(
        (
            k * 10.0**p,
            f"{k * 10.0**p:g}" if -3 <= p <= 4 else _power(p) if k == 1 else f"{k}·{_power(p)}",
        )
        for p in powers
        for k in (1, 2, 5)
        if low <= k * 10.0**p <= high
    )


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else "10" + str(power).translate(SUPERSCRIPT)
