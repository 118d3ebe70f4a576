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

from architectures.page import FORMS_MARK
from many import Results, options, read_results, run_all

KINDS = [(dtype, static) for dtype in ("float32", "bfloat16") for static in (False, True)]


def try_forms(case: str) -> dict[str, Any]:
    """Check one case in both dtypes, with and without static passes."""
    import torch

    from architectures.odd import ODD
    from architectures.tiny import build
    from architectures.tune import lanes
    from potentia.engine.proof.form_trial import TrialSettings
    from potentia.engine.proof.training_check import choose_training_form
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
                # some embeddings hold more than words
                words = int(model.get_input_embeddings().weight.shape[0])
                words = min(words, int(model.config.get_text_config().vocab_size))
                specs = lanes(lora, words, 96)
                settings = TrialSettings(lora, specs, limit=96)
                form_check = choose_training_form(model, settings, may_pack=static)
                facts = form_check.facts.to_dict()
        except PotentiaError as error:
            facts = {"refused": error.message}
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"[:300]
            facts = (
                {"refused": f"its own code fails: {error_text}"}
                if _fails_itself(model)
                else {"crashed": error_text}
            )
        row[f"{dtype} {'static' if static else 'plain'}"] = facts
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
    """Return the layers to adapt where a made-up model has others; None for PEFT's own of the architecture."""
    named_layers = {
        "MLP in [s, b, h]": ("up_proj", "down_proj"),
        "a list of experts": ("experts.0", "experts.1"),
    }
    return named_layers.get(case)


def write_forms(results: Results, cases_left: Sequence[str], versions: str) -> str:
    """Write the section of the page."""
    ratios = [r for row in results.values() for r in _ratios(row)]
    lines = [
        FORMS_MARK,
        "`python -m architectures.forms` (with `PYTHONPATH=tools`): three lanes with random adapters on PEFT's own "
        "layers of the architecture beside each row alone through the model's own code, in float32 and bfloat16, "
        "without and with static passes. *Off by*: the distance of a lane's gradient, as a share of its size; in "
        "bfloat16 as a multiple of how far the model's own bfloat16 gradients are from float32's. Forms that are not "
        "right are not taken.",
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
        off = max(_distances(entry)["gradients"]["lane"] for entry in (plain, static))
        times = ", ".join(f"{ratio:.2f}" for ratio in _ratios(row)) or "refused"
        lines.append(
            f"| {case} | {_form_words(plain)} | {_form_words(static)} | {off:.1e} | {times} |"
        )
    if cases_left:
        lines += ["", f"Not run: {', '.join(cases_left)}."]
    return "\n".join(lines) + "\n"


def _form_words(entry: Mapping[str, Any]) -> str:
    """Return the form that was taken, in words."""
    from potentia.values.training_form import TrainingForm

    return TrainingForm(entry["form"]).words if "form" in entry else "refused"


def _ratios(row: Mapping[str, Any]) -> list[float]:
    entries = [row[f"bfloat16 {kind}"] for kind in ("plain", "static")]
    ratios: list[float] = []
    for entry in entries:
        distances = _distances(entry)
        if "reference_rounding" in distances:
            rounding = distances["reference_rounding"]["lane"]
            ratios.append(distances["gradients_in_16_bits"]["lane"] / max(rounding, 1e-9))
    return ratios


def _distances(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the distances that the check of a form recorded; none where the model was refused."""
    distances: Mapping[str, Any] = entry.get("distances", {})
    return distances


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
    arguments = parser.parse_args()
    all_cases, before = [*ODD, *cases()], read_results(arguments.out)
    wanted_cases = arguments.cases or [case for case in all_cases if case not in before]
    results = (
        before
        if arguments.write_only
        else run_all(try_forms, wanted_cases, arguments, _describe_row)
    )
    if arguments.page is not None:
        section = write_forms(
            results, [case for case in all_cases if case not in results], arguments.versions
        )
        before = arguments.page.read_text().split(FORMS_MARK)[0].rstrip()
        arguments.page.write_text(before + "\n\n" + section)
    entries = [
        (case, entry)
        for case, row in results.items()
        for entry in row.values()
        if isinstance(entry, dict)
    ]
    crashed = sorted({case for case, entry in entries if "crashed" in entry})
    print(f"{len(results)} cases, {len(crashed)} crashed: {', '.join(crashed)}")
    return 1 if crashed else 0


def _describe_row(case: str, row: Mapping[str, Any]) -> str:
    forms_of_row = [row[f"{dtype} {'static' if static else 'plain'}"] for dtype, static in KINDS]
    return f"{case}: {', '.join(map(_form_words, forms_of_row))} ({row['seconds']} s)"


if __name__ == "__main__":
    raise SystemExit(main())
