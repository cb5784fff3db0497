"""The development broker: real ones, started, killed and found again; and the texts they are made of."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from strandline.model.errors import EnvironmentProblem, Refused
from strandline.runtime import broker as module
from strandline.runtime import jars
from strandline.runtime.broker import Broker
from strandline.runtime.broker_settings import cluster_id_in, new_cluster_id, server_properties, telling_line
from strandline.runtime.jars import ensure_broker_jars, ensure_jars, locked_broker_jars, locked_jars
from strandline.runtime.java import Java
from strandline.runtime.liveness import this_process
from strandline.runtime.ports import LOOPBACK, free_port, is_listening, is_taken
from strandline.testing import run_cli
from strandline.testing.kafka import KafkaForTests, sasl_plain_listener
from strandline.testing.projects import write_sandbox

PASSWORD = 'sécret"\\'
"""Everything that a properties file and a JAAS entry could stumble over."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A broker's folder with a space and a comma, emptied of life afterwards."""
    place = tmp_path / "my, project" / "kafka"
    yield place
    Broker(place).kill()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


# -- one broker's life -----------------------------------------------------------------------------------------


@pytest.mark.process
def test_up_and_down_from_the_command_line(tmp_path: Path, taken: int) -> None:
    """Two at once start one; the port used before is kept; the data too; everything twice does no harm."""
    project = write_sandbox(tmp_path)
    port = free_port()
    try:
        answers: list[dict[str, object]] = []

        def up() -> None:
            finished = run_cli(tmp_path, "kafka", "up", "--port", str(port), "--json")
            assert finished.code == 0, finished.err
            answers.append(json.loads(finished.out))

        both = [threading.Thread(target=up) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        first, second = sorted(answers, key=lambda answer: not answer["started"])
        assert (first["started"], second["started"]) == (True, False)
        assert first["broker"] == {**second["broker"], "data_bytes": first["broker"]["data_bytes"]}  # type: ignore[dict-item, index]
        assert project.development_broker() == f"{LOOPBACK}:{port}"

        refused = run_cli(tmp_path, "kafka", "up", "--port", str(taken))
        assert refused.code == 4
        assert f"already runs at {LOOPBACK}:{port}" in refused.err
        assert refused.err.strip().endswith("next: strandline kafka down")
        shown = run_cli(tmp_path, "kafka", "status")
        assert shown.code == 0
        assert f"running  {LOOPBACK}:{port}" in shown.out

        assert "stopped" in run_cli(tmp_path, "kafka", "down").out
        assert project.development_broker() is None
        assert not is_listening(port)
        again = json.loads(run_cli(tmp_path, "kafka", "down", "--json").out)
        assert (again["stopped"], again["broker"]["running"]) == (False, False)
        assert "next: strandline kafka up" in run_cli(tmp_path, "kafka", "status").out
    finally:
        Broker(project.broker_folder).kill()


@pytest.mark.process
def test_a_killed_broker_is_found_dead_and_comes_back_with_its_data(folder: Path) -> None:
    kafka = KafkaForTests(folder)
    orders = kafka.create_topic(kafka.topic("orders"), partitions=2)
    kafka.produce(orders, ["a", "b"], keys=["1", "2"], partition=1, headers={"kind": "new"})
    before = kafka.broker.status()
    assert (before.running, before.topics) == (True, 1)
    assert before.data_bytes > 0

    kafka.kill()

    dead = Broker(folder).status()
    assert (dead.running, dead.pid, dead.bootstrap, dead.topics) == (False, None, None, None)
    assert (folder / "bootstrap").exists(), "a crash tidies nothing up"

    # Its port is not ours any more, and its pid is another process's: neither may mislead us.
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "pid": os.getpid()}))
    assert not Broker(folder).status().running
    heard: list[str] = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, state["port"]))
        listener.listen()
        broker = Broker(folder, say=heard.append)
        assert broker.up()
    after = broker.status()
    assert after.bootstrap is not None
    assert heard == [
        f"Port {state['port']} is taken by another program: the broker gets {after.bootstrap.rpartition(':')[2]}",
        f"Starting a Kafka broker at {after.bootstrap}",
    ]
    assert (folder / "bootstrap").read_text().strip() == after.bootstrap

    kafka.bootstrap = str(after.bootstrap)
    assert [(r.partition, r.offset, r.key, r.value, r.headers) for r in kafka.read(orders)] == [
        (1, 0, b"1", b"a", (("kind", b"new"),)),
        (1, 1, b"2", b"b", (("kind", b"new"),)),
    ]
    assert broker.down()
    assert not broker.down()


