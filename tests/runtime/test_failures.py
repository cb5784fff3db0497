"""Spark's and Java's words, as they arrive, become one sentence of ours."""

from __future__ import annotations

import pytest

from strandline.model.errors import (
    ChainBroken,
    EnvironmentProblem,
    Failure,
    Fenced,
    SourceProblem,
    StrandlineError,
    TransformFailed,
)
from strandline.runtime.failures import explain_batch_failure, explain_query_failure
from strandline.runtime.sources.snapshots import CONTROL_GONE

MALFORMED = """\
[STREAM_FAILED] Query [id = 7d0e7e52, runId = 9f86d081] terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 \
failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (localhost executor driver): org.apache.spark.SparkException: \
[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///shop/data/orders/bad.jsonl. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:880)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record \
parsing: [o-1,null,null].
Parse Mode: FAILFAST. To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'. SQLSTATE: 22023
\tat org.apache.spark.sql.catalyst.util.FailureSafeParser.parse(FailureSafeParser.scala:84)
"""

MISSING_FILE = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: org.apache.spark.SparkFileNotFoundException: \
[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///shop/data/orders/gone.jsonl. File does not exist. SQLSTATE: KD001
Caused by: java.io.FileNotFoundException: File file:/shop/data/orders/gone.jsonl does not exist
"""

FULL_DISK = """\
Job aborted due to stage failure: Task 1 in stage 4.0 failed 1 times
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""

READ_ONLY = """\
org.apache.iceberg.exceptions.RuntimeIOException: Failed to create file: file:/shop/warehouse/shop/orders/data/0.parquet
Caused by: java.io.FileNotFoundException: /shop/warehouse/shop/orders/data/0.parquet (Permission denied)
"""

USER_CODE = """\
[STREAM_FAILED] Query [id = 7d0e7e52, runId = 9f86d081] terminated with exception: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/shop/pipelines/orders.py", line 12, in parse
    return float(text)
           ^^^^^^^^^^^
ValueError: could not convert string to float: 'ten'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""

SOMETHING_ELSE = """\
[STREAM_FAILED] Query [id = 7d0e7e52, runId = 9f86d081] terminated with exception: boom
\tat somewhere
Caused by: java.lang.RuntimeException: outer
\tat somewhere.deeper
Caused by: java.net.ConnectException: Connection refused
"""


def explained(text: str) -> StrandlineError:
    error = explain_query_failure("orders", RuntimeError(text))
    assert "\n" not in error.message, "one sentence"
    return error


def test_a_malformed_record_is_named_with_its_file() -> None:
    error = explained(MALFORMED)

    assert type(error) is SourceProblem
    assert error.message == (
        "a record of a source does not fit its schema in file:///shop/data/orders/bad.jsonl: [o-1,null,null]; "
        "nothing of this batch entered the table"
    )
    assert (
        error.next_command
        == "fix or remove the record, then: strandline run orders (only a new strand can switch to malformed='quarantine')"
    )


def test_a_malformed_record_without_a_file_is_still_a_problem_of_the_source() -> None:
    error = explained(
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [a,b].\nParse Mode"
    )

    assert type(error) is SourceProblem
    assert error.message == "a record of a source does not fit its schema: [a,b]; nothing of this batch entered the table"


def test_a_missing_source_file_is_named() -> None:
    error = explained(MISSING_FILE)

    assert type(error) is SourceProblem
    assert error.message == "source file file:///shop/data/orders/gone.jsonl cannot be read; nothing of this batch entered the table"
    assert error.next_command == "put the file back or repair it, then: strandline run orders"


def test_a_full_disk_is_the_environments_problem() -> None:
    error = explained(FULL_DISK)

    assert type(error) is EnvironmentProblem
    assert error.message.startswith("the disk is full")
    assert error.next_command == "free some space, then: strandline run orders"


def test_a_folder_that_cannot_be_written_is_named() -> None:
    error = explained(READ_ONLY)

    assert type(error) is EnvironmentProblem
    assert error.message.startswith("a folder cannot be written: ")
    assert "/shop/warehouse/shop/orders/data/0.parquet (Permission denied)" in error.message


@pytest.mark.parametrize("words", ["Read-only file system", "Mkdirs failed to create file:/shop/warehouse"])
def test_other_words_for_a_folder_that_cannot_be_written(words: str) -> None:
    error = explained(f"Job aborted\nCaused by: java.io.IOException: {words}")

    assert type(error) is EnvironmentProblem
    assert words in error.message


def test_an_error_in_the_users_code_keeps_the_users_words() -> None:
    error = explained(USER_CODE)

    assert type(error) is TransformFailed
    assert error.message == "code of pipeline 'orders' failed on a record: ValueError: could not convert string to float: 'ten'"
    assert error.next_command == "fix the pipeline, then: strandline run orders"


def test_a_control_table_that_is_gone_is_a_problem_of_the_source_not_of_the_users_code() -> None:
    error = explained(
        USER_CODE.replace("could not convert string to float: 'ten'", f"{CONTROL_GONE} control table 'shop.rules' no longer exists")
    )

    assert type(error) is SourceProblem
    assert error.message == "control table 'shop.rules' no longer exists; nothing of this batch entered the table"
    assert error.next_command == "restore the table, or read its newest snapshot with: strandline run orders --new-strand"


def test_anything_else_is_told_by_its_deepest_cause() -> None:
    error = explained(SOMETHING_ELSE)

    assert type(error) is Failure
    assert error.message == "the query of 'orders' failed: java.net.ConnectException: Connection refused"


@pytest.mark.parametrize(("text", "words"), [("only one line", "only one line"), ("", "unknown reason"), ("\n \n x\ny", "x")])
def test_without_a_cause_the_first_line_is_told(text: str, words: str) -> None:
    assert explained(text).message == f"the query of 'orders' failed: {words}"


@pytest.mark.parametrize("error", [Fenced("a newer attempt took over"), ChainBroken("a gap")])
def test_our_own_errors_pass_through_a_batch_unchanged(error: StrandlineError) -> None:
    assert explain_batch_failure("orders", error) is error


def test_other_errors_of_a_batch_are_explained() -> None:
    assert type(explain_batch_failure("orders", RuntimeError(USER_CODE))) is TransformFailed


def test_a_checkpoint_that_another_attempt_writes_to_means_fenced() -> None:
    error = explain_query_failure("orders", Exception("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."))

    assert isinstance(error, Fenced)
    assert error.exit_code == 4
