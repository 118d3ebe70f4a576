"""Train-before-test as an extension: the printed numbers; its analyses are the tool's own rankings."""

from __future__ import annotations

from potentia.analysis.registration import PaperReproduction, ReproductionRequest
from potentia.values.findings import Finding


def reproduce_paper(request: ReproductionRequest) -> Finding:
    """Return every number of the paper beside the same from the scores."""
    from potentia.analysis.stats.bootstrap import RESAMPLES
    from potentia.evidence import read
    from potentia.papers.train_before_test.reproduction import reproduce_train_before_test

    (scores_file,) = request.files
    resamples = RESAMPLES if request.resamples is None else request.resamples
    evidence = read(scores_file)
    billions = evidence.background.billions
    model_sizes = {model: 1e9 * size for model, size in billions.items()}
    return reproduce_train_before_test(
        evidence.scores, resamples=resamples, model_sizes=model_sizes
    )


TRAIN_BEFORE_TEST_REPRODUCTION = PaperReproduction(
    reproduce_paper,
    files=("SCORES",),
    where_published="this is the file of published scores, notebooks/all_results.json of"
    " github.com/socialfoundations/lm-harmony (docs/reproduce.md#get-the-score-files)",
)
