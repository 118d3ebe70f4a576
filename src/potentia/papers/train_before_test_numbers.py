"""The numbers that the train-before-test paper prints, typed from its text and tables; nothing here is computed."""

from __future__ import annotations

# Table 5: mean agreement of each benchmark with all others: direct (0-shot), direct (5-shot), train-before-test.
TABLE_5: dict[str, tuple[float, float, float]] = {
    "nq_open": (0.23, 0.44, 0.74),
    "mrpc": (0.34, 0.39, 0.71),
    "wic": (0.39, 0.58, 0.75),
    "qnli": (0.43, 0.58, 0.74),
    "qqp": (0.43, 0.62, 0.77),
    "cola": (0.45, 0.65, 0.73),
    "sciq": (0.47, 0.49, 0.71),
    "sst2": (0.50, 0.62, 0.65),
    "gsm8k": (0.51, 0.62, 0.70),
    "anli_r1": (0.54, 0.56, 0.78),
    "medmcqa": (0.55, 0.66, 0.75),
    "rte": (0.55, 0.59, 0.74),
    "headqa_en": (0.55, 0.62, 0.77),
    "arc_easy": (0.55, 0.63, 0.80),
    "mnli": (0.56, 0.63, 0.80),
    "piqa": (0.56, 0.62, 0.78),
    "winogrande": (0.58, 0.63, 0.80),
    "commonsense_qa": (0.58, 0.65, 0.72),
    "social_iqa": (0.60, 0.67, 0.73),
    "arc_challenge": (0.61, 0.70, 0.81),
    "hellaswag": (0.61, 0.65, 0.81),
    "mathqa": (0.61, 0.67, 0.76),
    "openbookqa": (0.61, 0.64, 0.78),
    "boolq": (0.61, 0.68, 0.80),
}

# Section 3.2 and appendix B.4: mean over pairs of benchmarks.
MEAN_TAU = {"direct": 0.52, "few_shot": 0.61, "train_before_test": 0.76}
PAIRS_IMPROVED = (274, 276)
BETTER_THAN_FEW_SHOT = 0.89

# Section 3.2, figure 3: agreement within a category.
WITHIN = {"LU": (0.54, 0.75), "Math": (0.55, 0.84)}

# Section 3.3, figures 4 and 5: direct, train-before-test.
PERPLEXITY_BETWEEN = (0.76, 0.78)
PERPLEXITY_TASKS = (0.48, 0.74)
PERPLEXITY_AVERAGES = (0.55, 0.84)
PERPLEXITY_BEFORE_TASKS_AFTER = {"base": 0.78, "instruct": 0.51}

# Section 3.4: variance of the first five components, and table 8 in per cent.
FIVE_COMPONENTS = (0.91, 0.97)
TABLE_8: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "llama": ((69, 21, 4, 3, 2), (90, 4, 3, 1, 1)),
    "pythia": ((61, 12, 9, 8, 6), (89, 8, 2, 1, 1)),
    "qwen": ((74, 9, 5, 3, 3), (93, 2, 1, 1, 1)),
    "gemma": ((58, 27, 6, 4, 2), (92, 3, 2, 2, 1)),
    "yi": ((48, 21, 12, 10, 6), (67, 17, 7, 5, 3)),
    "all models": ((70, 13, 4, 3, 2), (86, 7, 2, 1, 1)),
}

# Appendix B.5: benchmarks with more than 2,000 test samples.
LARGE_TESTS = (
    "mnli", "qqp", "medmcqa", "qnli", "nq_open", "hellaswag", "mathqa", "boolq", "headqa_en", "arc_easy",
)  # fmt: skip
LARGE_TEST_TAU = {"direct": 0.51, "few_shot": 0.63, "train_before_test": 0.80}

# Table 6: size bins in billions of parameters, as the models' names carry them.
TABLE_6: dict[str, tuple[float, float]] = {
    "[0, 1)": (0.38, 0.65),
    "[1, 2)": (0.53, 0.56),
    "[2, 3)": (0.45, 0.70),
    "[6, 7)": (0.34, 0.42),
    "[7, 8)": (0.19, 0.28),
    "[9, 10)": (0.15, 0.43),
    "all": (0.52, 0.76),
}

# Appendix C.2, figure 12: tau-b with insignificant differences as ties.
TAU_B = (0.58, 0.77)

# Table 3: bits per byte of the excluded Gemma models and Pythia-410M on arXiv, Wiki and Stack.
TABLE_3: dict[str, tuple[float, float, float]] = {
    "gemma-2b": (0.766, 1.578, 1.139),
    "gemma-2b-it": (0.770, 1.524, 1.222),
    "gemma-7b": (1.013, 4.780, 4.053),
    "gemma-7b-it": (1.053, 18.711, 20.958),
    "gemma-2-2b": (0.730, 1.784, 1.340),
    "gemma-2-2b-it": (0.705, 1.191, 0.997),
    "gemma-2-9b": (0.709, 2.216, 1.685),
    "gemma-2-9b-it": (0.638, 1.234, 0.978),
    "pythia-410m-deduped": (0.791, 1.065, 0.945),
}

# Table 4: billions of parameters, billions of tokens, 10^18 FLOPs, for base models (instruct models repeat them).
TABLE_4: dict[str, tuple[float, float, float]] = {
    "Meta-Llama-3-8B": (8.03, 15000.0, 722700.0),
    "Llama-3.1-8B": (8.03, 15000.0, 722700.0),
    "Llama-3.2-3B": (3.21, 9000.0, 173340.0),
    "Qwen1.5-0.5B": (0.62, 2400.0, 8928.0),
    "Qwen1.5-1.8B": (1.84, 2400.0, 26496.0),
    "Qwen1.5-4B": (3.95, 2400.0, 56880.0),
    "Qwen1.5-7B": (7.72, 4000.0, 185280.0),
    "Qwen1.5-14B": (14.20, 4000.0, 340800.0),
    "gemma-7b": (8.54, 6000.0, 307440.0),
    "gemma-2-2b": (2.61, 2000.0, 31320.0),
    "gemma-2-9b": (9.24, 8000.0, 443520.0),
    "pythia-70m-deduped": (0.07, 300.0, 126.0),
    "pythia-160m-deduped": (0.16, 300.0, 288.0),
    "pythia-410m-deduped": (0.41, 300.0, 738.0),
    "pythia-1b-deduped": (1.00, 300.0, 1800.0),
    "pythia-1.4b-deduped": (1.40, 300.0, 2520.0),
    "pythia-2.8b-deduped": (2.80, 300.0, 5040.0),
    "pythia-6.9b-deduped": (6.90, 300.0, 12420.0),
    "pythia-12b": (12.00, 300.0, 21600.0),
    "Yi-6B": (6.06, 3000.0, 109080.0),
    "Yi-9B": (8.83, 3800.0, 201324.0),
    "Yi-1.5-6B": (6.06, 3600.0, 130896.0),
    "Yi-1.5-9B": (8.83, 3600.0, 190728.0),
}
