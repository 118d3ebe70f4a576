"""The paper that charts are drawn on: SVG text by text and line by line, scales with round marks, widths of words.

Colours are classes (``chart.css``), so that one drawing serves the light page, the dark page and the file for a paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from potentia.values.wording import set_signs

FONT_SIZE = 11.0  # pixels
LINE_HEIGHT = 17.0  # that one line of text takes
NARROW_LETTERS = frozenset("fijlrt.,:;'|!()[]- ")
WIDE_LETTERS = frozenset("mwMW@%→")
MARKER_CORNERS: tuple[tuple[tuple[float, float], ...], ...] = (  # none of a circle
    (),
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, -1.2), (1.2, 1), (-1.2, 1)),
)
MARKER_RADIUS = 3.6  # pixels
DASHES = ("", "5 3", "1.5 2.5", "6 2 1.5 2")
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COLORS = 8  # of chart.css; past them they repeat with another dash or marker
MAX_NAME_LETTERS = 30
MAX_LOG_MARKS = 8
ROUNDING = 1e-9  # by which a mark may miss the end of a scale


# --- texts ------------------------------------------------------------------------------------------------------------


def estimate_width(text: str, font_size: float = FONT_SIZE) -> float:
    """Return about how wide a text is in a plain sans-serif; a little more rather than less."""
    return sum(map(_letter_width, text)) * font_size


def _letter_width(letter: str) -> float:
    """Return the width of a letter as a share of the font's size."""
    if letter in NARROW_LETTERS:
        return 0.38
    if letter in WIDE_LETTERS:
        return 0.95
    return 0.71 if letter.isupper() else 0.62


def widest_text(texts: Iterable[str], font_size: float = FONT_SIZE) -> float:
    """Return the width of the widest text."""
    return max((estimate_width(text, font_size) for text in texts), default=0.0)


