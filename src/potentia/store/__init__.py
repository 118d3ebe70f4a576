"""Results: the store (SQLite or PostgreSQL, items as Parquet)."""

from potentia.store.opening import locate
from potentia.store.records import (
    BEAT_SECONDS,
    CellRecord,
    ChoiceRecord,
    EpochRecord,
    EventRecord,
    FailureRecord,
    LaneRecord,
    LeaseRecord,
    StudyRecord,
)
from potentia.store.store import Store
from potentia.store.upkeep import (
    DeletedStudy,
    ProblemKind,
    check_store,
    count_shared,
    delete_study,
    find_study,
    rename_study,
    repair_store,
)
