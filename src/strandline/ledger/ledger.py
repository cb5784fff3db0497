"""Opening the ledger, and one place that turns database trouble into sentences."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from strandline.ledger.attempts import Attempts
from strandline.ledger.batches import Batches
from strandline.ledger.commits import Commits
from strandline.ledger.events import Events
from strandline.ledger.kafka import Deliveries, Gaps, Topics
from strandline.ledger.migrations import migrate
from strandline.ledger.requests import Requests
from strandline.ledger.savepoints import Savepoints
from strandline.ledger.states import StateSizes
from strandline.ledger.strands import Strands
from strandline.model.errors import LedgerUnavailable
from strandline.model.times import human_duration, parse_duration
from strandline.project.config import Project


class Ledger:
    """One repository per kind of record, over one database. Safe across threads and processes."""

    def __init__(self, engine: Engine, shown_as: str, patience: timedelta) -> None:
        self._engine = engine
        self._shown_as = shown_as
        self._patience = patience
        self.attempts = Attempts(self.transaction)
        self.batches = Batches(self.transaction)
        self.commits = Commits(self.transaction)
        self.requests = Requests(self.transaction)
        self.events = Events(self.transaction)
        self.topics = Topics(self.transaction)
        self.gaps = Gaps(self.transaction)
        self.deliveries = Deliveries(self.transaction)
        self.state_sizes = StateSizes(self.transaction)
        self.savepoints = Savepoints(self.transaction)
        self.strands = Strands(self.transaction)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All or nothing; a locked, full or unreachable database is one clear sentence."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise self._explain(error) from error
        except SQLAlchemyError as error:
            raise LedgerUnavailable(f"the ledger {self._shown_as} failed: {error}") from error

    def _explain(self, error: DBAPIError) -> LedgerUnavailable:
        cause = str(error.orig)
        if "locked" in cause or "busy" in cause:
            why = f"is locked by another process for more than {human_duration(self._patience)}"
        elif "full" in cause or "No space" in cause:
            why = "cannot grow: the disk is full"
        elif "readonly" in cause or "unable to open" in cause:
            why = f"cannot be written ({cause})"
        elif "not a database" in cause or "malformed" in cause:
            why = f"is damaged ({cause}); the tables still hold the truth: move the file away and strandline starts a new ledger"
        else:
            why = f"failed: {cause}"
        return LedgerUnavailable(f"the ledger {self._shown_as} {why}", next_command="strandline doctor")

    def close(self) -> None:
        self._engine.dispose()


def ledger_of(project: Project) -> Ledger:
    """The ledger of a project, as its profile names it."""
    config = project.profile.ledger
    return open_ledger(
        project.ledger_url,
        password=config.password.resolve() if config.password else None,
        patience=parse_duration(config.busy_timeout),
    )


def open_ledger(url: str, *, password: str | None = None, patience: timedelta = timedelta(seconds=30)) -> Ledger:
    """Open, create or upgrade the ledger at a SQLAlchemy URL."""
    target = make_url(url)
    shown_as = target.render_as_string(hide_password=True)
    if password is not None:
        target = target.set(password=password)
    sqlite = target.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"connect_args": {"timeout": patience.total_seconds()}} if sqlite else {"pool_pre_ping": True}
    if sqlite and target.database:
        try:
            Path(target.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerUnavailable(f"the ledger folder {Path(target.database).parent} cannot be made: {error.strerror}") from error
    try:
        engine = create_engine(target, **options)
    except (ImportError, SQLAlchemyError) as error:
        raise LedgerUnavailable(
            f"the ledger {shown_as} needs a database driver that is not here: {error}", next_command="pip install 'strandline[postgres]'"
        ) from error
    if sqlite:
        _prepare_sqlite(engine, patience)
    ledger = Ledger(engine, shown_as, patience)
    with ledger.transaction() as connection:
        migrate(connection)
    return ledger


def _prepare_sqlite(engine: Engine, patience: timedelta) -> None:
    """WAL lets readers and one writer work at once. BEGIN IMMEDIATE takes the write lock up front: two processes
    that read, then write, would otherwise both hold a read lock and fail instead of waiting their turn."""

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        deadline = time.monotonic() + patience.total_seconds()
        while True:  # SQLite does not wait by itself while two processes turn a new file to WAL at once
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        # Survives a killed process; after a power cut the last records may be missing, and the table tells them.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
