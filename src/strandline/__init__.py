"""Strandline: stateful streaming into Iceberg tables whose every snapshot explains itself.

Light to import: engines are loaded only when a pipeline runs.
"""

from strandline.api import checkpoint, files, generator, kafka, pipeline, registry, secret, table, topic
from strandline.model.definition import Pipeline
from strandline.model.errors import StrandlineError

__version__ = "0.1.0"

__all__ = [
    "Pipeline",
    "StrandlineError",
    "__version__",
    "checkpoint",
    "files",
    "generator",
    "kafka",
    "pipeline",
    "registry",
    "secret",
    "table",
    "topic",
]
