"""The shipped zoo: names and facts of its models, and folders that any tool can load.

The weights lie in the package without tokenizer; :func:`write_model_folders` lays out complete Hugging Face folders in
a cache, :func:`write_task_files` writes the benchmarks there, both in well under a second.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from potentia.errors import ModelError
from potentia.files import write_if_changed
from potentia.zoo.benchmarks import BENCHMARKS, documents
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

    ids = {word: i for i, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, ids[BOS])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": UNK},
        **{"model_max_length": CONTEXT, "clean_up_tokenization_spaces": False},
        **({"chat_template": CHAT_TEMPLATE} if chat else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class ZooModel:
    """What is known of a zoo model: ordinary facts, and the planted truth (exposure, knowledge)."""

    name: str
    family: str
    kind: str  # base, instruct, checkpoint (of base_model), lab (seeds and mixes)
    base_model: str
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
        return tuple(
            _model(row) for row in csv.DictReader(file) if not kinds or row["kind"] in kinds
        )


def _model(row: dict[str, str]) -> ZooModel:
    measured = list(row)[list(row).index("knowledge") + 1 :]
    words: dict[str, Any] = {
        name: row[name] for name in ("name", "family", "kind", "base_model", "date", "mix")
    }
    counts: dict[str, Any] = {
        name: int(row[name]) for name in ("parameters", "tokens", "seed", "steps")
    }
    shares: dict[str, Any] = {name: float(row[name]) for name in ("flops", "knowledge")}
    exposure = tuple(row["exposure"].split())
    return ZooModel(
        **words,
        **counts,
        **shares,
        exposure=exposure,
        measured={k: float(row[k]) for k in measured},
    )


def model(name: str) -> ZooModel:
    """The facts of one model by name."""
    for found in models():
        if found.name == name:
            return found
    raise ModelError(
        f"the zoo has no model {name!r}",
        hint=f"one of: {', '.join(m.name for m in models('base'))}, …",
    )


def write_model_folders(cache_dir: Path, names: Iterable[str] | None = None) -> dict[str, Path]:
    """Lay out models (all, or the named ones) as Hugging Face folders below ``cache_dir``; name → folder."""
    folders = {}
    for found in models() if names is None else [model(name) for name in names]:
        folder = Path(cache_dir) / found.name
        write_tokenizer(folder, chat=found.kind == "instruct")
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(WEIGHTS / found.name / file, folder / file)
        folders[found.name] = folder
    return folders


def write_task_files(cache_dir: Path, world: World | None = None) -> dict[str, Path]:
    """Write all benchmarks below ``cache_dir``; name → task file, for Potentia and lm_eval alike.

    ``<cache_dir>/<name>.yaml`` defines the task over ``<cache_dir>/<name>/{train,validation,test}.jsonl``.
    """
    world = world or make_world()
    tasks = {}
    for benchmark in BENCHMARKS:
        folder = (Path(cache_dir) / benchmark.name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for split, lines in documents(world, benchmark).items():
            file = folder / f"{split}.jsonl"
            write_if_changed(file, "".join(json.dumps(line) + "\n" for line in lines))
            files[split] = str(file)
        path = Path(cache_dir) / f"{benchmark.name}.yaml"
        data = {
            "task": f"zoo_{benchmark.name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
        }
        write_if_changed(
            path, json.dumps(data | _SPLITS | _KINDS[benchmark.kind], indent=1) + "\n"
        )  # JSON is YAML
        tasks[benchmark.name] = path
    return tasks


def _metric(
    name: str, aggregation: str = "mean", higher: bool = True, **more: Any
) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher, **more}


_SPLITS: dict[str, Any] = {
    f"{use}_split": split for use, split in zip(("training", *SPLITS[1:]), SPLITS, strict=True)
}
_SPLITS["metadata"] = {"version": 1.0}
_KINDS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [_metric("acc")],
    },
    "generate": {
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{completion}}",
        "target_delimiter": " ",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 3, "do_sample": False},
        "metric_list": [_metric("exact_match", ignore_case=False)],
    },
    "text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [
            _metric("bits_per_byte", "bits_per_byte", False),
            _metric("word_perplexity", "weighted_perplexity", False),
        ],
    },
}
