"""What is publicly known of models and benchmarks."""

from potentia.facts.benchmarks import (
    CATEGORIES,
    Benchmark,
    benchmarks,
    compute_chance_score,
    find_benchmark_facts,
    find_chance_score,
    leaderboard_shots,
    read_benchmarks,
)
from potentia.facts.models import (
    Background,
    Kind,
    ModelFacts,
    ModelTable,
    decide_kind,
    models,
    read_facts,
    variant_of,
)
from potentia.facts.task_groups import (
    NO_GROUPS,
    find_known_group,
    find_task_groups,
    read_task_groups,
    separate_tasks,
)
