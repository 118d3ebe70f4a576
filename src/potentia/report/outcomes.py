"""Per-item values of a store, for the analyses that compare models on the same items."""

from __future__ import annotations

from pathlib import Path

from potentia.report.findings import is_store


def read_outcomes(source: str | Path, *, study: str | None = None) -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """Return protocol → task → model → document → value from a store; nothing from any other source."""
    if not is_store(source):
        return {}
    import pyarrow.parquet as pq

    from potentia.store import Store
    from potentia.store.items import items_path

    found: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    with Store.open(source, readonly=True) as store:
        for cell in store.cells(study=study):  # in the order of their making: the newest of several wins
            file_of_items = items_path(store.items_folder, cell.key)
            if file_of_items.is_file():
                table = pq.read_table(file_of_items, columns=["doc_id", "value"], partitioning=None)
                values = dict(zip(table["doc_id"].to_pylist(), table["value"].to_pylist(), strict=True))
                found.setdefault(cell.protocol, {}).setdefault(cell.task, {})[cell.model] = values
    return found
