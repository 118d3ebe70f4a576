"""``potentia models``: what is publicly known of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import print_json, print_table
from potentia.errors import InputError
from potentia.values.findings import Table


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="A model by any of its names, or a part of a name.")] = None,
    family: Annotated[str | None, typer.Option(help="Only this family, such as qwen.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only base or only instruct models.")] = None,
    facts: Annotated[Path | None, typer.Option(help="A CSV of the same columns that adds or replaces facts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List known models: parameters, training tokens, compute, date, and where the numbers come from.

    Examples:
      potentia models --family qwen

      potentia models smollm2

      potentia models gemma-2-2b --json
    """
    from difflib import get_close_matches

    from potentia.facts import models as known_models

    table = known_models(extra_csv=facts)
    chosen = list(table)
    if name is not None:
        found = table.find(name)
        chosen = [found] if found is not None else table.search(name)
        if not chosen:
            near = get_close_matches(name, [alias for model in table for alias in model.names], n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "add it with --facts FILE.csv"
            raise InputError(f"no facts about a model {name!r}", hint=hint)
    if family is not None:
        chosen = [model for model in chosen if model.family == family.strip().casefold()]
        if not chosen:
            raise InputError(f"no models of a family {family!r}", hint=f"families: {', '.join(table.families())}")
    if kind is not None:
        if kind not in ("base", "instruct"):
            raise InputError(f"the kind is base or instruct, not {kind!r}")
        chosen = [model for model in chosen if model.kind == kind]
    if as_json:
        print_json([{**vars(model), "flops": model.flops} for model in chosen])
        return
    print_table(
        Table(
            title=f"{len(chosen)} models",
            columns=("model", "family", "kind", "N (B)", "D (B)", "FLOPs", "date", "language"),
            rows=tuple(
                (
                    model.repository or model.name,
                    model.family,
                    model.kind,
                    None if model.parameters is None else f"{model.parameters / 1e9:g}",
                    None if model.tokens is None else f"{model.tokens / 1e9:g}",
                    None if model.flops is None else f"{model.flops:.2e}",
                    model.date,
                    model.language,
                )
                for model in chosen
            ),
            note="N parameters, D training tokens, FLOPs = 6·N·D. A dash: not published. More names, sources: --json.",
        )
    )
