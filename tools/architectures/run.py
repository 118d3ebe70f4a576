"""Try every architecture and write what was found into the page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from many import options, read_results, run_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"


def _try(case: str) -> dict[str, Any]:
    from architectures.trial import try_case

    return try_case(case)


def main() -> int:
    """Run the cases; the exit status says whether any was wrong or crashed."""
    from architectures.page import replace_matrix, write_matrix
    from architectures.tiny import cases

    parser = argparse.ArgumentParser(prog="architectures", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="architectures to try; all of them otherwise"
    )
    options(parser)
    parser.add_argument(
        "--page",
        type=Path,
        help="put the results into this page; docs/architectures.md for a whole run",
    )
    parser.add_argument(
        "--versions", default="", help="what the results were made with, for the page; those here"
    )
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(cases()))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases())}")
    before = read_results(arguments.out)
    wanted_cases = arguments.cases or [case for case in cases() if case not in before]
    results = (
        before
        if arguments.write_only
        else run_all(_try, wanted_cases, arguments, lambda _, row: _describe_row(row))
    )
    rows = [results[case] for case in cases() if case in results]
    page = arguments.page or (PAGE if len(rows) == len(cases()) else None)
    if page is not None:
        page_before = (page if page.exists() else PAGE).read_text()
        page.write_text(replace_matrix(page_before, write_matrix(rows, arguments.versions)))
        print(f"wrote {page}")
    bad = [row for row in rows if row["verdict"] in ("WRONG", "CRASH")]
    print(
        f"{len(rows)} cases, {len(bad)} wrong or crashed"
        + "".join(f"\n  {_describe_row(row)}" for row in bad)
    )
    return 1 if bad else 0


def _describe_row(row: dict[str, Any]) -> str:
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
