"""How tasks rank models: agreement, significance, alignment, components, the overall ranking."""

from potentia.analysis.rankings.aggregate import Aggregate, aggregate_ranks
from potentia.analysis.rankings.agreement import (
    Agreement,
    AgreementChange,
    compare_agreement,
    measure_agreement,
)
from potentia.analysis.rankings.components import GAPS, Components, find_components
from potentia.analysis.rankings.decide import FEW_MODELS, FEW_TASKS, NAMES, SURE, Ranking, decide
from potentia.analysis.rankings.find import (
    Options,
    Rankings,
    find_rankings,
    find_scoreboard,
    rank_scores,
    summarise,
)
from potentia.analysis.rankings.groups import Alignment, align
from potentia.analysis.rankings.pair import EvidenceMap, Pair, TaskPair, find_pair, map_evidence
from potentia.analysis.rankings.scoreboard import Scoreboard, Standing
from potentia.analysis.rankings.screening import Screening, screen
from potentia.analysis.rankings.sentences import agreement_sentence, resolution_sentence
from potentia.analysis.rankings.tuning import Elicitation, find_elicitation
