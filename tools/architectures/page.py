"""The section of the matrix in ``docs/architectures.md``, written from its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from architectures.tiny import SKIPPED, VARIANTS, cases
from architectures.trial import EXACT_LIKELIHOOD
from architectures.tune import EXACT_ADAPTER, EXACT_LOGITS

Row = Mapping[str, Any]

MATRIX_MARK = "## The matrix in float32\n"
FORMS_MARK = "## Forms of lanes\n"


def replace_matrix(page: str, section: str) -> str:
    """Return a page with another section of the matrix; what stands before it, and the forms after it, stay."""
    head, _, text_behind = page.partition(MATRIX_MARK)
    forms = text_behind.partition(FORMS_MARK)[2]
    parts = [head.rstrip(), section.rstrip()]
    if forms:
        parts.append((FORMS_MARK + forms).rstrip())
    return "\n\n".join(parts) + "\n"


def write_matrix(rows: Sequence[Row], versions: str = "") -> str:
    """Write the section of the matrix, with the versions that are installed here where none are named."""
    counts = Counter(row["verdict"] for row in rows)
    tried = [row for row in rows if "choice" in row]
    fast = sum("tree" in row["paths"] for row in tried)
    tuned = [row[name] for row in tried for name in ("default", "all-linear")]
    done = [entry for entry in tuned if not entry["refused"]]
    likelihood = max(max(row["choice"], row["rolling"]) for row in tried)
    adapter = max(max(entry["plain"], entry["recomputed"]) for entry in done)
    logits = max(entry["saved"] for entry in done)
    here = [f"{name} {version(name)}" for name in ("transformers", "peft", "lm_eval", "torch")]
    parts = [
        MATRIX_MARK,
        f"With {versions or ', '.join(here)}: {len(rows)} cases, {counts['exact']} exact, {counts['refused']} refused, "
        f"{counts['WRONG']} wrong, {counts['CRASH']} crashed. {fast} are scored fast, {len(tried) - fast} plainly.",
        "",
        "| | largest | exact is |",
        "|---|---|---|",
        f"| difference of a log-likelihood | {_number(likelihood)} | {EXACT_LIKELIHOOD:g} |",
        f"| distance of an adapter, of its movement | {_number(adapter)} | {EXACT_ADAPTER:g} |",
        f"| difference of a saved adapter's logits | {_number(logits)} | {EXACT_LOGITS:g} |",
        "",
        "| architecture | class | scoring | off by | texts | default targets | off by | all-linear | off by | saved |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        *_notes(rows),
    ]
    return "\n".join(parts) + "\n"


def _line(row: Row) -> str:
    if "choice" not in row:
        return f"| {row['case']} | {row.get('class', '')} | **{row['verdict']}** | | | | | | | |"
    path_name = "fast" if "tree" in row["paths"] else "plain"
    texts = "loop" if row["writing"] == "fast" else "generate"
    mark = "" if row["verdict"] == "exact" else " **WRONG**"
    cells = [
        row["case"],
        row["class"],
        path_name + mark,
        _number(max(row["choice"], row["rolling"])),
        texts,
    ]
    for name in ("default", "all-linear"):
        entry = row[name]
        if entry["refused"]:
            cells += ["refused", ""]
        else:
            cell_text = f"{entry['targets']}" if name == "default" else f"{entry['layers']} layers"
            cells += [cell_text, _number(max(entry["plain"], entry["recomputed"]))]
    cells.append(_number(max(row[name]["saved"] for name in ("default", "all-linear"))))
    return "| " + " | ".join(cells) + " |"


def _notes(rows: Sequence[Row]) -> list[str]:
    refused = [
        (row["case"], row["reason"]) for row in rows if row["verdict"] in ("refused", "CRASH")
    ]
    refused += [
        (f"{row['case']}, {name}", row[name]["refused"])
        for row in rows
        if "choice" in row
        for name in ("default", "all-linear")
        if row[name]["refused"]
    ]
    moved = [row["case"] for row in rows if row.get("reloaded") is False]
    lines = ["## Refused", ""]
    lines += [f"- **{case}**: {' '.join(reason.split())}" for case, reason in refused] or [
        "Nothing."
    ]
    lines += ["", "## Not tried", ""]
    lines += [f"- **{kind}**: {reason}" for kind, reason in sorted(SKIPPED.items())]
    cases_left = sorted(set(cases()) - {row["case"] for row in rows})
    lines += [f"- {', '.join(cases_left)}: not in this run"] if cases_left else []
    lines += ["", "## Variants", "", "Settings that switch another computation on:", ""]
    lines += [f"- **{case}**: {', '.join(settings)}" for case, settings in sorted(VARIANTS.items())]
    if moved:
        lines += [
            "",
            f"Tried in memory, because transformers does not read back its own files: {', '.join(moved)}.",
        ]
    return lines


def _number(value: float) -> str:
    return f"{value:.1e}"
