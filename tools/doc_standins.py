"""What the documents' commands find when they are tested: a folder of small things under the names that the pages use.

The hub's models and datasets are folders of the same names beside the reader, which transformers and datasets take
before they ask the hub: real models with random weights, and a few made-up questions in each dataset's own columns.
Score tables and stores hold made-up scores of real models. So every command does all of its work, on next to nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "published"
HUB_MODELS = (
    "HuggingFaceTB/SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "EleutherAI/pythia-160m",
    "EleutherAI/pythia-70m",
    "Qwen/Qwen2.5-0.5B",
)
SCORED = (
    "Qwen/Qwen2-0.5B",
    "Qwen/Qwen2-1.5B",
    "Qwen/Qwen2-7B",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-7B",
    "EleutherAI/pythia-160m",
    "EleutherAI/pythia-410m-deduped",
    "EleutherAI/pythia-1b-deduped",
    "EleutherAI/pythia-2.8b-deduped",
    "EleutherAI/pythia-6.9b-deduped",
    "HuggingFaceTB/SmolLM2-135M",
)
CHAT = tuple(f"{name}-Instruct" for name in SCORED[:6])
TASKS = ("arc_easy", "arc_challenge", "boolq", "piqa", "gsm8k", "nq_open")
THINGS = (
    "river",
    "stone",
    "lamp",
    "horse",
    "cloud",
    "bridge",
    "apple",
    "garden",
    "candle",
    "wheel",
    "mirror",
    "boat",
)
COLOURS = ("red", "blue", "green", "white")
PAGES = {
    "exposure": "adjusted.csv",
    "checkpoints": "checkpoints.csv",
    "proxy": "groups.csv",
}
OWN_STORE = (
    "README",
    "quickstart",
    "run",
    "store",
    "scale-out",
)  # pages that make potentia.db themselves


def prepare(page_folder: Path, folder: Path, *, published: bool = False) -> None:
    """Fill a page's folder; what is slow to make is made once, in ``folder``.

    ``published`` asks for the published scores instead of made-up ones under their names, where they are at hand.
    """
    common = folder / "common"
    if not common.exists():
        common.mkdir()
        _models(common)
        for name, make in DATASETS.items():
            _dataset(common / name, make)
        _scores(common)
    shutil.copytree(common, page_folder)
    shutil.copytree(ROOT / "examples", page_folder / "examples")
    with (page_folder / "examples" / "first.yaml").open("a", encoding="utf-8") as study:
        study.write("tuning: {epochs: 1, learning_rates: [0.001]}\n")  # the pages run it six times
    (page_folder / "tools").symlink_to(ROOT / "tools")
    (page_folder / "bench").symlink_to(ROOT / "bench")
    if page := PAGES.get(page_folder.name):
        shutil.copy(page_folder / page, page_folder / "scores.csv")
    shutil.copy(page_folder / "examples" / "first.yaml", page_folder / "study.yaml")
    shutil.copy(page_folder / "ours.db", page_folder / "earlier.db")
    if page_folder.name in PAGES:
        _import_scores(page_folder / "scores.csv", page_folder / "potentia.db", "first")
    elif page_folder.name not in OWN_STORE:
        shutil.copy(common / "first.db", page_folder / "potentia.db")
    for file in PUBLISHED.glob("*.csv") if published else ():
        shutil.copy(file, page_folder)


# --- the hub ----------------------------------------------------------------------------------------------------------


def _models(folder: Path) -> None:
    """Save a small Llama with random weights and a tokenizer of whole words under each name."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = sorted(
        {word for make in DATASETS.values() for row in make(16, 0) for word in _flat(row).split()}
        | _words_of_own_data()
    )
    vocabulary = {word: k for k, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for seed, name in enumerate(HUB_MODELS):
        torch.manual_seed(seed)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core,
            pad_token="<pad>",
            bos_token="<bos>",
            eos_token="<eos>",
            unk_token="<unk>",
        )
        if name.endswith("Instruct"):
            tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
        config = LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=0.3,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def _words_of_own_data() -> set[str]:
    """Return the words of the texts that readers are shown to write themselves: a model must know some of them."""
    files = [ROOT / "docs" / "own-data.md", *(ROOT / "examples" / "own-data").glob("*.*l")]
    texts = " ".join(file.read_text("utf-8") for file in files)
    return set(re.findall(r"\w+[.,?!]?", texts))


