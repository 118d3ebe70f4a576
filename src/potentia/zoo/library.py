"""The shipped zoo: names and facts of its models, and folders that any tool can load.

The weights lie in the package without tokenizer; :func:`write_model_folders` lays out complete Hugging Face folders in
a cache, :func:`write_task_files` writes the benchmarks there, both in well under a second.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from potentia.errors import ModelError
from potentia.files import write_if_changed
from potentia.zoo.benchmarks import BENCHMARK, BENCHMARKS, make_documents, skewed_documents
from potentia.zoo.world import (
    ASSISTANT,
    BOS,
    EOS,
    PAD,
    SPECIAL,
    SPLITS,
    UNK,
    USER,
    World,
    make_world,
    vocabulary,
)

CONTEXT = 64
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} "
    + ASSISTANT
    + " {{ message['content'] }} {{ eos_token }}"
    "{% else %} " + USER + " {{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} " + ASSISTANT + "{% endif %}"
)


def write_tokenizer(folder: Path, *, chat: bool = False) -> None:
    """Write tokenizer files that ``AutoTokenizer`` reads; a text begins with the start token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    id_by_word = {word: token_id for token_id, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(WordLevel(id_by_word, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, id_by_word[BOS])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    if chat:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class ZooModel:
    """What is known of a zoo model: ordinary facts, its planted exposure, and its measured knowledge."""

    name: str
    family: str
    kind: str  # base, instruct, checkpoint, lab (seeds and mixes)
    base_model: str  # of an instruct model what it was tuned from; of a checkpoint the final model of its run
    parameters: int
    tokens: int
    flops: float
    date: str
    seed: int
    mix: str
    steps: int
    exposure: tuple[str, ...]  # the benchmarks whose form was in its pretraining
    knowledge: float  # share of test facts known in the corpus's own words
    measured: dict[str, float] = field(repr=False)  # the same for each kind of fact and skill


@cache
def models(*kinds: str) -> tuple[ZooModel, ...]:
    """All shipped models, or those of the given kinds (``base``, ``instruct``, ``checkpoint``, ``lab``)."""
    with (WEIGHTS / "facts.csv").open(encoding="utf-8", newline="") as file:
        every_model = [_parse_model(row) for row in csv.DictReader(file)]
    return tuple(model for model in every_model if not kinds or model.kind in kinds)


def _parse_model(row: dict[str, str]) -> ZooModel:
    columns = list(row)
    measured_columns = columns[columns.index("knowledge") + 1 :]
    return ZooModel(
        name=row["name"],
        family=row["family"],
        kind=row["kind"],
        base_model=row["base_model"],
        parameters=int(row["parameters"]),
        tokens=int(row["tokens"]),
        flops=float(row["flops"]),
        date=row["date"],
        seed=int(row["seed"]),
        mix=row["mix"],
        steps=int(row["steps"]),
        exposure=tuple(row["exposure"].split()),
        knowledge=float(row["knowledge"]),
        measured={column: float(row[column]) for column in measured_columns},
    )


def find_model(model_name: str) -> ZooModel:
    """The facts of one model by name."""
    for candidate in models():
        if candidate.name == model_name:
            return candidate
    base_names = ", ".join(base.name for base in models("base"))
    raise ModelError(f"the zoo has no model {model_name!r}", hint=f"one of: {base_names}, …")


def write_model_folders(
    cache_dir: Path, model_names: Iterable[str] | None = None
) -> dict[str, Path]:
    """Lay out models (all, or the named ones) as Hugging Face folders below ``cache_dir``; name → folder."""
    chosen = (
        models() if model_names is None else [find_model(model_name) for model_name in model_names]
    )
    folders = {}
    for zoo_model in chosen:
        folder = Path(cache_dir) / zoo_model.name
        write_tokenizer(folder, chat=zoo_model.kind == "instruct")
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(WEIGHTS / zoo_model.name / file, folder / file)
        folders[zoo_model.name] = folder
    return folders


def write_task_files(cache_dir: Path, world: World | None = None) -> dict[str, Path]:
    """Write all benchmarks below ``cache_dir``; name → task file, for Potentia and lm_eval alike.

    ``<cache_dir>/<name>.yaml`` defines the task over ``<cache_dir>/<name>/{train,validation,test}.jsonl``.
    """
    world = world or make_world()
    tasks = {}
    for benchmark in BENCHMARKS:
        lines_by_split = make_documents(world, benchmark)
        tasks[benchmark.name] = _write_task(
            Path(cache_dir), benchmark.name, benchmark.kind, lines_by_split
        )
    return tasks


def write_skewed_task(
    cache_dir: Path,
    task_name: str,
    *,
    gives_away: bool,
    benchmark: str = "ask",
    seed: int = 0,
    world: World | None = None,
) -> Path:
    """Write a benchmark like another with half of its questions: any, or those whose answers give themselves away."""
    lines_by_split = skewed_documents(
        world or make_world(), BENCHMARK[benchmark], gives_away=gives_away, seed=seed
    )
    return _write_task(Path(cache_dir), task_name, BENCHMARK[benchmark].kind, lines_by_split)


def _write_task(
    cache_dir: Path,
    task_name: str,
    output_type: str,
    lines_by_split: Mapping[str, Sequence[dict[str, object]]],
) -> Path:
    """Write the files of one benchmark, and return the one that defines it."""
    folder = (cache_dir / task_name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, lines in lines_by_split.items():
        split_file = folder / f"{split}.jsonl"
        write_if_changed(split_file, "".join(json.dumps(line) + "\n" for line in lines))
        files[split] = str(split_file)
    definition_file = cache_dir / f"{task_name}.yaml"
    split_files = {
        "task": f"zoo_{task_name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
    }
    # JSON is YAML
    write_if_changed(
        definition_file, json.dumps(split_files | _SPLITS | _KINDS[output_type], indent=1) + "\n"
    )
    return definition_file


def _metric_definition(
    metric_name: str, aggregation: str = "mean", higher: bool = True, **options: object
) -> dict[str, object]:
    return {
        "metric": metric_name,
        "aggregation": aggregation,
        "higher_is_better": higher,
        **options,
    }


_SPLITS: dict[str, object] = {
    f"{use}_split": split for use, split in zip(("training", *SPLITS[1:]), SPLITS, strict=True)
}
_SPLITS["metadata"] = {"version": 1.0}
_KINDS: dict[str, dict[str, object]] = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [_metric_definition("acc")],
    },
    "generate": {
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{completion}}",
        "target_delimiter": " ",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 3, "do_sample": False},
        "metric_list": [_metric_definition("exact_match", ignore_case=False)],
    },
    "text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [
            _metric_definition("bits_per_byte", "bits_per_byte", False),
            _metric_definition("word_perplexity", "weighted_perplexity", False),
        ],
    },
}
