"""Rows that a user has in memory: a DataFrame, or records and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def list_rows(data: Any) -> list[Any]:
    """Return the rows of a DataFrame (of pandas or polars) or a list; a value that is missing is None.

    pandas makes floats of whole numbers where a row has none (1 becomes 1.0, and a blank NaN): both are undone.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        incomplete_columns = [column for column in data.columns if data[column].isna().any()]
        whole_numbers = data[incomplete_columns].convert_dtypes(
            convert_string=False, convert_boolean=False, convert_floating=False
        )
        data = data.assign(**whole_numbers).to_dict("records")
    elif hasattr(data, "to_dicts"):
        data = data.to_dicts()
    return [_blank_missing_values(row) if isinstance(row, Mapping) else row for row in data]


def _blank_missing_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with None for NaN and its kin."""
    return {str(column): None if _is_missing(value) else value for column, value in row.items()}


def _is_missing(value: object) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