def _flat(row: Any) -> str:
    if isinstance(row, dict):
        return " ".join(_flat(value) for value in row.values())
    return " ".join(map(_flat, row)) if isinstance(row, list) else str(row)


def _dataset(folder: Path, make: Callable[[int, int], list[dict[str, Any]]]) -> None:
    """Write one configuration of a dataset: its splits as JSON lines, and the note that names them."""
    splits = {"train": 8, "validation": 8, "test": 8}
    folder.mkdir(parents=True)
    for seed, (split, size) in enumerate(splits.items()):
        lines = (json.dumps(row) for row in make(size, seed))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    home, config = folder.parent, folder.name
    readme = home / "README.md"
    head = readme.read_text("utf-8").removesuffix("---\n") if readme.exists() else "---\nconfigs:\n"
    entry = [f"- config_name: {config}", "  data_files:"]
    entry += [line for s in splits for line in (f"  - split: {s}", f"    path: {config}/{s}.jsonl")]
    readme.write_text(head + "\n".join(entry) + "\n---\n", "utf-8")


def _choices(stream: random.Random) -> tuple[str, dict[str, list[str]], int]:
    options = stream.sample(COLOURS, 4)
    return (
        stream.choice(THINGS),
        {"text": list(options), "label": list("ABCD")},
        stream.randrange(4),
    )


def _arc(n: int, seed: int) -> list[dict[str, Any]]:
    stream, rows = random.Random(seed), []
    for k in range(n):
        subject, choices, gold = _choices(stream)
        question = f"What colour is the {subject} in picture number {seed * 100 + k} ?"
        rows.append(
            {
                "id": f"{seed}-{k}",
                "question": question,
                "choices": choices,
                "answerKey": "ABCD"[gold],
            }
        )
    return rows


def _openbook(n: int, seed: int) -> list[dict[str, Any]]:
    rows = [{**row, "question_stem": row["question"]} for row in _arc(n, seed)]
    return [{key: value for key, value in row.items() if key != "question"} for row in rows]


def _boolq(n: int, seed: int) -> list[dict[str, Any]]:
    stream = random.Random(seed)
    return [
        {
            "passage": f"The {stream.choice(THINGS)} is old .",
            "question": f"is the {stream.choice(THINGS)} old",
            "idx": k,
            "label": stream.randrange(2),
        }
        for k in range(n)
    ]


def _gsm8k(n: int, seed: int) -> list[dict[str, Any]]:
    stream, rows = random.Random(seed), []
    for _ in range(n):
        a, b = stream.randrange(2, 30), stream.randrange(2, 30)
        question = f"Ann has {a} of them and finds {b} . How many has she ?"
        rows.append(
            {
                "question": question,
                "answer": f"She has {a} + {b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}",
            }
        )
    return rows


DATASETS: dict[str, Callable[[int, int], list[dict[str, Any]]]] = {
    "allenai/ai2_arc/ARC-Easy": _arc,
    "allenai/ai2_arc/ARC-Challenge": _arc,
    "allenai/openbookqa/main": _openbook,
    "aps/super_glue/boolq": _boolq,
    "openai/gsm8k/main": _gsm8k,
}


# --- scores -----------------------------------------------------------------------------------------------------------


