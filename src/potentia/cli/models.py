"""``potentia models``: what is publicly known of models, and whether one is computed as transformers and PEFT do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from potentia.cli.app import app
from potentia.cli.output import console, errors, print_json, print_table
from potentia.errors import InputError
from potentia.values.findings import Table


class _ListFirst(TyperGroup):
    """A group whose first command may be left out: ``potentia models smollm2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments that name none."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


models = typer.Typer(
    cls=_ListFirst, help="Look up what is known of models, or check one's computation.", rich_markup_mode="rich"
)
app.add_typer(models, name="models")


@models.command("list")
def list_models(
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


@models.command("check")
def check(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file or a name of the Hub.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or spread.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    targets: Annotated[
        list[str] | None, typer.Option(help="Layers to adapt, by the ends of their names; else PEFT's default.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run the code that the model brings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a model's scores, texts, gradients and updates here with plain transformers' and PEFT's.

    Exits with 1 where something is off by more than rounding.

    Examples:
      potentia models check ./my-model

      potentia models check ./my-model --dtype bfloat16 --json
    """
    from potentia.engine import load
    from potentia.engine.tune import LoraConfig, beside_peft

    with errors.status(f"loading {model} …"):
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=tuple(targets) if targets else None)
    with errors.status("comparing with transformers and PEFT …"):
        found = beside_peft(loaded, lora)
    right = all(one.right for one in found)
    named = f"{type(loaded.model).__name__} in {str(loaded.dtype).removeprefix('torch.')} on {loaded.device}"
    if as_json:
        compared = [{**vars(one), "right": one.right} for one in found]
        print_json({"model": model, "as": named, "right": right, "compared": compared, "record": loaded.record})
    else:
        rows = tuple(
            (one.what, f"{one.off:.2g}", f"{one.most:.2g}", "right" if one.right else "WRONG", one.way, one.note)
            for one in found
        )
        columns = ("compared", "off by", "right up to", "verdict", "computed as", "unit")
        print_table(Table(title=named, columns=columns, rows=rows))
        refused = loaded.record.get("training", {}).get("not_taken", {})
        for form, reason in refused.items():
            console.print(f"Not taken: {form}: {reason}", markup=False)
    if not right:
        raise typer.Exit(1)
