"""Try every architecture and write the page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from many import kept, options, run_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"


def _try(case: str) -> dict[str, Any]:
    from architectures.trial import try_case

    return try_case(case)


def main() -> int:
    """Run the cases; the exit status says whether any was wrong or crashed."""
    from architectures.page import write_page
    from architectures.tiny import cases

    parser = argparse.ArgumentParser(prog="architectures", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="architectures to try; all of them otherwise"
    )
    options(parser)
    parser.add_argument(
        "--page", type=Path, help="where to write the page; docs/architectures.md for a whole run"
    )
    parser.add_argument(
        "--versions", default="", help="what the results were made with, for the page; those here"
    )
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    given = parser.parse_args()
    unknown = sorted(set(given.cases) - set(cases()))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases())}")
    before = kept(given.out)
    wanted = given.cases or [case for case in cases() if case not in before]
    found = before if given.write_only else run_all(_try, wanted, given, lambda _, row: _told(row))
    rows = [found[case] for case in cases() if case in found]
    page = given.page or (PAGE if len(rows) == len(cases()) else None)
    if page is not None:
        page.write_text(write_page(rows, given.versions))
        print(f"wrote {page}")
    bad = [row for row in rows if row["verdict"] in ("WRONG", "CRASH")]
    print(
        f"{len(rows)} cases, {len(bad)} wrong or crashed"
        + "".join(f"\n  {_told(row)}" for row in bad)
    )
    return 1 if bad else 0


def _told(row: dict[str, Any]) -> str:
    text = f"{row['verdict']:8}{row['case']:24}{row['seconds']:6.1f} s"
    if "choice" in row:
        off = max(row["choice"], row["rolling"])
        text += f"  {row['paths']} {off:.0e}, {row['written']}/{row['asked']} texts"
        for name in ("default", "all-linear"):
            entry = row[name]
            far = max(entry["plain"], entry["recomputed"])
            text += f"; {name} " + (
                "refused" if entry["refused"] else f"{far:.0e}, saved {entry['saved']:.0e}"
            )
    return text + (f"  {' '.join(row['reason'].split())[:300]}" if "reason" in row else "")
