"""The schema registry: Confluent's REST interface through Confluent's client, with our errors.

Used in two places: on the driver before a start (`SchemaRegistry.check`), and in Spark's workers while a batch runs
(`SchemaRegistry.schema`). A connection is therefore a small value that can travel.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.model.errors import ConfigError, SourceProblem
from strandline.model.kafka import KafkaSource

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from strandline.project.config import Project

T = TypeVar("T")

TIMEOUT = 2.5
"""Seconds for a connection, and again for an answer; with one retry a dead address is known after five."""
UNKNOWN_FOR = 10.0
"""Seconds that an unknown id is not asked for again: registries replicate, so it may become known."""

_NOT_FOUND = (40401, 40402, 40403)
"""Confluent's codes for no such subject, version, schema. A plain 404 is something else: a wrong URL."""
_NAME = "the schema registry at"


class UnknownSchema(LookupError):
    """The registry answered: there is no such subject or id. Not for users: whoever asked knows what it means."""


class UnusableSchema(ValueError):
    """There is a schema, but it is not Avro or does not parse."""


@dataclass(frozen=True)
class RegistryConnection:
    """Resolved settings; the password stays out of `repr`."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    patience: int = 4
    """Retries while a batch runs, some seconds in all, in which a registry can restart. A start asks only twice."""


def registry_of(project: Project, source: KafkaSource) -> RegistryConnection:
    """The source's own registry, else the profile's. Credentials are those that stand beside the URL, never mixed."""
    if source.registry is not None:
        own = source.registry
        return RegistryConnection(own.url, own.user, own.password.resolve() if own.password else None)
    configured = project.profile.kafka.registry if project.profile.kafka else None
    if configured is None:
        raise ConfigError(
            f"no schema registry is named: neither kafka(registry=…), nor kafka.registry in profile '{project.profile_name}'",
            next_command="edit strandline.yaml: kafka: {registry: {url: http://host:8081}}",
        )
    if not re.match(r"https?://", configured.url):
        raise ConfigError(
            f"kafka.registry.url is '{configured.url}'; it starts with http:// or https://", next_command="edit strandline.yaml"
        )
    return RegistryConnection(configured.url, configured.user, configured.password.resolve() if configured.password else None)


def registry_failure(text: str) -> SourceProblem | None:
    """The registry's failure inside the text of a failed Spark task, which is all that is left of a worker's exception."""
    found = re.search(rf"SourceProblem: ({_NAME} (\S+) [^\r\n]+)", text)
    return SourceProblem(found.group(1), next_command=f"curl -i {found.group(2)}/subjects") if found else None


class SchemaRegistry:
    """One registry, asked through one HTTP session; parsed schemas are kept for good, since an id never changes its meaning."""

    def __init__(self, connection: RegistryConnection, *, retries: int = 1) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        settings: dict[str, Any] = {"url": connection.url, "timeout": TIMEOUT, "max.retries": retries, "retries.wait.ms": 500}
        if connection.user or connection.password:
            settings["basic.auth.user.info"] = f"{connection.user or ''}:{connection.password or ''}"
        self._connection = connection
        self._client: SchemaRegistryClient = SchemaRegistryClient(settings)
        self._parsed: dict[int, Any] = {}
        self._unknown: dict[int, float] = {}

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> SchemaRegistry:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def check(self, topic: str, fields: Iterable[str]) -> None:
        """Before a start: the registry answers, and the newest schema of the topic has these fields.

        A subject that does not exist yet is fine: its first message registers it.
        """
        subject = f"{topic}-value"
        try:
            latest = self._ask(lambda: self._client.get_version(subject, "latest"))
        except UnknownSchema:
            return
        version = f"version {latest.version} of subject '{subject}'"
        again = f"curl {self._connection.url}/subjects/{subject}/versions/latest"
        try:
            schema = self._parse(latest.schema)
        except (UnusableSchema, UnknownSchema) as error:
            raise SourceProblem(f"{version} cannot be read as Avro: {error}", next_command=again) from error
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise SourceProblem(f"{version} is not a record, so it has no fields to read", next_command=again)
        there = [str(item["name"]) for item in schema["fields"]]
        if missing := [name for name in fields if name not in there]:
            names = ", ".join(f"'{name}'" for name in missing)
            raise SourceProblem(
                f"the declared field{'s' * (len(missing) > 1)} {names} of topic '{topic}' {'are' if len(missing) > 1 else 'is'} not in "
                f"{version}, which has {', '.join(there) or 'no fields'}",
                next_command="change kafka(schema=…), or register a schema that has them",
            )

    def schema(self, schema_id: int) -> Any:
        """The parsed schema that a message was written with; `UnknownSchema`, `UnusableSchema` or `SourceProblem` otherwise."""
        if (known := self._parsed.get(schema_id)) is not None:
            return known
        if time.monotonic() < self._unknown.get(schema_id, 0.0):
            raise UnknownSchema(f"schema id {schema_id} is not known to the registry")
        try:
            found = self._ask(lambda: self._client.get_schema(schema_id))
        except UnknownSchema:
            self._unknown[schema_id] = time.monotonic() + UNKNOWN_FOR
            raise UnknownSchema(f"schema id {schema_id} is not known to the registry") from None
        self._parsed[schema_id] = self._parse(found)
        return self._parsed[schema_id]

    def _parse(self, schema: Schema) -> Any:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException

        named: dict[str, Any] = {}
        visited: set[tuple[str, int]] = set()

        def parse(part: Schema) -> Any:
            if part.schema_type not in (None, "AVRO"):
                raise UnusableSchema(f"it is a {part.schema_type} schema, not Avro")
            for reference in part.references or []:
                key = (str(reference.subject), int(reference.version or 0))
                if key not in visited:
                    visited.add(key)
                    parse(self._ask(partial(self._client.get_version, *key)).schema)
            return parse_schema(json.loads(part.schema_str or ""), named_schemas=named)

        try:
            return parse(schema)
        except (SchemaParseException, json.JSONDecodeError) as error:  # UnknownType is one of the former
            raise UnusableSchema(f"it does not parse: {_one_line(error)}") from error

    def _ask(self, request: Callable[[], T]) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        name, user = f"{_NAME} {self._connection.url}", self._connection.user
        next_command = f"curl -i {self._connection.url}/subjects"
        try:
            return request()
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                raise UnknownSchema(_one_line(error.error_message)) from error
            if error.http_status_code in (401, 403):
                what = f"refuses user '{user}'" if user else "asks for a user and a password, and none are declared"
                raise SourceProblem(
                    f"{name} {what} (HTTP {error.http_status_code})", next_command="edit strandline.yaml: kafka.registry user and password"
                ) from error
            hint = "; the URL must lead to Confluent's REST interface" if error.http_status_code in (301, 302, 307, 308, 404, 405) else ""
            raise SourceProblem(
                f"{name} answered HTTP {error.http_status_code}: {_one_line(error.error_message)}{hint}", next_command=next_command
            ) from error
        except Exception as error:  # the client lets its HTTP library's errors through, and that library differs by installation
            raise SourceProblem(
                f"{name} cannot be reached: {_one_line(error) or type(error).__name__}", next_command=next_command
            ) from error


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:200]
