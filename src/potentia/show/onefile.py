"""The report in one file: style, scripts and data inside, nothing fetched, nothing but our own scripts allowed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from potentia.errors import InputError
from potentia.files import write_file
from potentia.show.page import SCRIPTS, STYLES, asset, render
from potentia.show.sections import build_sections
from potentia.show.source import ReportData, ReportOptions, read_report


def write_report(
    source: str | Path,
    out: Path,
    *,
    study: str | None = None,
    items: int | None = None,
    facts: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report of a store or of any file of scores into one HTML file, and return the file."""
    return save_report(read_report(source, study=study, items=items, facts=facts, options=options), out)


def save_report(data: ReportData, out: Path) -> Path:
    """Write the report of data already read."""
    out = Path(out)
    if out.is_dir():
        raise InputError("this is a folder", where=str(out), hint=f"give a file, for example {out / 'report.html'}")
    page = report_page(data)
    try:
        write_file(out, page)
    except OSError as error:
        raise InputError(f"the report cannot be written: {error.strerror}", where=str(out)) from error
    return out


def report_page(data: ReportData) -> str:
    """Return the whole page. Its own policy lets no other script run, whatever the scores contain."""
    script = "\n".join(asset(name) for name in SCRIPTS)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "font-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return render(
        "report.html",
        title=data.evidence.title,
        made=data.made,
        source=data.evidence.source,
        sections=build_sections(data),
        policy=policy,
        style="\n".join(asset(name) for name in STYLES),
        script=script,
    )


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
