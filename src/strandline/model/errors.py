"""Every error a user can meet, in one tree.

::

    StrandlineError
    ├── UsageError            exit 2: what was asked cannot be understood
    │   ├── ConfigError           strandline.yaml is missing or wrong
    │   ├── DefinitionError       a pipeline is declared wrongly
    │   ├── PipelineImportError   the user's own code failed to import
    │   └── NotFound              no such pipeline, table or project
    ├── TrustViolation        exit 3: table, checkpoint and ledger do not agree
    │   ├── ChainBroken           the offset chain of a table has a gap or an overlap
    │   ├── CheckpointDamaged     a checkpoint file is missing or unreadable
    │   │   └── CheckpointVanished    a file went away while it was read: the pipeline runs and has moved on
    │   ├── SavepointDamaged      a savepoint is incomplete, changed or from the future
    │   └── DataLost              records that must be read next are gone from their topic
    ├── Refused               exit 4: the world moved, nothing was done
    │   ├── AlreadyRunning        another attempt holds the pipeline
    │   └── Fenced                a newer attempt took the pipeline over
    └── Failure               exit 1: something broke
        ├── EnvironmentProblem    Java, jars, folders, permissions
        ├── LedgerUnavailable     the ledger is locked, full or unreachable
        ├── TableUnavailable      the catalog or the warehouse cannot be used
        ├── CommitUnknown         a commit's outcome could not be established
        ├── ClusterUnreachable    a Kafka cluster does not answer
        ├── SourceProblem         a source cannot be read, or holds malformed records
        ├── TransformFailed       the user's transform raised or returned the wrong thing
        └── BatchTimedOut         a batch ran longer than its limit

Each carries the command to run next, because the reader is an engineer at 3 a.m.
"""

from __future__ import annotations


class StrandlineError(Exception):
    """Root of the tree: one sentence, the next command, an exit code."""

    exit_code = 1

    def __init__(self, message: str, *, next_command: str = "strandline doctor", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_command = next_command
        self.detail = detail
        """Extra lines shown before the sentence, such as the user's own traceback."""


class UsageError(StrandlineError):
    exit_code = 2


class ConfigError(UsageError): ...


class DefinitionError(UsageError): ...


class PipelineImportError(UsageError): ...


class NotFound(UsageError): ...


class TrustViolation(StrandlineError):
    exit_code = 3


class ChainBroken(TrustViolation): ...


class CheckpointDamaged(TrustViolation): ...


class CheckpointVanished(CheckpointDamaged): ...


class SavepointDamaged(TrustViolation): ...


class DataLost(TrustViolation): ...


class Refused(StrandlineError):
    exit_code = 4


class AlreadyRunning(Refused): ...


class Fenced(Refused): ...


class Failure(StrandlineError):
    exit_code = 1


class EnvironmentProblem(Failure): ...


class LedgerUnavailable(Failure): ...


class TableUnavailable(Failure): ...


class CommitUnknown(Failure): ...


class ClusterUnreachable(Failure): ...


class SourceProblem(Failure): ...


class TransformFailed(Failure): ...


class BatchTimedOut(Failure): ...
