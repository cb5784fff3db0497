"""Turning a failed Spark query into one of our errors: walk the causes, name the record or file, keep the words."""

from __future__ import annotations

import re

from strandline.messaging.registry import registry_failure
from strandline.model.errors import (
    ClusterUnreachable,
    DataLost,
    EnvironmentProblem,
    Failure,
    Fenced,
    SourceProblem,
    StrandlineError,
    TransformFailed,
)
from strandline.runtime.keyed.operator import USER_CODE
from strandline.runtime.keyed.packing import KEYLESS
from strandline.runtime.sources.messages import MALFORMED
from strandline.runtime.sources.snapshots import CONTROL_GONE
from strandline.runtime.topics import NULL_KEY

_GONE = re.compile(r"OffsetOutOfRangeException|KAFKA_DATA_LOSS|some data may have been missed|Some data may have been lost")
_AWAY = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|CoordinatorNotAvailable|"
    r"LeaderNotAvailable|NotLeaderOrFollower)Exception[^\n]*"
)


def explain_query_failure(pipeline: str, error: BaseException, again: str | None = None) -> StrandlineError:
    """The streaming query ended by itself: say why in one sentence.

    Args:
        again: the command that tries it once more, if that is not `strandline run`.
    """
    text = str(error)
    again = again or f"strandline run {pipeline}"
    if "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return Fenced(
            f"another attempt of '{pipeline}' works with the same checkpoint and was first to complete this batch",
            next_command="strandline status",
        )
    if raised := re.search(rf"(?:{MALFORMED}|{NULL_KEY}) ([^\n]*?)(?:\. SQLSTATE|\n| SQLSTATE|$)", text):
        quarantine = f"or keep such messages: malformed='quarantine' with start='committed', then: {again} --new-strand"
        return SourceProblem(
            f"{raised.group(1).strip()}; nothing of this batch entered the table",
            next_command=f"fix the pipeline, then: {again}" + (f" ({quarantine})" if MALFORMED in text else ""),
        )
    if keyless := re.search(rf"{KEYLESS} ([^\n]*)", text):
        return SourceProblem(
            f"{keyless.group(1).strip()}; nothing of this batch entered the table",
            next_command=f"leave such events out before sl.keyed (where … is not null), then: {again}",
        )
    if gone := re.search(rf"{CONTROL_GONE} ([^\n]*)", text):
        return SourceProblem(
            f"{gone.group(1).strip()}; nothing of this batch entered the table",
            next_command=f"restore the table, or read its newest snapshot with: {again} --new-strand",
        )
    if own := re.search(rf"{USER_CODE} ([^\n]*)", text):
        return TransformFailed(
            f"{own.group(1).strip()}; nothing of this batch entered the table", next_command=f"fix the processor, then: {again}"
        )
    if failure := registry_failure(text):
        return failure
    if _GONE.search(text):
        return DataLost(
            f"records that '{pipeline}' must read next are gone from their topic: {_first_cause(text)}",
            next_command=f"{again}, which names the missing ranges and the choices",
        )
    if away := _AWAY.search(text):
        return ClusterUnreachable(f"the Kafka cluster does not answer: {away.group(0)}", next_command=again)
    if "MALFORMED_RECORD_IN_PARSING" in text:
        record = re.search(r"Malformed records? (?:are |is )?detected in record parsing:?\s*(.*?)(?:\.\n|\n|$)", text)
        file = re.search(r"((?:file|s3a?|hdfs):/\S+?)\.?(?:[\s,\]]|$)", text)
        what = f": {record.group(1).strip()}" if record else ""
        where = f" in {file.group(1)}" if file else ""
        return SourceProblem(
            f"a record of a source does not fit its schema{where}{what}; nothing of this batch entered the table",
            next_command=f"fix or remove the record, then: {again} (only a new strand can switch to malformed='quarantine')",
        )
    if "No space left on device" in text:
        return EnvironmentProblem(
            "the disk is full; nothing of this batch entered the table", next_command=f"free some space, then: {again}"
        )
    if missing := re.search(r"(?:FAILED_READ_FILE|FILE_NOT_EXIST|FileNotFoundException)\S*\]?[^\n]*?((?:file|s3a?|hdfs):/\S+)", text):
        return SourceProblem(
            f"source file {missing.group(1).rstrip('.')} cannot be read; nothing of this batch entered the table",
            next_command=f"put the file back or repair it, then: {again}",
        )
    if "Permission denied" in text or "Read-only file system" in text or "Mkdirs failed" in text:
        line = next((line.strip() for line in text.splitlines() if re.search(r"Permission denied|Read-only|Mkdirs failed", line)), "")
        return EnvironmentProblem(f"a folder cannot be written: {line}", next_command="strandline doctor")
    if "thrown from the Python worker" in text or "PythonException" in text:
        last = [line.strip() for line in text.splitlines() if re.match(r"\s*\w+(?:Error|Exception)\b.*", line)]
        return TransformFailed(
            f"code of pipeline '{pipeline}' failed on a record: {last[-1] if last else text.splitlines()[0]}",
            next_command=f"fix the pipeline, then: {again}",
        )
    return Failure(f"the query of '{pipeline}' failed: {_first_cause(text)}", next_command=again)


def explain_batch_failure(pipeline: str, error: BaseException, again: str | None = None) -> StrandlineError:
    """An exception inside a batch: ours pass through, Spark's and Java's are explained."""
    return error if isinstance(error, StrandlineError) else explain_query_failure(pipeline, error, again)


def _first_cause(text: str) -> str:
    causes = [line.strip() for line in text.splitlines() if line.strip().startswith("Caused by:")]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "unknown reason")
    return causes[-1].removeprefix("Caused by:").strip() if causes else first
