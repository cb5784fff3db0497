"""Strandline: stateful streaming into Iceberg tables whose every snapshot explains itself.

Light to import: engines are loaded only when a pipeline runs.
"""

from strandline.api import checkpoint, files, generator, kafka, pipeline, registry, savepoint, secret, snapshots, table, topic
from strandline.model.definition import Pipeline
from strandline.model.errors import StrandlineError
from strandline.state.declarations import (
    Context,
    KeyedProcess,
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    ttl,
    value_state,
)
from strandline.streams import dedupe, join_streams, keyed, sessions, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "Context",
    "KeyedProcess",
    "Pipeline",
    "StrandlineError",
    "__version__",
    "aggregating_state",
    "checkpoint",
    "dedupe",
    "files",
    "generator",
    "join_streams",
    "kafka",
    "keyed",
    "list_state",
    "map_state",
    "pipeline",
    "reducing_state",
    "registry",
    "savepoint",
    "secret",
    "sessions",
    "sliding",
    "snapshots",
    "table",
    "topic",
    "ttl",
    "tumbling",
    "value_state",
]
