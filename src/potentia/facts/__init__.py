"""What is publicly known of models and benchmarks."""

from potentia.facts.background import Background, variant_of
from potentia.facts.benchmarks import CATEGORIES, Benchmark, benchmark, benchmarks, read_benchmarks
from potentia.facts.chance import chance
from potentia.facts.kinds import Kind, decide_kind
from potentia.facts.models import ModelFacts, ModelTable, models, read_facts
from potentia.facts.shots import leaderboard_shots
