"""The schema registry through our eyes: what is asked before a start, and what each kind of failure says.

Against a real registry (see `strandline.testing.registry`), behind a password.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.messaging import registry as module
from strandline.messaging.registry import (
    RegistryConnection,
    SchemaRegistry,
    UnknownSchema,
    UnusableSchema,
    registry_failure,
    registry_of,
)
from strandline.model.errors import ConfigError, SourceProblem
from strandline.model.kafka import KafkaSource, Registry
from strandline.model.secrets import Secret
from strandline.project.config import Project, ProjectConfig
from strandline.testing.registry import RegistryServer

pytestmark = pytest.mark.engine

PASSWORD = "s3cret-of-the-registry"
JSON_SCHEMA = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'


def record(name: str, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry"), user="reader", password=PASSWORD) as started:
        yield started


@pytest.fixture
def registry(server: RegistryServer) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(RegistryConnection(server.url, "reader", PASSWORD)) as opened:
        yield opened


def refused(connection: RegistryConnection) -> SourceProblem:
    """The problem that a check of this registry ends with, which never names the password."""
    with SchemaRegistry(connection) as asked, pytest.raises(SourceProblem) as raised:
        asked.check("orders", ["order_id"])
    assert PASSWORD not in raised.value.message + raised.value.next_command
    return raised.value


# -- which registry ------------------------------------------------------------------------------------------


def project_with(kafka: dict[str, object] | None) -> Project:
    profile = {} if kafka is None else {"kafka": kafka}
    return Project(Path("/nowhere"), ProjectConfig.model_validate({"version": 1, "project": "p", "profiles": {"local": profile}}), "local")


def avro_source(registry: Registry | None = None) -> KafkaSource:
    return KafkaSource(("orders",), schema="order_id string", format="avro", registry=registry)


def test_the_profile_completes_what_the_source_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    project = project_with({"registry": {"url": "http://profile:8081", "user": "u", "password": {"env": "REGISTRY_PASSWORD"}}})

    assert registry_of(project, avro_source()) == RegistryConnection("http://profile:8081", "u", PASSWORD)
    # Another registry must not be told the profile's credentials.
    assert registry_of(project, avro_source(Registry("http://own:8081"))) == RegistryConnection("http://own:8081")
    own = avro_source(Registry("http://own:8081", "me", Secret(env="REGISTRY_PASSWORD")))
    assert registry_of(project, own) == RegistryConnection("http://own:8081", "me", PASSWORD)


@pytest.mark.parametrize("kafka", [None, {"bootstrap": "b:9092"}])
def test_no_registry_at_all_is_said_before_anything_runs(kafka: dict[str, object] | None) -> None:
    with pytest.raises(ConfigError, match=r"no schema registry is named: .* profile 'local'"):
        registry_of(project_with(kafka), avro_source())


def test_an_address_without_a_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="'registry:8081'; it starts with http"):
        registry_of(project_with({"registry": {"url": "registry:8081"}}), avro_source())


def test_a_connection_travels_and_does_not_show_its_password() -> None:
    connection = RegistryConnection("http://r:8081", "reader", PASSWORD)

    assert pickle.loads(pickle.dumps(connection)) == connection
    assert PASSWORD not in repr(connection)


# -- before a start ------------------------------------------------------------------------------------------


def test_a_subject_that_nobody_registered_yet_is_fine(registry: SchemaRegistry) -> None:
    registry.check("nothing-yet", ["order_id"])


def test_the_newest_schema_must_have_the_declared_fields(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register("checked", record("Order", order_id="string", amount="double"))
    registry.check("checked", ["order_id", "amount"])
    server.register("checked", record("Order", order_id="string", total="double"))

    with pytest.raises(SourceProblem) as raised:
        registry.check("checked", ["order_id", "amount"])

    assert raised.value.message == (
        "the declared field 'amount' of topic 'checked' is not in version 2 of subject 'checked-value', which has order_id, total"
    )


def test_what_is_not_an_avro_record_is_refused(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register_subject("json-value", JSON_SCHEMA, kind="JSON")
    server.register("texts", "string")

    with pytest.raises(SourceProblem, match="version 1 of subject 'json-value' cannot be read as Avro: it is a JSON schema"):
        registry.check("json", [])
    with pytest.raises(SourceProblem, match="version 1 of subject 'texts-value' is not a record"):
        registry.check("texts", [])


def test_a_registry_that_is_not_there_is_known_within_seconds() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        began = time.monotonic()
        problem = refused(RegistryConnection(url, "reader", PASSWORD))

    assert time.monotonic() - began < 3
    assert problem.message.startswith(f"the schema registry at {url} cannot be reached: ")
    assert problem.next_command == f"curl -i {url}/subjects"


def test_a_registry_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        problem = refused(RegistryConnection(f"http://127.0.0.1:{silent.getsockname()[1]}"))

    assert time.monotonic() - began < 3
    assert "cannot be reached: timed out" in problem.message


def test_wrong_and_missing_credentials_are_told_apart(server: RegistryServer) -> None:
    assert "refuses user 'reader' (HTTP 401)" in refused(RegistryConnection(server.url, "reader", PASSWORD + "x")).message
    assert "asks for a user and a password, and none are declared" in refused(RegistryConnection(server.url)).message


def test_an_address_that_is_no_registry_is_not_taken_for_an_empty_one(server: RegistryServer) -> None:
    problem = refused(RegistryConnection(server.url.replace("/apis/", "/elsewhere/"), "reader", PASSWORD))

    assert "answered HTTP 404" in problem.message
    assert problem.message.endswith("the URL must lead to Confluent's REST interface")


# -- schemas by id -------------------------------------------------------------------------------------------


def test_a_schema_is_asked_for_once(server: RegistryServer, registry: SchemaRegistry) -> None:
    number = server.register("once", record("Once", a="int"))
    first = registry.schema(number)

    server.stop()
    try:
        assert registry.schema(number) is first
        with pytest.raises(SourceProblem, match="cannot be reached"):
            registry.schema(number + 1)
    finally:
        server.start()
    assert first["fields"] == [{"name": "a", "type": "int"}]
    later = server.register("once", record("Once", a="int", b="int"))
    assert len(registry.schema(later)["fields"]) == 2  # the same session goes on with the registry that came back


def test_an_unknown_id_may_become_known(server: RegistryServer, registry: SchemaRegistry) -> None:
    number = server.register("growing", record("Growing", a="int")) + 1

    with pytest.raises(UnknownSchema, match=f"schema id {number} is not known to the registry"):
        registry.schema(number)
    assert server.register("growing", record("Growing", a="long")) == number
    with pytest.raises(UnknownSchema):  # not asked again at once
        registry.schema(number)
    registry._unknown.clear()
    assert registry.schema(number)["fields"] == [{"name": "a", "type": "long"}]


def test_a_schema_may_refer_to_others(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register_subject("address", '{"type": "record", "name": "shop.Address", "fields": [{"name": "zip", "type": "string"}]}')
    text = '{"type": "record", "name": "shop.Customer", "fields": [{"name": "home", "type": "shop.Address"}]}'
    number = server.register_subject("customers-value", text, references=[{"name": "shop.Address", "subject": "address", "version": 1}])

    assert "shop.Address" in registry.schema(number)["__named_schemas"]
    registry.check("customers", ["home"])


def test_a_schema_of_another_kind_is_not_avro(server: RegistryServer, registry: SchemaRegistry) -> None:
    number = server.register_subject("other-value", JSON_SCHEMA, kind="JSON")

    with pytest.raises(UnusableSchema, match="JSON schema, not Avro"):
        registry.schema(number)


def test_the_failure_is_found_again_in_the_text_of_a_failed_task() -> None:
    text = (
        "Job aborted due to stage failure: Traceback (most recent call last):\n  File …\n"
        "strandline.model.errors.SourceProblem: the schema registry at http://r:1 cannot be reached: refused\n\n\tat org.apache"
    )

    found = registry_failure(text)

    assert found is not None
    assert found.message == "the schema registry at http://r:1 cannot be reached: refused"
    assert found.next_command == "curl -i http://r:1/subjects"
    assert registry_failure("ValueError: the schema registry at home") is None
