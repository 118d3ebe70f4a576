"""Results: the store (SQLite or PostgreSQL, items as Parquet)."""

from potentia.store.check import check_store, repair_store
from potentia.store.database import locate
from potentia.store.leases import BEAT_SECONDS, LeaseRecord
from potentia.store.records import (
    CellRecord,
    ChoiceRecord,
    EpochRecord,
    EventRecord,
    FailureRecord,
    LaneRecord,
    StudyRecord,
)
from potentia.store.store import Store
from potentia.store.studies import Removed, count_shared, delete_study, find_study, rename_study
