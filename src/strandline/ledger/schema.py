"""Tables of the ledger at the newest version. Times are RFC 3339 text in UTC: readable in any client."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite only auto-increments a column of type INTEGER."""

schema_version = Table("strandline_schema", metadata, Column("version", Integer, primary_key=True))

attempts = Table(
    "attempts",
    metadata,
    Column("pipeline", String(200), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    Column("strand", String(60)),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_started", String(40), nullable=False),
    Column("code", String(200), nullable=False),
    Column("tables", Text, nullable=False),
    Column("started_at", String(30), nullable=False),
    Column("heartbeat_at", String(30), nullable=False),
    Column("ended_at", String(30)),
    Column("reason", Text),
    Column("progress", Text),
)

batches = Table(
    "batches",
    metadata,
    Column("pipeline", String(200), primary_key=True),
    Column("strand", String(60), primary_key=True),
    Column("batch", BigInteger, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("offsets_start", Text, nullable=False),
    Column("offsets_end", Text, nullable=False),
    Column("end_digest", String(64), nullable=False),
    Column("rows_by_table", Text, nullable=False),
    Column("planned_at", String(30), nullable=False),
    Column("completed_at", String(30)),
    Column("evidence", Text),
)

intents = Table(
    "intents",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("pipeline", String(200), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("table_name", String(400), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_id", String(40), nullable=False),
    Column("state", String(20), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("recorded_at", String(30), nullable=False),
    Column("settled_at", String(30)),
    Index("ix_intents_open", "pipeline", "state"),
)

files = Table(
    "files",
    metadata,
    Column("intent", _ID, ForeignKey("intents.id"), primary_key=True),
    Column("path", String(1000), primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("removed_at", String(30)),
)

commits = Table(
    "commits",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("table_name", String(400), nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("parent_id", BigInteger),
    Column("sequence_number", BigInteger, nullable=False),
    Column("committed_at", String(30), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("pipeline", String(200), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_id", String(40), nullable=False),
    Column("batch_first", BigInteger, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("offsets_start", Text),
    Column("offsets_end", Text),
    Column("end_digest", String(64), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("corrected", BigInteger, nullable=False),
    Column("replayed", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("manifests", Integer, nullable=False),
    Column("code", String(200), nullable=False),
    UniqueConstraint("table_name", "snapshot_id"),
    Index("ix_commits_pipeline", "pipeline", "table_name", "batch"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("pipeline", String(200), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("requested_by", String(255), nullable=False),
    Column("requested_at", String(30), nullable=False),
    Column("answered_at", String(30)),
    Column("answer", Text),
    Column("wish", Text),
    Column("progress", Text),
    Index("ix_requests_open", "pipeline", "answered_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("at", String(30), nullable=False),
    Column("pipeline", String(200), nullable=False),
    Column("attempt", Integer),
    Column("kind", String(40), nullable=False),
    Column("detail", Text, nullable=False),
    Index("ix_events_pipeline", "pipeline", "id"),
)

topics = Table(
    "topics",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("pipeline", String(200), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("topic", String(249), nullable=False),
    Column("topic_id", String(60), nullable=False),
    Column("bounds", Text, nullable=False),
    Column("recorded_at", String(30), nullable=False),
    Index("ix_topics_strand", "pipeline", "strand", "topic"),
)

gaps = Table(
    "gaps",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("pipeline", String(200), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("topic", String(249), nullable=False),
    Column("partition_number", Integer, nullable=False),
    Column("offset_start", BigInteger, nullable=False),
    Column("offset_end", BigInteger, nullable=False),
    Column("accepted_at", String(30), nullable=False),
    Index("ix_gaps_strand", "pipeline", "strand", "batch"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("topic_name", String(260), nullable=False),
    Column("topic_id", String(60), nullable=False),
    Column("pipeline", String(200), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_id", String(40), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("offsets_start", Text, nullable=False),
    Column("offsets_end", Text, nullable=False),
    Column("end_digest", String(64), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("delivery", String(20), nullable=False),
    Column("code", String(200), nullable=False),
    Column("committed_at", String(30), nullable=False),
    Index("ix_deliveries_pipeline", "pipeline", "topic_name", "batch"),
)

state_sizes = Table(
    "state_sizes",
    metadata,
    Column("pipeline", String(200), primary_key=True),
    Column("strand", String(60), primary_key=True),
    Column("operator", String(200), primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("keys", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("touched", BigInteger, nullable=False),
    Column("timers_fired", BigInteger, nullable=False),
    Column("expired", BigInteger, nullable=False),
    Column("oldest_at", String(30)),
    Column("entries", Text, nullable=False),
    Column("recorded_at", String(30), nullable=False),
)

savepoints = Table(
    "savepoints",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("pipeline", String(200), nullable=False),
    Column("type", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("strand", String(60), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("location", Text, nullable=False),
    Column("manifest_sha256", String(64)),
    Column("bytes", BigInteger),
    Column("requested_by", String(255), nullable=False),
    Column("note", Text, nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_started", String(40), nullable=False),
    Column("begun_at", String(30), nullable=False),
    Column("ended_at", String(30)),
    Column("reason", Text),
    Index("ix_savepoints_pipeline", "pipeline", "begun_at"),
)

strands = Table(
    "strands",
    metadata,
    Column("pipeline", String(200), primary_key=True),
    Column("strand", String(60), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("parent", String(60)),
    Column("parent_batch", BigInteger),
    Column("savepoint", String(80)),
    Column("attempt", Integer, nullable=False),
    Column("begun_at", String(30), nullable=False),
)
