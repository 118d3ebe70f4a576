"""How tasks rank models: agreement, significance, alignment, components, the overall ranking."""

from potentia.analysis.rankings.aggregate import Aggregate, aggregate_ranks
from potentia.analysis.rankings.agreement import (
    Agreement,
    AgreementChange,
    compare_agreement,
    measure_agreement,
)
from potentia.analysis.rankings.alignment import Alignment, align_rankings
from potentia.analysis.rankings.components import GAPS, Components, compute_components
from potentia.analysis.rankings.decide import (
    AGGREGATE_LABELS,
    CLAIM_PROBABILITY,
    ENOUGH_MODELS,
    ENOUGH_TASKS,
    AggregateMethod,
    Ranking,
    decide_ranking,
)
from potentia.analysis.rankings.elicitation import Elicitation, measure_elicitation
from potentia.analysis.rankings.evidence_map import EvidenceMap, map_evidence
from potentia.analysis.rankings.findings import (
    RankingOptions,
    Rankings,
    analyze_scores,
    build_scoreboard,
    find_rankings,
    summarize_rankings,
)
from potentia.analysis.rankings.margin import (
    USUAL_MARGIN,
    MarginComparison,
    compare_within_margin,
    find_smallest_as_good,
)
from potentia.analysis.rankings.pair import ModelComparison, TaskComparison, find_pair
from potentia.analysis.rankings.scoreboard import (
    ModelStanding,
    Scoreboard,
    ScoresWithItems,
    measure_gain_variance,
)
from potentia.analysis.rankings.screening import Screening, screen_tasks
from potentia.analysis.rankings.sentences import (
    agreement_sentence,
    describe_preparation,
    resolution_sentence,
)
