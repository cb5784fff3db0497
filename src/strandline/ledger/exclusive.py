"""Look, then write, with nobody in between."""

from __future__ import annotations

from sqlalchemy import Connection, text

_LOCK = 0x57A4D  # any number will do, as long as every strandline uses the same


def hold_exclusively(connection: Connection) -> None:
    """Until the transaction ends, no other one passes here.

    SQLite transactions begin with the write lock already. PostgreSQL would let two of them read the same state and
    both write, so they queue up at a lock that belongs to no row.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
