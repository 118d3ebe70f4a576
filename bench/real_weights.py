"""Real weights on real benchmarks, to the end, on a CPU: two models × four benchmarks × three protocols.

    python bench/real_weights.py --data ../shared/data/benchmarks

Fetches SmolLM2-135M-Instruct and Gemma-3-270M (``tools/real_models.py``), runs ``potentia run`` with `direct`,
`few_shot:5` and `train_before_test`, plain and chat prompts, and small caps, and prints every cell. The memory of texts
is made so small that the study overflows it many times, as a study without caps does. Exits with 1 where a cell is
missing or the memory was never emptied. About half an hour on two quiet cores; no part of ``make test``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct",
    "gemma3": "gemma-3-270m",
    "stories": "stories15M",
    "qwen": "Qwen2.5-Coder-0.5B-Instruct",
}
TASKS = ("openbookqa", "arc_easy", "commonsense_qa", "boolq")
PROTOCOLS = ("direct", "few_shot:5", "train_before_test")


def main() -> int:
    """Fetch, run, show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark splits")
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="where the models are, or go"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("real-weights"), help="where the study and its store go"
    )
    parser.add_argument(
        "--archives",
        type=Path,
        help="a folder of archives fetched before, for tools/real_models.py",
    )
    parser.add_argument("--only", choices=sorted(MODELS), nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument(
        "--remembered", type=int, default=10_000, help="tokens that the memory of texts may hold"
    )
    parser.add_argument(
        "--rates", type=float, nargs="*", default=[5e-5, 2e-4], help="learning rates"
    )
    parser.add_argument("--epochs", type=int, default=2)
    for split, cap in (("train", 32), ("validation", 12), ("test", 16)):
        parser.add_argument(
            f"--{split}", type=int, default=cap, help=f"documents of each benchmark; {cap}"
        )
    options = parser.parse_args()
    if options.train < 6:
        parser.error("prompts of five examples need six training documents")
    fetch = [
        sys.executable,
        str(ROOT / "tools" / "real_models.py"),
        "--out",
        str(options.models),
        *options.only,
    ]
    subprocess.run(
        fetch + (["--archives", str(options.archives)] if options.archives else []), check=True
    )
    study = write_study(options)
    began = time.monotonic()
    status, emptied = run(study, options.remembered)
    print(f"potentia run: exit {status} after {time.monotonic() - began:,.0f} s")
    print(f"the memory of texts, {options.remembered:,} tokens, was emptied {emptied} times")
    missing = show(options.out / "store.db", [MODELS[name] for name in options.only])
    return 1 if status or missing or not emptied else 0


def run(study: Path, remembered: int) -> tuple[int, int]:
    """Run ``potentia run`` with a small memory of texts: its exit status, and how often the memory was emptied."""
    from potentia import cli
    from potentia.engine import Encoder
    from potentia.engine.models import tokenization as tokens

    emptied = 0
    original = Encoder._evict_from_cache

    def evict_from_cache(encoder: Encoder, count: int) -> None:
        nonlocal emptied
        cached_tokens = encoder._cached_tokens
        original(encoder, count)
        emptied += cached_tokens > 0 and encoder._cached_tokens == count

    tokens.CACHED_TOKENS = remembered
    Encoder._evict_from_cache = evict_from_cache  # type: ignore[method-assign]
    sys.argv = ["potentia", "run", str(study)]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0), emptied
    return 0, emptied


def write_study(options: argparse.Namespace) -> Path:
    """Write the study's file."""
    options.out.mkdir(parents=True, exist_ok=True)
    study = {
        "name": "real-weights",
        "models": [
            {"name": MODELS[name], "path": str(weights(options.models / MODELS[name]).resolve())}
            for name in options.only
        ],
        "tasks": list(TASKS),
        "data_dir": str(options.data.resolve()),
        "protocols": list(PROTOCOLS),
        "caps": {"train": options.train, "validation": options.validation, "test": options.test},
        "tuning": {"learning_rates": options.rates, "epochs": options.epochs},
        "device": "cpu",
        "store": str((options.out / "store.db").resolve()),
    }
    file = options.out / "study.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    return file


def weights(folder: Path) -> Path:
    """Return what to load: the GGUF file, or the folder where there is none."""
    return folder / "model.gguf" if (folder / "model.gguf").exists() else folder


def show(location: Path, models: list[str]) -> list[str]:
    """Print every cell; returns those that are missing."""
    from potentia.store import Store

    with Store.open(str(location), readonly=True) as store:
        cells = {
            (cell.model, cell.task, str(cell.protocol)): cell
            for cell in store.cells.read(study="real-weights")
        }
    missing = []
    print(f"\n{'model':24}{'task':16}" + "".join(f"{protocol:>24}" for protocol in PROTOCOLS))
    for model in models:
        for task in TASKS:
            line = f"{model:24}{task:16}"
            for protocol in PROTOCOLS:
                cell = cells.get((model, task, protocol))
                if cell is None:
                    missing.append(f"{model} {task} {protocol}")
                description = (
                    "missing"
                    if cell is None
                    else f"{cell.score.value:.3f} ± {cell.score.stderr:.3f}"
                )
                line += f"{description:>24}"
            print(line)
    styles = sorted({style for cell in cells.values() for style in cell.provenance.styles})
    print(f"prompts: {', '.join(styles)}; {len(cells)} cells, {len(missing)} missing")
    return missing


if __name__ == "__main__":
    sys.exit(main())
