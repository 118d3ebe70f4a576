"""The result store: one door to its parts.

``store.studies``, ``store.cells``, ``store.scores``, ``store.provenance``, ``store.failures``, ``store.lanes``,
``store.events``, ``store.leases`` and ``store.adapters`` each read and write their own tables or folders; the
``database`` that they share opens the transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from potentia.errors import EmptyStoreError, NoStoreError, without_password
from potentia.files import remove_path
from potentia.store.adapters import Adapters
from potentia.store.cells import Cells
from potentia.store.database import Database
from potentia.store.error_translation import store_removed_error
from potentia.store.events import Events
from potentia.store.failures import Failures
from potentia.store.lanes import Lanes
from potentia.store.leases import Leases
from potentia.store.opening import locate_store, prepare_store
from potentia.store.provenance import CellProvenance
from potentia.store.scores import Scores
from potentia.store.studies import Studies
from potentia.store.waiting import wait_for


class Store:
    """Studies, results and scores in SQLite (a file) or PostgreSQL (a URL); examples as Parquet in a folder beside it.

    Several processes may write at once. The first writer of a key wins; what is committed is whole and stays.
    """

    def __init__(self, database: Database, *, opened_as: str, readonly: bool) -> None:
        self.database = database
        self.studies = Studies(database)
        self.adapters = Adapters(database)
        self.cells = Cells(database, self.adapters)
        self.scores = Scores(database)
        self.provenance = CellProvenance(database)
        self.failures = Failures(database)
        self.lanes = Lanes(database)
        self.events = Events(database)
        self.leases = Leases(database)
        self._opened_as = opened_as
        self._readonly = readonly

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        readonly: bool = False,
        create: bool = True,
        patience: float = 0.0,
    ) -> Store:
        """Open or create a store: the path of a SQLite file, or a URL such as ``postgresql+psycopg://host/name``.

        Items lie in ``<file>.items/``; for PostgreSQL in ``?items=FOLDER`` of the URL, or where the store says that
        they lie, which is ``./potentia.items`` of where it was made. ``readonly`` neither creates nor changes anything.
        Without ``create`` a store that is not there is an error. A store with ``patience`` waits so many seconds, here
        and later, while a server is away.
        """
        store_location = locate_store(location)
        file = store_location.file
        store_name = str(file)
        if file is None:
            store_name = without_password(store_location.url.render_as_string(hide_password=False))
        if file is not None and file.is_dir():
            raise NoStoreError(
                "this is a folder", where=store_name, hint="give a file, for example potentia.db"
            )
        if file is not None and not file.exists():
            if readonly:
                raise NoStoreError(
                    "there is no such store",
                    where=store_name,
                    hint="check the path, or run a study first",
                )
            if not create:
                raise store_removed_error(store_name)
        prepare = partial(prepare_store, store_location, store_name, readonly=readonly)
        engine, items_folder = wait_for(prepare, patience)
        database = Database(engine, store_name, items_folder)
        database.patience = patience
        if file is not None and not readonly:
            database.watch_file(file)
        return cls(database, opened_as=str(location), readonly=readonly)

    @classmethod
    def find(cls, location: str | Path, *, patience: float = 0.0) -> Store | None:
        """Open a store to read it; None where nothing was stored yet. Creates and changes nothing."""
        file = locate_store(location).file
        if file is not None and not file.is_dir():
            is_empty = not file.exists() or file.stat().st_size == 0
            if is_empty:
                return None
        try:
            return cls.open(location, readonly=True, patience=patience)
        except EmptyStoreError:
            return None

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return partial(Store.open, readonly=self._readonly), (self._opened_as,)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; the store can still be used and opens them again."""
        self.database.engine.dispose()

    @property
    def where(self) -> str:
        """The store as a person calls it: its file or its URL without the password."""
        return self.database.where

    @property
    def items_folder(self) -> Path:
        """Where the outcomes of every item lie."""
        return self.database.items_folder

    @property
    def adapters_folder(self) -> Path:
        """Where the tuned adapters lie."""
        return self.database.adapters_folder

    @property
    def lanes_folder(self) -> Path:
        """Where running fine-tunings save what a resumed model's job needs."""
        return self.database.lanes_folder

    @property
    def logs_folder(self) -> Path:
        """Where the logs of runs lie."""
        return self.database.logs_folder

    @property
    def patience(self) -> float:
        """The seconds to wait while the store is away."""
        return self.database.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self.database.patience = seconds

    @property
    def stop(self) -> Callable[[], bool]:
        """What says that waiting is to end."""
        return self.database.stop

    @stop.setter
    def stop(self, stop: Callable[[], bool]) -> None:
        self.database.stop = stop

    def remove_partial_files(self) -> None:
        """Remove what killed writers left half written of results that have been committed since."""
        partial_files = [
            *self.items_folder.glob("*/.*.tmp"),
            *self.adapters_folder.glob(".*.tmp"),
        ]
        if not partial_files:
            return
        key_by_file = {path: path.name.lstrip(".").split(".")[0] for path in partial_files}
        committed_keys = self.cells.read_names(list(dict.fromkeys(key_by_file.values())))
        for path, cell_key in key_by_file.items():
            if cell_key in committed_keys:
                remove_path(path)