@pytest.mark.process
def test_it_outlives_the_process_that_started_it(folder: Path) -> None:
    """Also when that one is interrupted together with its whole group, as Ctrl-C in a shell does."""
    code = f"import time; from pathlib import Path; from strandline.runtime.broker import Broker; Broker(Path({str(folder)!r})).up(0); print(1, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    os.killpg(parent.pid, signal.SIGINT)
    parent.communicate(timeout=30)

    broker = Broker(folder)
    found = broker.status()

    assert found.running
    assert found.topics == 0
    assert found.pid is not None
    os.kill(found.pid, signal.SIGSTOP)  # frozen: it runs, answers nobody, and SIGTERM alone would not end it
    frozen = broker.status()
    assert (frozen.running, frozen.topics) == (True, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STOP_WITHIN", 0.5)
        assert broker.down()
    assert not broker.status().running


@pytest.mark.process
def test_a_broker_that_cannot_start_says_why_until_nothing_is_in_its_way(folder: Path, taken: int) -> None:
    """In its way: a wrong setting, then the port of a second listener, which asks for a password; at last it starts."""
    with pytest.raises(EnvironmentProblem, match="Invalid value many for configuration offsets.topic.num.partitions") as problem:
        Broker(folder, {"offsets.topic.num.partitions": "many"}).up(0)
    assert problem.value.next_command == f"tail -50 {folder / 'broker.log'}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TRIES", 1)
        with pytest.raises(EnvironmentProblem, match=f"failed to bind to {LOOPBACK}:{taken}"):
            Broker(folder, sasl_plain_listener(taken, {"ann": PASSWORD})).up(0)
    assert not Broker(folder).status().running
    assert not (folder / "bootstrap").exists()

    with pytest.raises(EnvironmentProblem, match=f"port {taken} of {LOOPBACK} is taken") as problem:
        Broker(folder).up(taken)
    assert problem.value.next_command == "strandline kafka up"

    port = free_port()
    assert Broker(folder, sasl_plain_listener(port, {"ann": PASSWORD})).up(0)
    assert topics_for("ann", PASSWORD, port) == {}
    with pytest.raises(KafkaException):
        topics_for("ann", "wrong", port)


def topics_for(user: str, password: str, port: int) -> object:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
    return AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0, **login}).list_topics(timeout=2).topics


# -- what tests do with it ---------------------------------------------------------------------------------------


@pytest.mark.process
def test_helpers_do_what_they_say(kafka: KafkaForTests) -> None:
    topic = kafka.create_topic(kafka.topic(), retention_ms=3_600_000)
    with kafka.transaction() as sender:
        sender.produce(topic, ["kept"])
    with kafka.transaction(commit=False) as sender:
        sender.produce(topic, ["dropped"])
    with pytest.raises(ZeroDivisionError), kafka.transaction() as sender:
        sender.produce(topic, ["lost"])
        raise ZeroDivisionError

    assert [r.value for r in kafka.read(topic)] == [b"kept"]
    assert [r.value for r in kafka.read(topic, "read_uncommitted")][:2] == [b"kept", b"dropped"]
    assert kafka.ends(topic)[0] >= 4, "a transaction's end takes an offset of its own"

    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [None], keys=["gone"], partition=2)
    assert kafka.ends(topic) == {0: kafka.ends(topic)[0], 1: 0, 2: 1}
    kafka.delete_records(topic, 0, before_offset=1)
    assert kafka.starts(topic)[0] >= 1
    assert [(r.key, r.value) for r in kafka.read(topic)] == [(b"gone", None)]
    assert kafka.group_offsets("nobody") == {}

    first = kafka.topic_id(topic)
    kafka.delete_topic(topic)
    assert kafka.topic_id(kafka.create_topic(topic)) != first


