"""``potentia analyze judge``: a language model as the loose judge of written answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from potentia.cli.app import analyze
from potentia.cli.output import Study, errors, print_findings, print_notes
from potentia.errors import InputError


@analyze.command()
def judge(
    store: Annotated[str, typer.Argument(help="A store with written answers.")],
    url: Annotated[str, typer.Option(help="An OpenAI-compatible endpoint, as http://localhost:8000/v1.")],
    model: Annotated[str, typer.Option(help="The model to ask there.")],
    key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the endpoint's key; none is sent otherwise.")
    ] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Answers of each cell at most.")] = None,
    memory: Annotated[Path | None, typer.Option(help="File of verdicts; else STORE.judge.jsonl.")] = None,
    study: Study = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the finding as JSON.")] = False,
) -> None:
    """Let a language model judge written answers: the upper bound beside math-verify (BOSE, table 11).

    Example:
      potentia analyze judge potentia.db --url http://localhost:8000/v1 --model gpt-4o --key-env OPENAI_API_KEY
    """
    from potentia.evidence import read
    from potentia.integrations import Judge, judge_answers

    if key_env is not None and not os.environ.get(key_env):
        raise InputError(f"the environment variable {key_env} is empty", hint="set it to the endpoint's key")
    evidence = read(store, study=study)
    print_notes(evidence)
    kept = memory or Path(f"{store}.judge.jsonl" if "://" not in store else "potentia.judge.jsonl")
    asking = Judge(url, model, kept, os.environ.get(key_env) if key_env else None)
    found = judge_answers(evidence, asking, most=most)
    errors.print(f"{asking.asked} answers judged now, the rest remembered in {kept}", markup=False, soft_wrap=True)
    print_findings({"judge": found}, as_json=as_json)
