"""Which of two learning rates wins on real models, by their width: whether the search should start lower for wide ones.

    python bench/learning_rates.py ../shared/data/real_study/curves.csv

The file has the learning curves of the study of real models, which tried 2e-4 and 1e-3 for every model and task. "LoRA
Without Regret" puts the best rate at about 5e-4 · (2000 / width)^0.78; the table has that rate beside the wins.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

WIDTHS = {
    "stories15M": 288,
    "SmolLM2-135M-Instruct": 576,
    "gemma-3-270m": 640,
    "Qwen2.5-Coder-0.5B-Instruct": 896,
    "TinyLlama-1.1B-Chat-v1.0": 2048,
}


def count_wins(curves: pd.DataFrame) -> pd.DataFrame:
    """Return, for each width, on how many tasks each learning rate reached the better validation score."""
    trained = curves[curves["epoch"] > 0].dropna(subset=["validation"])
    best = trained.groupby(["model", "task", "learning_rate"])["validation"].max().unstack()
    lower, higher = sorted(best.columns)
    original = best.index.get_level_values("model").str.removesuffix("+exposed")
    wins = pd.DataFrame(
        {
            "width": original.map(WIDTHS),
            f"{lower:g} wins": best[lower] > best[higher],
            "tie": best[lower] == best[higher],
            f"{higher:g} wins": best[higher] > best[lower],
        }
    )
    return wins.groupby("width").sum()


def rate_by_law(width: int) -> float:
    """Return the learning rate that the law names for a width."""
    return float(5e-4 * (2000 / width) ** 0.78)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curves", type=Path)
    options = parser.parse_args()
    wins = count_wins(pd.read_csv(options.curves))
    wins["rate by the law"] = [f"{rate_by_law(width):.1e}" for width in wins.index]
    print(wins.to_string())


if __name__ == "__main__":
    main()