@pytest.mark.process
def test_an_outage_ends_at_the_same_address_with_the_same_data(kafka: KafkaForTests) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = kafka.create_topic(kafka.topic())
    kafka.produce(topic, ["before"])
    consumer = Consumer(kafka.settings(group_id=topic))
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()

    with kafka.outage():
        assert not kafka.broker.status().running

    kafka.produce(topic, ["after"])
    assert [r.value for r in kafka.read(topic)] == [b"before", b"after"]
    assert kafka.group_offsets(topic) == {(topic, 0): 1}


# -- texts, locks and ports: no broker --------------------------------------------------------------------------


def test_properties_can_be_added_and_overridden_and_survive_java() -> None:
    extra = {"listeners": "SSL://h:1", "node.id": "7", "ssl.keystore.location": "C:\\keys\\ä𝄞"}
    lines = dict(line.split("=", 1) for line in server_properties(9092, 9093, extra).splitlines())

    assert lines["listeners"] == f"PLAINTEXT://{LOOPBACK}:9092,CONTROLLER://{LOOPBACK}:9093,SSL://h:1"
    assert lines["node.id"] == "7"
    assert lines["ssl.keystore.location"] == "C:\\\\keys\\\\\\u00e4\\ud834\\udd1e"
    assert lines["auto.create.topics.enable"] == "false"


def test_a_cluster_id_is_no_option_and_is_found_again() -> None:
    ids = {new_cluster_id() for _ in range(500)}

    assert len(ids) == 500
    assert all(len(found) == 22 and not found.startswith("-") for found in ids)
    assert cluster_id_in("#\nversion=1\ncluster.id=abc\nnode.id=1\n") == "abc"
    assert cluster_id_in("version=1\n") is None


def test_the_telling_line_of_a_log() -> None:
    log = """\
2026-01-01T00:00:00.000Z ERROR Acceptor: something else first
2026-01-01T00:00:01.000Z ERROR Kafka$: Exiting Kafka due to fatal exception
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address already in use.
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:615)
Caused by: java.net.BindException: Address already in use
\t... 16 more
2026-01-01T00:00:02.000Z INFO BrokerServer: bye
"""
    assert (
        telling_line(log)
        == "org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address already in use"
    )
    assert telling_line('Exception in thread "main" java.lang.Oops: no') == "java.lang.Oops: no"
    nested = "java.lang.RuntimeException: Fatal\nCaused by: KafkaException: no bind to h:1: In use.\nCaused by: BindException: In use\n"
    assert telling_line(nested) == "KafkaException: no bind to h:1: In use"
    assert telling_line("one\ntwo\n\n") == "two"
    assert telling_line("") is None


def test_a_state_file_of_another_process_another_boot_or_nobody_is_stale(tmp_path: Path) -> None:
    here = this_process()
    for state, alive in (
        ({"port": 1, "pid": here.pid, "started": here.started}, True),
        ({"port": 1, "pid": here.pid, "started": f"0000dead{here.started[8:]}"}, False),
        ({"port": 1, "pid": 2**22 - 1, "started": here.started}, False),
        ({"port": 1, "pid": None, "started": None}, False),
        ({"another": "version"}, False),
    ):
        (tmp_path / "state.json").write_text(json.dumps(state))
        assert Broker(tmp_path)._state().lives is alive, state
    (tmp_path / "state.json").write_text("half a fi")
    assert not Broker(tmp_path).status().running


