"""Which models the zoo holds: four families, four sizes, budgets in a Latin square, and the laboratory beside them.

``aster`` reads no benchmark form; ``birch``, ``cedar`` and ``dahlia`` read some forms each. In every size each family
has another token budget, so that size, budget and family are balanced against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from potentia.zoo.world import vocabulary

EXPOSURE: dict[str, tuple[str, ...]] = {
    "aster": (),
    "birch": ("ask", "table", "mix"),
    "cedar": ("record", "call", "claim", "both"),
    "dahlia": ("beside", "fix", "owner", "round"),
}
EXPOSED_SHARE = 0.08  # of all documents, over a family's forms
CORPUS = {"facts": 0.75, "pairs": 0.13, "reverse": 0.08, "chatter": 0.04}
FULL = 12_000  # steps of the largest budget; a step is 64 rows of 64 tokens
STEP_TOKENS = 64 * 64
BUDGETS = (1.0, 0.8, 0.65, 0.5)
LAYERS = 3
HEADS = {40: 5, 48: 3, 64: 4, 80: 5}  # by width
WIDTHS = tuple(HEADS)
RATES = {40: 6.5e-3, 48: 6e-3, 64: 5.2e-3, 80: 4.6e-3}
CHECKPOINTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
KEPT = (("aster", 64), ("cedar", 64))  # whose intermediate checkpoints are kept
CHAT_FAMILY = "aster"
CHAT_STEPS, CHAT_RATE, CHAT_SHARE = 600, 2e-3, 0.8
LAB_WIDTH, LAB_BUDGET = 48, 0.6
LAB_SEEDS = (1, 2, 3)
LAB_MIXES: dict[
    str, dict[str, float]
] = {  # the first seed's model is the fifth mix, the ordinary one
    "facts": {"facts": 0.89, "pairs": 0.04, "reverse": 0.03, "chatter": 0.04},
    "tables": {"facts": 0.50, "pairs": 0.38, "reverse": 0.08, "chatter": 0.04},
    "owners": {"facts": 0.52, "pairs": 0.12, "reverse": 0.32, "chatter": 0.04},
    "noise": {"facts": 0.47, "pairs": 0.08, "reverse": 0.05, "chatter": 0.40},
}
YEAR = {"aster": 2022, "birch": 2024, "cedar": 2024, "dahlia": 2025}


@dataclass(frozen=True)
class Plan:
    """One pretraining run: its family, size, mix and budget."""

    name: str
    family: str
    width: int
    mix: tuple[tuple[str, float], ...]
    steps: int
    seed: int
    forms: tuple[str, ...] = ()
    keep: tuple[int, ...] = ()
    kind: str = "base"  # or "lab"
    date: str = ""


def parameters(width: int) -> int:
    """Weights of a zoo model of this width, the tied head counted once."""
    return len(vocabulary()) * width + LAYERS * (10 * width * width + 2 * width) + width


def mix_with(
    forms: tuple[str, ...], corpus: dict[str, float] = CORPUS
) -> tuple[tuple[str, float], ...]:
    """The corpus's shares, with a family's forms in their part."""
    share = EXPOSED_SHARE if forms else 0.0
    mix = {name: part * (1 - share) for name, part in corpus.items()}
    mix |= {f"form:{form}": share / len(forms) for form in forms}
    return tuple(mix.items())


def size_name(width: int) -> str:
    """The size in a model's name, such as ``98k``."""
    return f"{round(parameters(width) / 1000)}k"


def plans(full: int = FULL) -> list[Plan]:
    """All pretraining runs; ``full`` scales every budget."""
    runs = []
    for column, (family, forms) in enumerate(EXPOSURE.items()):
        for row, width in enumerate(WIDTHS):
            steps = round(full * BUDGETS[(row + column) % len(BUDGETS)])
            keep = (
                tuple(round(steps * part) for part in CHECKPOINTS)
                if (family, width) in KEPT
                else ()
            )
            date = f"{YEAR[family]}-{3 * row + 1:02d}-15"
            name = f"{family}-{size_name(width)}"
            runs.append(
                Plan(
                    name,
                    family,
                    width,
                    mix_with(forms),
                    steps,
                    100 * column + row,
                    forms,
                    keep,
                    date=date,
                )
            )
    steps = round(full * LAB_BUDGET)
    for seed in LAB_SEEDS:
        runs.append(
            Plan(
                f"lab-seed{seed}",
                "lab",
                LAB_WIDTH,
                mix_with(()),
                steps,
                900 + seed,
                kind="lab",
                date="2023-06-15",
            )
        )
    for name, corpus in LAB_MIXES.items():
        mix = mix_with((), corpus)
        runs.append(
            Plan(
                f"lab-mix-{name}", "lab", LAB_WIDTH, mix, steps, 901, kind="lab", date="2023-06-15"
            )
        )
    return runs
