"""One benchmark by itself: whether it is worth keeping, and its classes where it has labels."""

from potentia.analysis.benchmark.blind_twins import (
    BlindTwin,
    BlindTwins,
    compare_blind,
    find_blind_twin,
    find_blind_twins,
)
from potentia.analysis.benchmark.classification import (
    BaselineVerdict,
    Classification,
    find_classification,
)
from potentia.analysis.benchmark.signal import TaskSignal, measure_task_signal
from potentia.analysis.benchmark.verdict import (
    MAX_CELLS,
    BenchmarkVerdict,
    Recommendation,
    benchmark_table,
    find_benchmark,
    find_benchmarks,
    has_too_many_to_judge,
    judge_benchmark,
)
from potentia.analysis.benchmark.written import (
    WrittenAnswers,
    WrittenTest,
    find_written_answers,
)