def test_down_of_what_never_was_makes_no_folder(tmp_path: Path) -> None:
    assert not Broker(tmp_path / "kafka").down()
    assert not (tmp_path / "kafka").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(EnvironmentProblem, match="the broker's folder .* cannot be used: Not a directory"):
        Broker(tmp_path / "file" / "kafka").up()


def test_a_command_that_holds_the_broker_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WITHIN", 0.2)
    with Broker(tmp_path)._alone(), pytest.raises(Refused, match="another command has been busy with the broker"):
        Broker(tmp_path).down()


def test_taken_and_free_ports(taken: int) -> None:
    assert is_taken(taken)
    assert is_listening(taken)
    free = free_port()
    assert not is_taken(free)
    assert not is_listening(free)


# -- jars: a Java that only pretends ----------------------------------------------------------------------------


def pretend_java(folder: Path, script: str) -> Java:
    """A `java` that runs a shell script; ``$CACHE`` is the folder that Ivy was told to use."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != -cache ]; do shift; done; CACHE="$2"; mkdir -p "$CACHE"\n{script}\n')
    program.chmod(0o755)
    return Java(folder, 21, "a test")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


def test_the_locks_name_each_jar_once_and_fully() -> None:
    for locked in (locked_jars(), locked_broker_jars()):
        assert len({jar.file_name for jar in locked}) == len(locked)
        assert all(len(jar.sha256) == 64 for jar in locked)
    broker = {str(jar) for jar in locked_broker_jars()}
    assert {"org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"} <= broker
    assert "org.apache.kafka:kafka-clients:3.9.1" in {str(jar) for jar in locked_jars()}


def test_jars_that_are_there_need_no_java(cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    for jar in locked_broker_jars():
        jar.path.touch()

    paths = ensure_broker_jars(Java(tmp_path / "none", 21, "nowhere"), lambda text: pytest.fail(text))

    assert paths == [jar.path for jar in locked_broker_jars()]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo '  Server access error at url https://x/y.jar (java.net.ConnectException: Connection refused)'; exit 1",
            "Connection refused",
        ),
        ("echo '  :: org.apache.kafka#kafka-clients;99: not found'; echo '  ::::::'; exit 1", "could not be fetched: not found"),
        ("echo 'Exception: something new'; exit 1", "could not be fetched: Exception: something new"),
        ("exit 1", "could not be fetched: Ivy gave no reason"),
        ('echo wrong > "$CACHE/kafka_2.13-4.3.1.jar"', "kafka_2.13-4.3.1.jar has SHA-256 .* it was not kept"),
    ],
)
def test_a_fetch_that_fails_says_why_and_keeps_nothing(cache: Path, tmp_path: Path, script: str, says: str) -> None:
    with pytest.raises(EnvironmentProblem, match=says) as problem:
        ensure_broker_jars(pretend_java(tmp_path / "java", script), lambda text: None)

    assert "strandline kafka up" in problem.value.next_command
    assert list(cache.iterdir()) == []


def test_what_arrived_is_kept_when_another_jar_did_not(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of nothing
    monkeypatch.setattr(jars, "locked_jars", lambda: [jars.Jar("g", "one", "1", good), jars.Jar("g", "two", "2", good)])
    monkeypatch.setattr(jars, "SIGN_OF_LIFE", -1.0)
    heard: list[str] = []
    half = 'echo "downloading https://x/one-1.jar ..."; touch "$CACHE/one-1.jar"; exit 1'

    with pytest.raises(EnvironmentProblem, match="g:two:2 could not be fetched"):
        ensure_jars(pretend_java(tmp_path / "half", half), heard.append)
    ensure_jars(pretend_java(tmp_path / "rest", 'touch "$CACHE/two-2.jar"'), heard.append)

    assert sorted(path.name for path in cache.iterdir()) == ["one-1.jar", "two-2.jar"]
    assert heard == [f"Fetching 2 jars into {cache}", "Fetching one-1.jar (1 of 2)", f"Fetching two-2.jar into {cache}"]
