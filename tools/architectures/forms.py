"""Every architecture × float32 and bfloat16 × static passes off and on: the form that the check takes, and how far off.

    python -m architectures.forms --out forms.json            # goes on where it stopped
    python -m architectures.forms --out forms.json --page docs/architectures.md

The distance is that of three lanes' gradients from those of each row alone through the model's own code, as a share of
their size; in bfloat16 it stands beside the distance of the model's own bfloat16 gradients from float32's.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from many import Results, kept, options, run_all

MARK = "## Forms of lanes\n"
KINDS = [(dtype, static) for dtype in ("float32", "bfloat16") for static in (False, True)]


def try_forms(case: str) -> dict[str, Any]:
    """Check one case in both dtypes, with and without static passes."""
    import torch

    from architectures.odd import ODD
    from architectures.tiny import build
    from architectures.tune import lanes
    from potentia.engine.proof.training_check import check_lanes
    from potentia.engine.training import LoraConfig
    from potentia.errors import PotentiaError

    row: dict[str, Any] = {}
    began = time.monotonic()
    for dtype, static in KINDS:
        model: Any = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = (ODD[case]() if case in ODD else build(case)).to(getattr(torch, dtype))
                lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=_targets(case))
                specs = lanes(lora, int(model.get_input_embeddings().weight.shape[0]), 96)
                found = check_lanes(model, lora, specs, static=static, limit=96).as_dict()
        except PotentiaError as error:
            found = {"refused": error.message}
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:300]
            found = (
                {"refused": f"its own code fails: {told}"}
                if _fails_itself(model)
                else {"crashed": told}
            )
        row[f"{dtype} {'static' if static else 'plain'}"] = found
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def _fails_itself(model: Any) -> bool:
    import torch

    try:
        model(input_ids=torch.arange(8, 20)[None], use_cache=False)
    except Exception:
        return True
    return False


def _targets(case: str) -> tuple[str, ...] | None:
    return {
        "MLP in [s, b, h]": ("up_proj", "down_proj"),
        "a list of experts": ("experts.0", "experts.1"),
    }.get(case)


def write_forms(results: Results, left: Sequence[str], versions: str) -> str:
    """Write the section of the page."""
    ratios = [r for row in results.values() for r in _ratios(row)]
    lines = [
        MARK,
        "`python -m architectures.forms` (with `PYTHONPATH=tools`): three lanes with random adapters beside each row "
        "alone through the model's own code, in float32 and bfloat16, without and with static passes. *Off by*: the "
        "distance of a lane's gradient, as a share of its size; in bfloat16 as a multiple of how far the model's own "
        "bfloat16 gradients are from float32's. Forms that are not right are not taken.",
        "",
        f"{len(results)} cases{f' with {versions}' if versions else ''}. "
        f"In bfloat16 the worst multiple is {max(ratios):.2f}, the median "
        f"{sorted(ratios)[len(ratios) // 2]:.2f}; {sum(r > 1.5 for r in ratios)} of {len(ratios)} are above 1.5.",
        "",
        "| case | form | static form | float32 off by | bfloat16, × its own |",
        "|---|---|---|---|---|",
    ]
    for case, row in sorted(results.items()):
        plain, static = row["float32 plain"], row["float32 static"]
        if "form" not in plain:
            reason = " ".join(str(plain.get("refused", plain.get("crashed"))).split())[:160]
            lines.append(f"| {case} | refused: {reason} | | | |")
            continue
        off = max(entry["distance"]["lane"] for entry in (plain, static) if "distance" in entry)
        times = ", ".join(f"{ratio:.2f}" for ratio in _ratios(row)) or "refused"
        lines.append(
            f"| {case} | {plain['form']} | {static.get('form', 'refused')} | {off:.1e} | {times} |"
        )
    if left:
        lines += ["", f"Not run: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


def _ratios(row: Mapping[str, Any]) -> list[float]:
    entries = [row[f"bfloat16 {kind}"] for kind in ("plain", "static")]
    both = [
        (e["distance_in_few_bits"]["lane"], e["own_rounding"]["lane"])
        for e in entries
        if "own_rounding" in e
    ]
    return [ours / max(own, 1e-9) for ours, own in both]


def main() -> int:
    """Run the cases that the results do not have, and write the section where a page is named."""
    from architectures.odd import ODD
    from architectures.tiny import cases

    parser = argparse.ArgumentParser(prog="architectures.forms", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options(parser)
    parser.add_argument("--page", type=Path, help="put the section into this page")
    parser.add_argument(
        "--versions", default="", help="what the results were made with, for the page"
    )
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    given = parser.parse_args()
    every, before = [*ODD, *cases()], kept(given.out)
    wanted = given.cases or [case for case in every if case not in before]
    results = before if given.write_only else run_all(try_forms, wanted, given, _told)
    if given.page is not None:
        section = write_forms(
            results, [case for case in every if case not in results], given.versions
        )
        before = given.page.read_text().split(MARK)[0].rstrip()
        given.page.write_text(before + "\n\n" + section)
    entries = [
        (case, entry)
        for case, row in results.items()
        for entry in row.values()
        if isinstance(entry, dict)
    ]
    crashed = sorted({case for case, entry in entries if "crashed" in entry})
    print(f"{len(results)} cases, {len(crashed)} crashed: {', '.join(crashed)}")
    return 1 if crashed else 0


def _told(case: str, row: Mapping[str, Any]) -> str:
    found = [row[f"{dtype} {'static' if static else 'plain'}"] for dtype, static in KINDS]
    return f"{case}: {', '.join(str(entry.get('form', 'refused')) for entry in found)} ({row['seconds']} s)"


if __name__ == "__main__":
    raise SystemExit(main())
