"""Options and arguments in the words that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Many = list[str] | None

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file or a database URL.")]
History = Annotated[Many, typer.Option(help="Stores or score files of other models, to predict unmeasured cells with.")]

# What a study asks for.
Models = Annotated[Many, typer.Option("--models", "--model", help="Hub names or folders.")]
Tasks = Annotated[Many, typer.Option("--tasks", "--task", help="Harness tasks, name:form, or files.")]
Protocols = Annotated[Many, typer.Option(help="direct, few_shot:K, train_before_test, adjust.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of datasets: DATASET/CONFIG/SPLIT.parquet")]
StoreUrl = Annotated[str | None, typer.Option(help="SQLite file or database URL.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 …")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16.")]
Seed = Annotated[int | None, typer.Option(help="Seed of splits, orders and examples.")]
LearningRates = Annotated[list[float] | None, typer.Option(help="The grid of learning rates.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")]
Train = Annotated[int | None, typer.Option(help="Use at most this many training documents.")]
Validation = Annotated[int | None, typer.Option(help="Use at most this many validation documents.")]
Test = Annotated[int | None, typer.Option(help="Use at most this many test documents.")]
DropBadRows = Annotated[bool, typer.Option("--drop-bad-rows", help="Leave out rows of your files that cannot be used.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let your own task files run code (!function, fetched metrics).")
]

# What is read, in the words of `potentia.evidence.read`.
Study = Annotated[Many, typer.Option(help="Studies of the store, by name or key, or all; else the one opened last.")]
OnlyProtocols = Annotated[Many, typer.Option("--protocols", "--protocol", help="Only these protocols.")]
OnlyTasks = Annotated[Many, typer.Option("--tasks", "--task", help="Only these tasks, in all their forms.")]
OnlyModels = Annotated[Many, typer.Option("--models", help="Only these models.")]
Facts = Annotated[Path | None, typer.Option(help="A CSV of facts on models of your own.")]
TaskFacts = Annotated[Path | None, typer.Option(help="A CSV of facts on tasks: task, category, train_size, chance.")]
Map = Annotated[
    Many, typer.Option("--map", metavar="FIELD=COLUMN", help="Say which column of a table is what, as score=Accuracy.")
]
Lower = Annotated[Many, typer.Option("--lower", metavar="COLUMN", help="Columns that are better when lower.")]
Scale = Annotated[
    Many,
    typer.Option("--scale", metavar="COLUMN=SCALE", help="The scale of a column: share, percent, range or unbounded."),
]
Kind = Annotated[Many, typer.Option("--kind", metavar="COLUMN=KIND", help="What a column is of: task, or text.")]
Apart = Annotated[
    bool,
    typer.Option("--apart", help="Show scores that cannot be compared group by group, instead of refusing them."),
]
Metric = Annotated[
    str | None, typer.Option(help="The metric of the scores, such as acc or brier_score; else each task's own.")
]

# What comes out.
Figures = Annotated[Path | None, typer.Option(help="Draw the figures, or write the tables, into this folder.")]
Formats = Annotated[Many, typer.Option(help="Of figures pdf, png, svg; of tables csv, latex; several may be given.")]
NoTitles = Annotated[bool, typer.Option("--no-titles", help="Draw the figures without title and caption.")]
