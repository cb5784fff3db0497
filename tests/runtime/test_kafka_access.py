"""Credentials and schemas: a cluster that asks for a password, messages whose schema is in a registry."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from strandline.evidence.history import history_of
from strandline.model.errors import ConfigError, SourceProblem
from strandline.tables.catalog import EmbeddedCatalog
from strandline.testing import run_cli
from strandline.testing.fixtures import Sandbox
from strandline.testing.kafka import KafkaForTests, sasl_plain_listener
from strandline.testing.projects import write_sandbox
from strandline.testing.registry import RegistryServer

pytestmark = pytest.mark.engine

PASSWORD = "s3cr3t-Pa55-w0rd"


# -- SASL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaForTests, str]]:
    """A broker with an open port for the test, and one that asks for a password for the pipeline."""
    from strandline.runtime.ports import free_port

    port = free_port()
    kafka = KafkaForTests(tmp_path_factory.mktemp("guarded"), sasl_plain_listener(port, {"anna": PASSWORD}))
    yield kafka, f"127.0.0.1:{port}"
    kafka.stop()


def guarded_project(folder: Path, bootstrap: str, topic: str, out: str) -> None:
    write_sandbox(
        folder,
        f"""
import strandline as sl

@sl.pipeline(
    source=sl.kafka("{topic}", schema="n int"), sinks={{"rows": sl.table("shop.numbers"), "out": sl.topic("{out}")}},
)
def numbers(numbers):
    return {{"rows": numbers, "out": numbers}}
""",
    )
    config = folder / "strandline.yaml"
    kafka = f"""    kafka:
      bootstrap: {bootstrap}
      security:
        security.protocol: SASL_PLAINTEXT
        sasl.mechanism: PLAIN
        sasl.username: anna
        sasl.password: {{env: TEST_KAFKA_PASSWORD}}
"""
    text = config.read_text()
    config.write_text(text.replace("    spark:\n", kafka + "    spark:\n"))


def test_the_password_opens_the_cluster_and_is_written_nowhere(
    tmp_path: Path, guarded: tuple[KafkaForTests, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, bootstrap = guarded
    topic, out = kafka.create_topic(kafka.topic("in")), kafka.create_topic(kafka.topic("out"))
    kafka.produce(topic, ['{"n": 1}', '{"n": 2}'])
    guarded_project(tmp_path, bootstrap, topic, out)
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)

    ran = run_cli(tmp_path, "run", "numbers", "--available-now")
    kafka.produce(topic, ["broken"])
    failed = run_cli(tmp_path, "run", "numbers", "--available-now")

    assert ran.code == 0, ran.err
    assert failed.code == 1, "a failure makes Spark print its plan, options included, into its log"
    assert len(kafka.read(out)) == 2
    leaks = [str(file) for file in tmp_path.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()]
    assert leaks == []
    assert PASSWORD not in ran.out + ran.err + failed.out + failed.err


def test_a_wrong_or_missing_password_is_one_sentence(
    tmp_path: Path, guarded: tuple[KafkaForTests, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, bootstrap = guarded
    topic = kafka.create_topic(kafka.topic("in"))
    guarded_project(tmp_path, bootstrap, topic, topic)
    monkeypatch.delenv("TEST_KAFKA_PASSWORD", raising=False)
    unset = run_cli(tmp_path, "run", "numbers", "--available-now")
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", "wrong")

    wrong = run_cli(tmp_path, "run", "numbers", "--available-now")

    assert unset.code == ConfigError.exit_code
    assert "environment variable TEST_KAFKA_PASSWORD is not set" in unset.err
    assert wrong.code == SourceProblem.exit_code
    assert f"the Kafka cluster at {bootstrap} does not accept the credentials" in wrong.err
    assert "Traceback" not in wrong.err


# -- Avro ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "double"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


def message(schema_id: int, schema: Any, record: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, record)
    return b"\x00" + struct.pack(">I", schema_id) + body.getvalue()


def declare(
    sandbox: Sandbox, kafka: KafkaForTests, topic: str, url: str, columns: str = "id string not null, amount double", **more: str
) -> None:
    extra = "".join(f", {name}={value!r}" for name, value in more.items())
    sandbox.pipelines(
        f"""
        import strandline as sl

        @sl.pipeline(
            source=sl.kafka(
                "{topic}", bootstrap="{kafka.bootstrap}", format="avro", schema="{columns}", registry=sl.registry("{url}"){extra}
            ),
            sink=sl.table("shop.orders"),
        )
        def orders(orders):
            return orders
        """
    )


def test_avro_of_two_writers_is_read_and_their_schema_ids_are_evidence(
    sandbox: Sandbox, kafka: KafkaForTests, registry: RegistryServer
) -> None:
    topic = kafka.create_topic(kafka.topic("orders"))
    one, two = registry.register(topic, FIRST), registry.register(topic, SECOND)
    kafka.produce(topic, [message(one, FIRST, {"id": "a", "amount": 1.5}), message(two, SECOND, {"id": "b", "amount": 2.5, "note": "x"})])
    declare(sandbox, kafka, topic, registry.url)

    sandbox.run("orders")

    assert [(r["id"], r["amount"]) for r in sandbox.sql("select * from {c}.shop.orders order by id")] == [("a", 1.5), ("b", 2.5)]
    entry = history_of("shop.orders", EmbeddedCatalog(sandbox.project).load("shop.orders"), sandbox.ledger)[0]
    assert entry.schemas == {topic: [one, two]}
    strand = str(entry.strand)
    recorded = sandbox.ledger.batches.get("orders", strand, 0)
    assert recorded is not None
    assert json.loads(recorded.evidence["schemas"]) == {topic: [one, two]}


def test_avro_that_cannot_be_read_is_kept_with_its_place(sandbox: Sandbox, kafka: KafkaForTests, registry: RegistryServer) -> None:
    topic = kafka.create_topic(kafka.topic("orders"))
    known = registry.register(topic, FIRST)
    unknown = struct.pack(">I", 999_999)
    kafka.produce(topic, [message(known, FIRST, {"id": "a", "amount": 1.5}), b"\x00" + unknown + b"x", b"plain text"])
    declare(sandbox, kafka, topic, registry.url, malformed="quarantine")

    sandbox.run("orders")

    kept = sandbox.sql("select offset, reason from {c}.shop.orders__quarantine order by offset")
    assert [k["offset"] for k in kept] == [1, 2]
    assert "999999" in str(kept[0]["reason"])


def test_what_the_registry_cannot_answer_is_one_sentence(sandbox: Sandbox, kafka: KafkaForTests, registry: RegistryServer) -> None:
    topic = kafka.create_topic(kafka.topic("orders"))
    known = registry.register(topic, FIRST)
    kafka.produce(topic, [b"\x00" + struct.pack(">I", 888_888) + b"x", message(known, FIRST, {"id": "a", "amount": 1.0})])
    declare(sandbox, kafka, topic, registry.url)
    with pytest.raises(SourceProblem, match=rf"{topic}\[0\] offset 0: .*888888"):
        sandbox.run("orders")

    declare(sandbox, kafka, topic, registry.url, "id string, discount double")
    with pytest.raises(SourceProblem, match=r"discount"):
        sandbox.run("orders")

    declare(sandbox, kafka, topic, "http://127.0.0.1:9")
    with pytest.raises(SourceProblem, match=r"the schema registry at http://127.0.0.1:9"):
        sandbox.run("orders")
    assert EmbeddedCatalog(sandbox.project).load("shop.orders").snapshots == {}