def wrap_text(text: str, width: float, font_size: float = FONT_SIZE) -> list[str]:
    """Break a text into lines of at most this width; a word longer than that gets a line of its own."""
    lines: list[str] = []
    for word in text.split():
        if lines and estimate_width(f"{lines[-1]} {word}", font_size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def shorten_names(full_names: Sequence[str], max_letters: int = MAX_NAME_LETTERS) -> list[str]:
    """Leave out the middle of long names; a name that would look like another stays whole."""
    shortened = []
    for full_name in full_names:
        if len(full_name) > max_letters:
            shortened.append(f"{full_name[: max_letters - 12]}…{full_name[-11:]}")
        else:
            shortened.append(full_name)
    distinct_names = []
    for short, full_name in zip(shortened, full_names, strict=True):
        is_distinct = shortened.count(short) == 1
        distinct_names.append(short if is_distinct else full_name)
    return distinct_names


# --- elements ---------------------------------------------------------------------------------------------------------


@dataclass
class Sheet:
    """The elements drawn so far."""

    parts: list[str] = field(default_factory=list)

    def add(self, element: str, tooltip: str = "", **attributes: object) -> None:
        """Add an element; ``tooltip`` is what the pointer shows. A trailing underscore of a name is left out."""
        start = f"<{element}"
        for attribute, value in attributes.items():
            if value != "":
                start += f' {attribute.rstrip("_").replace("_", "-")}="{_format_attribute(value)}"'
        if tooltip:
            self.parts.append(f"{start}><title>{escape(tooltip)}</title></{element}>")
        else:
            self.parts.append(f"{start}/>")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        class_: str = "",
        anchor: str = "",
        turn: int = 0,
        tooltip: str = "",
    ) -> None:
        """Write a text whose middle line is at y."""
        attributes = f'x="{x:.1f}" y="{y:.1f}"'
        if turn:
            attributes = f'transform="translate({x:.1f} {y:.1f}) rotate({turn})"'
        attributes += ' dy=".35em"'
        if anchor:
            attributes += f' text-anchor="{anchor}"'
        if class_:
            attributes += f' class="{class_}"'
        title = ""
        if tooltip and tooltip != text:
            title = f"<title>{escape(tooltip)}</title>"
        self.parts.append(f"<text {attributes}>{escape(set_signs(text))}{title}</text>")

    def line(
        self, x1: float, y1: float, x2: float, y2: float, class_: str = "grid", dash: str = ""
    ) -> None:
        """Draw a straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke_dasharray=dash)

    def marker(self, x: float, y: float, series: int, tooltip: str = "") -> None:
        """Draw the mark of the n-th series."""
        corners = MARKER_CORNERS[series // COLORS % len(MARKER_CORNERS)]
        color = f"f{series % COLORS}"
        if not corners:
            self.add("circle", tooltip, cx=x, cy=y, r=MARKER_RADIUS, class_=color)
            return
        points = [
            f"{x + MARKER_RADIUS * right:.1f} {y + MARKER_RADIUS * down:.1f}"
            for right, down in corners
        ]
        self.add("path", tooltip, d=f"M{'L'.join(points)}z", class_=color)

    def path(
        self, points: Sequence[tuple[float, float]], class_: str, dash: str = "", tooltip: str = ""
    ) -> None:
        """Draw a line through points; a point that is not known breaks it."""
        commands = []
        command = "M"
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                command = "M"
                continue
            commands.append(f"{command}{x:.1f} {y:.1f}")
            command = "L"
        if commands:
            self.add("path", tooltip, d="".join(commands), class_=class_, stroke_dasharray=dash)


def _format_attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(str(value))


# --- scales -----------------------------------------------------------------------------------------------------------


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
        """Return the position of a value; NaN where it has none."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        low = self._transform(self.low)
        high = self._transform(self.high)
        share = (self._transform(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _transform(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def inside(self, value: float) -> float:
        """Return the position of a value, at the end of the scale where it lies beyond."""
        return self(min(self.high, max(self.low, value)))


def make_scale(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    span: tuple[float, float] | None = None,
    is_logarithmic: bool = False,
    max_ticks: int = 6,
) -> Scale:
    """Return a scale over the values, or over the ``span``; without one it ends at round marks.

    ``max_ticks`` is about how many marks it has.
    """
    finite_values = [value for value in values if math.isfinite(value)]
    if is_logarithmic:
        finite_values = [value for value in finite_values if value > 0]
    if not finite_values:
        finite_values = [0.1, 1.0]
    low, high = span or (min(finite_values), max(finite_values))
    if is_logarithmic:
        if span is None:
            low /= 1.15
            high *= 1.15
        return Scale(low, high, start, end, log=True, marks=_log_marks(low, high))
    has_whole_marks = high - low > 2 and all(value == round(value) for value in finite_values)
    tick_step, digits = round_step(low, high, max_ticks, integers_only=has_whole_marks)
    if span is None:
        low = math.floor(low / tick_step + ROUNDING) * tick_step
        high = math.ceil(high / tick_step - ROUNDING) * tick_step
        high = max(high, low + tick_step)
    first_step = math.ceil(low / tick_step - ROUNDING)
    last_step = math.floor(high / tick_step + ROUNDING)
    marks = tuple(
        (step_number * tick_step, f"{step_number * tick_step + 0.0:.{digits}f}")
        for step_number in range(first_step, last_step + 1)
    )
    return Scale(low, high, start, end, marks=marks)


def round_step(
    low: float, high: float, max_ticks: int, *, integers_only: bool = False
) -> tuple[float, int]:
    """Return a round distance of marks, of which there are about ``max_ticks``, and the decimals that they need."""
    distance = (high - low) / max(1, max_ticks - 1) or abs(high) / 10 or 0.1
    factors: tuple[float, ...] = (1, 2, 2.5, 5, 10)
    if integers_only:
        distance = max(1.0, math.ceil(distance))
        factors = (1, 2, 5, 10)
    power = 10.0 ** math.floor(math.log10(distance))
    factor = next(factor for factor in factors if power * factor >= distance * (1 - ROUNDING))
    rounded_step = power * factor
    digits = -math.floor(math.log10(rounded_step) + ROUNDING)
    if factor == 2.5:
        digits += 1
    return rounded_step, max(0, digits)


def _log_marks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Return marks at powers of ten; where there are few, at twice and five times them too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [(10.0**power, _format_power(power)) for power in powers if low <= 10.0**power <= high]
    if len(marks) > MAX_LOG_MARKS:
        return tuple(marks[:: math.ceil(len(marks) / MAX_LOG_MARKS)])
    if len(marks) > 2:
        return tuple(marks)
    finer_marks = []
    for power in powers:
        for factor in (1, 2, 5):
            mark_value = factor * 10.0**power
            if low <= mark_value <= high:
                finer_marks.append((mark_value, _format_log_mark(factor, power)))
    return tuple(finer_marks)


def _is_written_out(power: int) -> bool:
    return -3 <= power <= 4


def _format_log_mark(factor: int, power: int) -> str:
    if _is_written_out(power):
        return f"{factor * 10.0**power:g}"
    if factor == 1:
        return _format_power(power)
    return f"{factor}·{_format_power(power)}"


def _format_power(power: int) -> str:
    if _is_written_out(power):
        return f"{10.0**power:g}"
    return "10" + str(power).translate(SUPERSCRIPT)
