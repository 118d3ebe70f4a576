"""Parity on real weights: stock lm-eval tasks, scored by Potentia and by HFLM, item by item.

    python bench/parity.py --model MODEL_FOLDER --data ../shared/data --documents 200

Runs arc_easy, boolq, winogrande, gsm8k (zero-shot here) and one corpus in windows of ``--window`` tokens. Prints for
each the largest difference of a log-likelihood, the number of items whose answer differs, and both values of every
metric. For a model that needs BOS, lm-eval's later windows lack it: both bits per byte are printed, and that row is no
failure.
Exits 1 when an answer or a metric differs, or a log-likelihood by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml

from potentia.engine import load
from potentia.integrations.lm_eval import PotentiaLM

TASKS = {
    "arc_easy": "arc/arc_easy.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "winogrande": "winogrande/default.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
}


def stock(name: str, data: Path, new_tokens: int) -> ConfigurableTask:
    """Return lm-eval's own task on the local copy of its data."""
    config = load_yaml(Path(lm_eval.__file__).parent / "tasks" / TASKS[name])
    folder = (
        data
        / "benchmarks"
        / config["dataset_path"].replace("/", "--")
        / (config.get("dataset_name") or "default")
    )
    config.pop("tag", None)
    files = {file.stem: str(file) for file in folder.glob("*.parquet")}
    config.update(
        task=name, dataset_path="parquet", dataset_name=None, dataset_kwargs={"data_files": files}
    )
    config["num_fewshot"] = 0
    if "generation_kwargs" in config:
        config["generation_kwargs"]["max_gen_toks"] = new_tokens
    return ConfigurableTask(config=config)


def corpus(name: str, data: Path) -> ConfigurableTask:
    """Return a corpus as lm-eval's perplexity task."""
    return ConfigurableTask(
        config={
            "task": name,
            "dataset_path": "parquet",
            "dataset_kwargs": {
                "data_files": {"test": str(data / "corpora" / name / "test.parquet")}
            },
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}, {"metric": "byte_perplexity"}],
        }
    )


def evaluate(
    model: Any, task: ConfigurableTask, name: str, count: int
) -> tuple[dict[str, Any], float]:
    """Run one task with lm-eval's own evaluator."""
    began = time.perf_counter()
    results = lm_eval.evaluate(
        lm=model, task_dict={name: task}, limit=count, bootstrap_iters=0, log_samples=True
    )
    return results, time.perf_counter() - began


def compare(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, int, str]:
    """Return (largest log-likelihood difference, items that differ, metrics side by side)."""
    apart, differ = 0.0, 0
    for mine, their_sample in zip(ours["samples"][name], theirs["samples"][name], strict=True):
        for a, b in zip(_flat(mine["resps"]), _flat(their_sample["resps"]), strict=True):
            if isinstance(a, float):
                apart = max(apart, abs(a - b))
            else:
                differ += a != b
    pairs = []
    for metric, value in theirs["results"][name].items():
        if isinstance(value, float) and "stderr" not in metric:
            pairs.append(
                f"{metric.removesuffix(',none')} {ours['results'][name][metric]:.6g} / {value:.6g}"
            )
    return apart, differ, ", ".join(pairs)


def _flat(values: Any) -> list[Any]:
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in _flat(value)]
    return [values]


def main() -> int:
    """Compare task by task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with benchmarks/ and corpora/"
    )
    parser.add_argument("--tasks", nargs="*", default=[*TASKS, "classic_books"])
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--texts", type=int, default=20, help="documents of the corpus")
    parser.add_argument("--window", type=int, default=512, help="context length for the corpus")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens to generate")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=16, help="HFLM's batch size")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    loaded = load(arguments.model)
    failed = False
    for name in arguments.tasks:
        rolling = name not in TASKS
        task = (
            corpus(name, arguments.data)
            if rolling
            else stock(name, arguments.data, arguments.new_tokens)
        )
        count = arguments.texts if rolling else arguments.documents
        window = {"max_length": arguments.window} if rolling else {}
        ours, quick = evaluate(PotentiaLM(loaded, **window), task, name, count)
        harness = HFLM(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            batch_size=arguments.batch,
            **window,
        )
        theirs, slow = evaluate(harness, task, name, count)
        apart, differ, metrics = compare(name, ours, theirs)
        wrong = rolling and loaded.bos.required
        if rolling:
            relative = apart / max(
                abs(v) for s in theirs["samples"][name] for v in _flat(s["resps"])
            )
            failed |= not wrong and relative > 1e-6
            note = f"relative {relative:.1e}" + (
                ", lm-eval's later windows lack BOS" if wrong else ""
            )
        else:
            failed |= apart > arguments.tolerance or differ > 0
            note = f"{differ} answers differ"
        print(
            f"{name}: log-likelihoods within {apart:.1e} ({note}); "
            f"potentia / HFLM: {metrics}; {quick:.0f} s / {slow:.0f} s",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
