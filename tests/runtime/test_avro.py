"""Avro messages in Confluent's wire format: every type, every way to be wrong, and who is to blame.

Messages are written by fastavro with schemas of a real registry, and decoded by Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pytest

from strandline.messaging.registry import RegistryConnection, registry_failure
from strandline.model.errors import DefinitionError
from strandline.runtime.sources.avro import PARSED, PROBLEM, SchemaIds, decode
from strandline.testing.registry import RegistryServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.engine

AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)
AT_MILLIS = AT.replace(microsecond=123000)
ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def ids(spark_home: SparkSession) -> SchemaIds:
    return SchemaIds(spark_home)


class Writer:
    """A producer of one topic with one schema."""

    def __init__(self, registry: RegistryServer, topic: str, **fields: Any) -> None:
        schema = {"type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
        self.topic = topic
        self.id = registry.register(topic, schema)
        self._schema = fastavro.parse_schema(schema)

    def message(self, **values: Any) -> bytes:
        body = BytesIO()
        fastavro.schemaless_writer(body, self._schema, values)
        return header(self.id) + body.getvalue()


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def decoded(
    spark: SparkSession, registry: RegistryServer, ids: SchemaIds, ddl: str, messages: list[bytes | None], topics: list[str] | None = None
) -> DataFrame:
    """All of one topic in one task, or each topic's in one of its own, as Kafka's source does it."""
    rows = list(zip(range(len(messages)), topics or ["t"] * len(messages), messages, strict=True))
    frame = spark.createDataFrame(rows, "n int, topic string, value binary")
    frame = frame.repartition(3, "topic") if topics else frame.coalesce(1)
    return decode(frame, "value", ddl, RegistryConnection(registry.url, patience=0), ids)


def answers(frame: DataFrame) -> list[tuple[dict[str, Any] | None, str | None]]:
    """Through Arrow: Spark's rows have timestamps without a zone."""
    rows = frame.select("n", PARSED, PROBLEM).toArrow().to_pylist()
    return [(row[PARSED], row[PROBLEM]) for row in sorted(rows, key=lambda row: int(row["n"]))]


