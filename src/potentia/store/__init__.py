"""Results: the store (SQLite or PostgreSQL, items as Parquet)."""

from potentia.store.adapters import name_exposed_copy
from potentia.store.items import can_read_items
from potentia.store.opening import locate_store
from potentia.store.records import (
    BEAT_SECONDS,
    CellRecord,
    ChoiceRecord,
    EventRecord,
    FailureRecord,
    LaneRecord,
    LeaseRecord,
    StudyRecord,
)
from potentia.store.store import Store
from potentia.store.studies import choose_study, list_studies, match_studies, name_study
from potentia.store.upkeep import (
    DeletedStudy,
    Problem,
    absorb_study,
    check_store,
    count_own_and_shared,
    delete_study,
    find_study,
    rename_study,
    repair_store,
)
