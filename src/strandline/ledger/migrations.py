"""Bringing a ledger to the newest schema, one numbered step at a time.

A new ledger is created at the newest version; `UPGRADES[n]` takes one from version n to n + 1. Steps are never
edited once released; fixtures of old versions stay in the tests.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, insert, inspect, select, text, update

from strandline.ledger.exclusive import hold_exclusively
from strandline.ledger.schema import deliveries, gaps, metadata, savepoints, schema_version, state_sizes, strands, topics
from strandline.model.errors import LedgerUnavailable

LATEST = 4


def _add_kafka(connection: Connection) -> None:
    """Version 2: topics as the cluster described them, accepted gaps, deliveries to topics, evidence of a batch."""
    connection.execute(text("ALTER TABLE batches ADD COLUMN evidence TEXT"))
    metadata.create_all(connection, tables=[topics, gaps, deliveries])


def _add_state_sizes(connection: Connection) -> None:
    """Version 3: how large keyed state was after each batch."""
    metadata.create_all(connection, tables=[state_sizes])


def _add_savepoints(connection: Connection) -> None:
    """Version 4: savepoints, where strands come from, and requests that carry a wish and tell how far they are."""
    connection.execute(text("ALTER TABLE requests ADD COLUMN wish TEXT"))
    connection.execute(text("ALTER TABLE requests ADD COLUMN progress TEXT"))
    metadata.create_all(connection, tables=[savepoints, strands])


UPGRADES: dict[int, Callable[[Connection], None]] = {1: _add_kafka, 2: _add_state_sizes, 3: _add_savepoints}


def migrate(connection: Connection) -> None:
    """Create or upgrade inside the caller's transaction: two processes at once do it once."""
    hold_exclusively(connection)
    if not inspect(connection).has_table(schema_version.name):
        metadata.create_all(connection)
        connection.execute(insert(schema_version).values(version=LATEST))
        return
    version = connection.execute(select(schema_version.c.version)).scalar_one()
    if version > LATEST:
        raise LedgerUnavailable(
            f"the ledger has schema version {version}, this strandline knows up to {LATEST}",
            next_command="pip install --upgrade strandline",
        )
    for step in range(version, LATEST):
        UPGRADES[step](connection)
        connection.execute(update(schema_version).values(version=step + 1))
