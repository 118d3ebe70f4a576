"""The page of the matrix: ``docs/architectures.md``, written from its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from architectures.tiny import SKIPPED, VARIANTS, cases
from architectures.trial import EXACT_LIKELIHOOD
from architectures.tune import EXACT_ADAPTER, EXACT_LOGITS

Row = Mapping[str, Any]

HEAD = """# Architectures

Causal architectures of the installed transformers that build on a CPU, each as a tiny model with random weights in
float32, tried whole by one command, which writes this page:

<!-- not run: takes an hour -->
```bash
make architectures                      # all of them; ARGS="llama gpt2" for some
```

**Scoring** is compared with lm-evaluation-harness's `HFLM`, one request at a time: multiple choice with long and short
questions in several orders, some longer than the model reads; whole texts in windows; greedy texts. *Fast*: requests
that begin alike share one pass. *Plain*: padded rows, nothing shared. A path is taken only after it gave the reference
path's numbers on rows like the real ones. Texts are written by our own *loop*, or by the model's own *generate*.

**Tuning** is compared with PEFT: four lanes in shared passes for six steps, with and without recomputed activations,
beside four PEFT trainings that see one example at a time; then one adapter is saved and loaded by plain PEFT. The
distance is that of the adapters, as a share of how far PEFT's moved; the larger of both ways. (Where a router decides
a near tie by rounding, other data are drawn, up to three times; a tiny model with many norms may part from PEFT by
more than 2e-3 because PEFT parts from itself by more when a weight moves by its last bit: that is the measure then.)
"""

TRUST = """## Before you trust a new architecture

Every run compares lanes with the model's own code before it trusts them: three lanes with random adapters on real rows,
short ones beside the longest, against each row alone through the model's own forward, cross-entropy and autograd, with
LoRA as PEFT computes it and torch's AdamW. Structure is judged in float32, on an upcast copy where the run has 16 bits;
in 16 bits a lane's gradient may be 1.5 times as far from float32's as the model's own, one layer's three times. A form
that is not right is not taken. From fast to slow: hand-written layers; long rows of the model's own layers; shared
passes of them; one lane a pass; one row a pass, which is the judge itself. What was taken, how far it was off and why
others were not is in the manifest of every cell (`training`, `engine`), and a fall-back is told with its cost. Updates
that are not AdamW's are refused. rsLoRA goes through the same, and so does full tuning, with all its gradients.
Weights that are missing, unexpected or of another shape are refused by name.

The full check is made once a run and structure (config, modules, sizes, dtype, device, versions). A treated copy, a
checkpoint of the same training or a fine-tune of the same shape gets a short one: a few rows in its own dtype, for its
weights may round otherwise. Where these are off, it is checked in full.

To see it for a model of your own, beside plain transformers and PEFT:

<!-- not run: needs a model -->
```bash
potentia doctor ./my-model                   # the dtype of this machine; --dtype bfloat16, --json
```

It prints what was compared, how far off it is, what would be right, and the form that computed it, and exits with 1
where something is wrong. In 16 bits the yardstick is PEFT's own distance from float32, at most one and a half times.
A layer that no adapter of yours should touch is left out with `--targets`.

`make sabotage` breaks the engine in 93 ways, one at a time (parts, routing, scales, losses, gradients, the optimizer,
masks, windows, positions, the tail, tokens, caches, the first step of a run, resuming), and prints whether a check
notices: all do, in float32 and in bfloat16, where 13 of them move an adapter by less than three times its rounding.
"""


def write_page(rows: Sequence[Row], versions: str = "") -> str:
    """Write the page, with the versions that are installed here where none are named."""
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
        HEAD,
        TRUST,
        "## The matrix in float32\n",
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
    way = "fast" if "tree" in row["paths"] else "plain"
    texts = "loop" if row["writing"] == "fast" else "generate"
    mark = "" if row["verdict"] == "exact" else " **WRONG**"
    cells = [
        row["case"],
        row["class"],
        way + mark,
        _number(max(row["choice"], row["rolling"])),
        texts,
    ]
    for name in ("default", "all-linear"):
        entry = row[name]
        if entry["refused"]:
            cells += ["refused", ""]
        else:
            shown = f"{entry['targets']}" if name == "default" else f"{entry['layers']} layers"
            cells += [shown, _number(max(entry["plain"], entry["recomputed"]))]
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
    left = sorted(set(cases()) - {row["case"] for row in rows})
    lines += [f"- {', '.join(left)}: not in this run"] if left else []
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
