"""Declarations about Kafka: what is allowed, and the sentence for what is not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import strandline as sl
from strandline.model.errors import DefinitionError
from strandline.model.secrets import Secret


def test_a_source_needs_little() -> None:
    source = sl.kafka("orders", schema="n int")

    assert source.topics == ("orders",)
    assert source.isolation == "read_committed"
    assert source.access.bootstrap is None, "the profile, or the development broker, knows it"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "takes topics or pattern=…, one of them"),
        ({"topics": "a", "pattern": "b", "schema": "n int"}, "takes topics or pattern=…, one of them"),
        ({"topics": "or ders", "schema": "n int"}, "'or ders' is no topic name"),
        ({"topics": "a"}, "kafka(format='json') needs schema=…"),
        ({"topics": "a", "format": "xml"}, "kafka(format=…) is 'xml'; allowed: json, avro, string, bytes"),
        ({"topics": "a", "format": "string", "schema": "n int"}, "gives one column named value"),
        ({"topics": "a", "format": "bytes", "malformed": "quarantine"}, "every message is a valid bytes"),
        ({"topics": "a", "schema": "n int", "start": "yesterday"}, "allowed: earliest, latest, committed"),
        ({"topics": "a", "schema": "n int", "start": datetime(2026, 1, 1)}, "has no time zone"),
        ({"topics": "a", "schema": "n int", "metadata": ["color"]}, "allowed: key, headers, topic, partition, offset, timestamp"),
        ({"topics": "a", "schema": "n int", "bootstrap": "nowhere"}, "it is host:port"),
        ({"topics": "a", "schema": "n int", "max_offsets_per_batch": 0}, "must be at least 1"),
        ({"topics": "a", "schema": "n int", "give_up_after": "1 s"}, "shorter than 5 s"),
        ({"topics": "a", "schema": "n int", "registry": sl.registry("http://r:1")}, "only used by format='avro'"),
        ({"topics": "a", "schema": "n int", "security": {"sasl.jaas.config": "x"}}, "allowed: security.protocol, sasl.mechanism"),
        ({"topics": "a", "schema": "n int", "security": {"sasl.password": "x"}}, "write it as a reference: secret(env='NAME')"),
    ],
)
def test_a_wrong_source_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        sl.kafka(**arguments)

    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "or/ders"}, "is no topic name"),
        ({"name": "a", "delivery": "once"}, "allowed: exactly_once, at_least_once"),
        ({"name": "a", "partition": "p", "partitioner": "random"}, "the column already decides"),
        ({"name": "a", "partitioner": "random", "delivery": "at_least_once"}, "only used by delivery='exactly_once'"),
    ],
)
def test_a_wrong_topic_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        sl.topic(**arguments)

    assert sentence in refused.value.message


def test_side_tables_need_a_table_to_be_named_after() -> None:
    with pytest.raises(DefinitionError, match="which is named after a table, and it writes none"):

        @sl.pipeline(source=sl.kafka("a", schema="n int", malformed="quarantine"), sink=sl.topic("b"))
        def relay(numbers: Any) -> Any:
            return numbers


def test_a_pipeline_knows_its_tables_and_all_its_outputs() -> None:
    @sl.pipeline(source=sl.kafka("a", schema="n int"), sinks={"rows": sl.table("shop.rows"), "out": sl.topic("b")})
    def relay(numbers: Any) -> Any:
        return numbers

    assert relay.tables() == ["shop.rows"]
    assert relay.outputs() == ["shop.rows", "kafka:b"]


def test_secrets_are_references_and_registries_hold_none() -> None:
    assert sl.secret(env="A") == Secret(env="A")
    with pytest.raises(DefinitionError, match="either secret"):
        sl.secret()
    with pytest.raises(DefinitionError, match="without a password in it"):
        sl.registry("http://user:pass@host:1")