def _table(
    file: Path,
    models: Sequence[str],
    protocols: Sequence[str],
    tasks: Sequence[str] = TASKS,
    seed: int = 0,
) -> None:
    """Write made-up scores: a model's strength, a task's difficulty, and noise, less of it after tuning."""
    stream = random.Random(seed)
    strength = {model: (k + stream.random()) / len(models) for k, model in enumerate(models)}
    lines = ["protocol,model,benchmark,score,stderr"]
    for protocol in protocols:
        noise = 0.12 if protocol == "direct" else 0.03
        for k, task in enumerate(tasks):
            for model in models:
                value = min(
                    0.96, max(0.05, 0.3 + 0.05 * k + 0.4 * strength[model] + stream.gauss(0, noise))
                )
                lines.append(f"{protocol},{model},{task},{value:.4f},0.012")
        for model in models:
            lines.append(
                f"{protocol},{model},wiki_2025,{1.4 - 0.5 * strength[model] + stream.gauss(0, 0.02):.4f},0.004"
            )
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _scores(folder: Path) -> None:
    protocols = ("direct", "train_before_test")
    _table(folder / "scores.csv", SCORED, protocols)
    _table(folder / "ours.csv", SCORED[:6], protocols, seed=1)
    _table(folder / "theirs.csv", SCORED[6:], protocols, seed=2)
    _table(folder / "train_before_test_scores.csv", [*SCORED, *CHAT], protocols, seed=3)
    steps = [f"run@{step}" for step in (1000, 2000, 4000, 8000, 16000, 32000)]
    _table(folder / "checkpoints.csv", steps, protocols, seed=4)
    groups = [f"mix{x}" for x in "ABCD"] + [f"s{k}" for k in range(1, 5)]
    _table(folder / "groups.csv", [*SCORED, *groups, "run@1000", "run@2000"], protocols, seed=5)
    _table(folder / "chat.csv", [*SCORED, *CHAT], protocols, seed=7)
    with (folder / "chat.csv").open(
        "a", encoding="utf-8"
    ) as table:  # an ability that base models are not asked for
        table.writelines(
            f"{p},{m},t_eval,{0.3 + 0.05 * k},0.01\n" for p in protocols for k, m in enumerate(CHAT)
        )
    _table(folder / "adjusted.csv", SCORED, ("direct", "adjust@100", "adjust"), TASKS[:2], seed=6)
    _write(
        folder / "pairs.csv",
        "base,instruct",
        [f"{base},{base}-Instruct" for base in SCORED[: len(CHAT)]],
    )
    _write(
        folder / "steps.csv",
        "model,series,tokens",
        [f"{m},run,{m.partition('@')[2]}e6" for m in steps],
    )
    facts = [
        f"{m},{m.split('/')[0]},2023-{1 + k:02},{k + 1},{100 * k + 100},{('en', 'en+cn')[k % 2]}"
        for k, m in enumerate(SCORED)
    ]
    _write(folder / "models.csv", "model,family,trained,params_b,tokens_b,language", facts)
    results = folder / "training-on-the-test-task" / "notebooks" / "evaluations"
    for stage, name in (
        ("base", "pythia-70m-mmlu"),
        ("base", "pythia-70m-gsm8k"),
        ("e3/mmluaux", "pythia-70m-mmlu"),
    ):
        matrices = (
            {"gsm8k": {"exact_match,flexible-extract": 0.1}}
            if "gsm" in name
            else {"mmlu_law": {"acc,none": 0.3}}
        )
        (results / stage).mkdir(parents=True, exist_ok=True)
        (results / stage / f"{name}.json").write_text(json.dumps({"results": matrices}), "utf-8")
    _import_scores(folder / "ours.csv", folder / "ours.db", "ours")
    _import_scores(folder / "scores.csv", folder / "first.db", "first")
    _potentia(
        "export",
        str(folder / "ours.csv"),
        "-o",
        str(folder / "lm_eval_output"),
        "--to",
        "lm-eval",
    )
    rows = [
        {**row, "choices": row["choices"]["text"], "answer": row["answerKey"]}
        for row in _arc(60, 9)
    ]
    (folder / "my_task.yaml").write_text(
        "task: my_task\ndataset_path: allenai/ai2_arc\ndataset_name: ARC-Easy\noutput_type: multiple_choice\n"
        "training_split: train\nvalidation_split: validation\ntest_split: test\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices.text}}"\n'
        'doc_to_target: "{{choices.label.index(answerKey)}}"\n',
        "utf-8",
    )
    (folder / "my.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    shutil.copytree(
        folder / "allenai" / "ai2_arc" / "ARC-Easy",
        folder / "data" / "allenai--ai2_arc" / "ARC-Easy",
    )


def _write(file: Path, head: str, lines: Sequence[str]) -> None:
    file.write_text("\n".join([head, *lines]) + "\n", "utf-8")


def _import_scores(scores: Path, store: Path, study: str) -> None:
    """Put a table into a store under the name of a study."""
    described = scores.with_name(f"{study}.import.yaml")
    described.write_text(f"study: {study}\n")
    _potentia("export", str(scores), "-o", str(store), "--columns", str(described))
    described.unlink()


def _potentia(*arguments: str) -> None:
    import typer

    from potentia.cli.app import app

    with contextlib.redirect_stdout(io.StringIO()):
        typer.main.get_command(app)(args=list(arguments), standalone_mode=False)