GOOD: list[tuple[str, Any, str, Any, Any]] = [
    # name, written type, declared type, written value, value in the table
    ("text", "string", "string", "ü", "ü"),
    ("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
    ("utf8", "bytes", "string", "ü".encode(), "ü"),
    ("uuid", {"type": "string", "logicalType": "uuid"}, "string", ID, str(ID)),
    ("uuid_fixed", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "string", ID.bytes, str(ID)),
    ("raw", "bytes", "binary", b"\xff\x00", b"\xff\x00"),
    ("raw_fixed", {"type": "fixed", "name": "F", "size": 2}, "binary", b"\xff\x00", b"\xff\x00"),
    ("raw_text", "string", "binary", "ü", "ü".encode()),
    ("flag", "boolean", "boolean", True, True),
    ("tiny", "int", "tinyint", -128, -128),
    ("small", "long", "smallint", 32767, 32767),
    ("number", "int", "int", -(2**31), -(2**31)),
    ("narrowed", "long", "int", 7, 7),
    ("widened", "int", "bigint", 7, 7),
    ("large", "long", "bigint", 2**63 - 1, 2**63 - 1),
    ("ratio", "float", "float", 0.5, 0.5),
    ("ratio_up", "float", "double", 0.5, 0.5),
    ("exact", "double", "double", 0.1, 0.1),
    ("int_double", "int", "double", 7, 7.0),
    ("long_double", "long", "double", 2**53 + 2, float(2**53 + 2)),
    ("int_float", "int", "float", 7, 7.0),
    (
        "money",
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "decimal(9,2)",
        Decimal("-12.30"),
        Decimal("-12.30"),
    ),
    (
        "money_fixed",
        {"type": "fixed", "name": "M", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 4},
        "decimal(38,4)",
        Decimal("1234567890123456789012345678901234.5678"),
        Decimal("1234567890123456789012345678901234.5678"),
    ),
    (
        "money_scaled",
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4},
        "decimal(9,2)",
        Decimal("1.2300"),
        Decimal("1.23"),
    ),
    ("money_whole", "long", "decimal(9,2)", 12, Decimal("12.00")),
    ("day", {"type": "int", "logicalType": "date"}, "date", date(1969, 12, 31), date(1969, 12, 31)),
    ("at_millis", {"type": "long", "logicalType": "timestamp-millis"}, "timestamp", AT, AT_MILLIS),
    ("at_micros", {"type": "long", "logicalType": "timestamp-micros"}, "timestamp", AT, AT),
    (
        "at_local",
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        AT.replace(tzinfo=None),
        AT.replace(tzinfo=None),
    ),
    ("at_number", {"type": "long", "logicalType": "timestamp-millis"}, "bigint", 5, 5),
    ("maybe", ["null", "int"], "int", None, None),
    ("maybe_not", ["null", "string"], "string", "x", "x"),
    ("maybe_day", [{"type": "int", "logicalType": "date"}, "null"], "date", date(2026, 1, 2), date(2026, 1, 2)),
    ("either", ["int", "double", "null"], "double", 7, 7.0),
    ("list", {"type": "array", "items": ["null", "int"]}, "array<bigint>", [1, None], [1, None]),
    (
        "days",
        {"type": "array", "items": {"type": "int", "logicalType": "date"}},
        "array<date>",
        [date(2026, 1, 2)],
        [date(2026, 1, 2)],
    ),
    ("map", {"type": "map", "values": "int"}, "map<string,int>", {"a": 1}, [("a", 1)]),
    (
        "times",
        {"type": "map", "values": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        "map<string,timestamp>",
        {"a": AT, "b": None},
        [("a", AT_MILLIS), ("b", None)],
    ),
    (
        "nested",
        {
            "type": "record",
            "name": "N",
            "fields": [{"name": "zip", "type": "string"}, {"name": "extra", "type": "int"}, {"name": "at", "type": ["null", "int"]}],
        },
        "struct<zip: string not null, at: bigint, since: date>",
        {"zip": "12", "extra": 1, "at": 2},
        {"zip": "12", "at": 2, "since": None},
    ),
    ("again", ["null", "N"], "struct<zip: string>", {"zip": "34", "extra": 1, "at": None}, {"zip": "34"}),
    ("nobody", ["null", "N"], "struct<zip: string not null>", None, None),
]


def test_every_type_arrives_as_declared(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    writer = Writer(registry, "t", **{name: written for name, written, _, _, _ in GOOD})
    ddl = ", ".join(f"{name} {declared}" for name, _, declared, _, _ in GOOD) + ", absent string"
    message = writer.message(**{name: value for name, _, _, value, _ in GOOD})

    frame = decoded(spark_home, registry, ids, ddl, [message])

    [(parsed, problem)] = answers(frame)
    assert problem is None
    assert parsed == {**{name: expected for name, _, _, _, expected in GOOD}, "absent": None}
    declared = spark_home.createDataFrame([], ddl).schema
    assert frame.schema[PARSED].dataType.simpleString() == declared.simpleString()


BAD: list[tuple[str, Any, Any, str]] = [
    # field, written type, written value, problem
    ("i", "long", 2**31, "field 'i' holds a value that does not fit int"),
    ("i", "double", 1.0, "field 'i' is double in the writer's schema and declared int"),
    ("i", "boolean", True, "field 'i' is boolean in the writer's schema and declared int"),
    ("i", ["null", "int", "string"], "x", "field 'i' is string in the writer's schema and declared int"),
    ("s", "int", 1, "field 's' is int in the writer's schema and declared string"),
    ("s", "bytes", b"\xff", "field 's' holds a value that does not fit string"),
    ("f", "double", 1.0, "field 'f' is double in the writer's schema and declared float"),
    ("m", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, Decimal("1.234"), "field 'm' holds a value that does not fit decimal(5,2)"),
    ("m", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1234.00"), "field 'm' holds a value that does not fit decimal(5,2)"),
    ("m", "bytes", b"\x01", "field 'm' is bytes in the writer's schema and declared decimal(5,2)"),
    ("s", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.00"), "field 's' is bytes (decimal) in the writer's schema and declared string"),
    ("at", "long", 1, "field 'at' is long in the writer's schema and declared timestamp"),
    ("at", {"type": "long", "logicalType": "local-timestamp-millis"}, 1, "field 'at' is long (local-timestamp-millis) in the writer's schema and declared timestamp"),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}, 2**62, "field 'at' holds a value that does not fit timestamp"),
    ("o", {"type": "record", "name": "O", "fields": [{"name": "p", "type": ["null", "int"]}]}, {"p": None}, "field 'o.p' is declared not null and the message holds null"),
    ("o", {"type": "record", "name": "O", "fields": []}, {}, "field 'o.p' is declared not null and missing in the writer's schema"),
    ("o", {"type": "record", "name": "O", "fields": [{"name": "p", "type": "string"}]}, {"p": "x"}, "field 'o.p' is string in the writer's schema and declared int"),
    ("a", {"type": "array", "items": "string"}, ["x"], "field 'a' is string in the writer's schema and declared int"),
]  # fmt: skip


def test_what_does_not_fit_is_a_problem_of_its_row_alone(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    ddl = "k string not null, i int, s string, f float, m decimal(5,2), at timestamp, o struct<p: int not null>, a array<int>"
    expected: list[tuple[dict[str, Any] | None, str | None]] = []
    messages: list[bytes | None] = []
    for field, written, value, problem in BAD:
        messages.append(Writer(registry, "t", k="string", **{field: written}).message(k="k", **{field: value}))
        expected.append((None, problem))
    nothing = dict.fromkeys(("i", "s", "f", "m", "at", "o", "a"))
    mixed = Writer(registry, "t", k=["null", "string"], i=["null", "long"])
    for key, number in (("a", 1), ("b", 2**40), ("c", None), (None, 4)):  # one schema, some rows fit
        messages.append(mixed.message(k=key, i=number))
        fits = key is not None and number != 2**40
        words = "field 'i' holds a value that does not fit int" if key else "field 'k' is declared not null and the message holds null"
        expected.append(({**nothing, "k": key, "i": number}, None) if fits else (None, words))
    keyless = Writer(registry, "t", i="int")
    messages.append(keyless.message(i=1))
    expected.append((None, f"field 'k' is declared not null and missing in schema {keyless.id}"))
    # A null is null, whatever else the union could have held.
    messages.append(Writer(registry, "t", k="string", s=["null", "int"]).message(k="k", s=None))
    expected.append(({**nothing, "k": "k"}, None))

    assert answers(decoded(spark_home, registry, ids, ddl, messages)) == expected


def test_damaged_messages_say_what_is_wrong(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    first = Writer(registry, "t", name="string", n=["null", "int"])
    second = Writer(registry, "t", name="string", n="long", more="string")  # a newer version in the same frame
    texts = registry.register("t", "string")
    good, cut = first.message(name="a", n=1), f"the message cannot be decoded with schema {first.id}:"
    cases: list[tuple[bytes | None, Any, str | None]] = [
        (good, {"name": "a", "n": 1}, None),
        (None, None, "the message has no value"),
        (b"", None, "the message has 0 bytes, too few for Confluent's wire format"),
        (b"\0\0\0\0", None, "the message has 4 bytes, too few for Confluent's wire format"),
        (b'{"name": "a"}', None, "the message starts with 0x7b; Confluent's wire format starts with 0x00"),
        (header(999_999) + b"x", None, "schema id 999999 is not known to the registry"),
        (header(2**32 - 1) + b"x", None, "schema id 4294967295 is not known to the registry"),
        (second.message(name="b", n=2, more="x"), {"name": "b", "n": 2}, None),
        (good[:-1], None, f"{cut} it ends too early"),
        (header(first.id), None, f"{cut} it ends too early"),
        (good + b"xyz", None, f"{cut} 3 bytes are left over"),
        (header(first.id) + b"\x02\xff\x00", None, f"{cut} a text in it is not UTF-8"),
        (header(first.id) + b"\x02a\x08", None, f"{cut} the number of a union's branch or of an enum's symbol is out of range"),
        (header(texts) + b"\x02a", None, f"schema {texts} is string, not a record"),
        (first.message(name="c", n=None), {"name": "c", "n": None}, None),
    ]

    frame = decoded(spark_home, registry, ids, "name string not null, n bigint", [message for message, _, _ in cases])

    assert answers(frame) == [(parsed, problem) for _, parsed, problem in cases]
    assert ids.take() == {"t": (first.id, second.id)}  # ids that only damaged messages name are no evidence


def test_schema_ids_are_kept_by_topic_until_they_are_taken(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    topics = ["orders", "orders", "orders", "refunds"]
    writers = [Writer(registry, topic, n="int", **{f"v{i}": "int"}) for i, topic in enumerate(topics)]
    messages: list[bytes | None] = [writer.message(n=1, **{f"v{i}": 1}) for i, writer in enumerate(writers)]
    frame = decoded(spark_home, registry, ids, "n int not null", messages, topics)
    orders, refunds = (writers[0].id, writers[2].id), (writers[3].id, writers[3].id)

    assert len(frame.where(f"{PROBLEM} is null").collect()) == 4
    assert ids.take() == {"orders": orders, "refunds": refunds}
    assert ids.take() == {}
    assert len(frame.where("topic = 'refunds'").collect()) == 1
    assert ids.take()["refunds"] == refunds


def test_a_filter_on_the_problem_does_not_decode_twice(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    frame = decoded(spark_home, registry, ids, "n int", [b"no", b"\0avro"])
    good = frame.where(f"{PROBLEM} is null").selectExpr("n", f"{PARSED}.n as m")
    bad = frame.where(f"{PROBLEM} is not null").select(PROBLEM, PARSED)

    for branch in (good, bad):
        plan = branch._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("decoded(") == 1, plan


def test_a_registry_that_is_down_fails_the_batch_and_blames_no_row(
    spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds
) -> None:
    from pyspark.errors import PySparkException

    writer = Writer(registry, "down", n="int", only_here="int")
    frame = decoded(spark_home, registry, ids, "n int", [writer.message(n=1, only_here=2)])
    registry.stop()
    try:
        with pytest.raises(PySparkException) as raised:
            answers(frame)
    finally:
        registry.start()

    problem = registry_failure(str(raised.value))
    assert problem is not None and problem.message.startswith(f"the schema registry at {registry.url} cannot be reached: ")
    assert ids.take() == {}
    assert answers(frame) == [({"n": 1}, None)]


def test_a_type_that_avro_does_not_have_is_refused_at_once(spark_home: SparkSession, registry: RegistryServer, ids: SchemaIds) -> None:
    with pytest.raises(DefinitionError, match=r"column 'a.b' is declared interval day to second, which no Avro type can fill"):
        decoded(spark_home, registry, ids, "a struct<b: array<interval day to second>>", [b""])
    with pytest.raises(DefinitionError, match=r"column 'm' is declared map<int,string>"):
        decoded(spark_home, registry, ids, "m map<int,string>", [b""])
