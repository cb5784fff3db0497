"""A Kafka broker for development and tests: one node, on loopback, data in a folder of the project.

It outlives the command that starts it. What is known about it is in its folder: ``state.json`` (port, and the process
while one is believed to run), ``bootstrap`` (host:port, only while it is up), ``broker.log``, ``data/``.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.model.errors import EnvironmentProblem, Refused
from strandline.runtime.broker_settings import (
    LOG4J,
    address_taken,
    cluster_id_in,
    new_cluster_id,
    server_properties,
    telling_line,
)
from strandline.runtime.jars import ensure_broker_jars
from strandline.runtime.java import ensure_java
from strandline.runtime.liveness import started_at
from strandline.runtime.ports import LOOPBACK, free_port, is_listening, is_taken

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

DEFAULT_PORT = 9092

READY_WITHIN = 60.0
"""Seconds: twenty times what a start takes on two busy cores."""

STOP_WITHIN = 15.0
"""Seconds from SIGTERM to SIGKILL; a clean stop takes one or two."""

LOCK_WITHIN = READY_WITHIN + STOP_WITHIN
"""Seconds to wait for another command on the same broker: as long as one may take."""

TRIES = 3
"""Starts, when a port that was free a moment ago is not any more."""

_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=log4j2.properties")

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Brokers that this very process started: someone has to collect them when they die."""


@dataclass(frozen=True)
class BrokerStatus:
    running: bool
    pid: int | None
    bootstrap: str | None
    """host:port while it runs."""
    topics: int | None
    """Kafka's own left out; None when nobody answers."""
    data_bytes: int
    folder: Path
    log: Path


@dataclass(frozen=True)
class _State:
    """What `state.json` remembers. A pid alone proves nothing: a later process may have it, so its start time is kept too."""

    port: int | None = None
    pid: int | None = None
    started: str | None = None

    @property
    def lives(self) -> bool:
        return self.pid is not None and started_at(self.pid) == self.started is not None


class Broker:
    """One broker and its folder. Any number of these may name the same folder, in any number of processes."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "broker.log"
        self._properties = dict(properties or {})
        self._say = say

    def up(self, port: int | None = None) -> bool:
        """Start it, or find it running; either way it answers when this returns. True when it was started.

        Without `port` it gets the port it had before, else 9092, else a free one; 0 asks for a free one.
        """
        with self._alone():
            state = self._state()
            if state.lives:
                if port and port != state.port:
                    raise Refused(
                        f"the broker already runs at {LOOPBACK}:{state.port}, not on port {port}", next_command="strandline kafka down"
                    )
                self._await_answer(state, self._log_size())
                self._announce(state)
                return False
            _await_end(state, STOP_WITHIN)
            self._start(port, state.port)
            return True

    def down(self) -> bool:
        """Stop it and wait for its end. True when it was running."""
        if not self.folder.exists():
            return False
        with self._alone():
            return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`, as a crash would: nothing is tidied up."""
        state = self._state()
        if state.lives and state.pid is not None:
            _signal(state.pid, signal.SIGKILL)
            _await_end(state, STOP_WITHIN)

    def status(self) -> BrokerStatus:
        state = self._state()
        lives = state.lives
        answer = self._ask(state, 1.0) if lives else None
        return BrokerStatus(
            running=lives,
            pid=state.pid if lives else None,
            bootstrap=f"{LOOPBACK}:{state.port}" if lives else None,
            topics=None if answer is None else sum(not name.startswith("__") for name in answer.topics),
            data_bytes=_size_of(self.data),
            folder=self.folder,
            log=self.log,
        )

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, wanted: int | None, before: int | None) -> None:
        java = ensure_java(self._say)
        jars = ensure_broker_jars(java, self._say)
        # The broker runs in its own folder: what is relative here would not be there.
        class_path = ":".join(str(jar.absolute()) for jar in jars)
        command = [str(java.executable.absolute()), *_JVM, "-cp", class_path]
        for remaining in reversed(range(TRIES)):
            port = self._choose_port(wanted, before)
            self._write_settings(port)
            self._say(f"Starting a Kafka broker at {LOOPBACK}:{port}")
            self._format(command)
            since = self._log_size()
            state = self._spawn([*command, "kafka.Kafka", "server.properties"], port)
            try:
                self._await_answer(state, since)
            except BaseException as error:  # also Ctrl-C: what did not come up must not stay behind
                self._end(signal.SIGKILL)
                if isinstance(error, EnvironmentProblem) and remaining and address_taken(self._log_from(since)):
                    continue
                raise
            self._announce(state)
            return

    def _choose_port(self, wanted: int | None, before: int | None) -> int:
        if wanted == 0:
            return free_port()
        port = wanted or before or DEFAULT_PORT
        if not is_taken(port):
            return port
        if wanted:
            raise EnvironmentProblem(f"port {port} of {LOOPBACK} is taken by another program", next_command="strandline kafka up")
        free = free_port()
        self._say(f"Port {port} is taken by another program: the broker gets {free}")
        return free

    def _write_settings(self, port: int) -> None:
        (self.folder / "server.properties").write_text(server_properties(port, free_port(), self._properties), encoding="ascii")
        (self.folder / "log4j2.properties").write_text(LOG4J, encoding="ascii")

    def _format(self, command: list[str]) -> None:
        if self._cluster_id() is not None:
            return
        since = self._log_size()
        with self.log.open("ab") as log:
            format_ = [*command, "kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", "server.properties"]
            answer = subprocess.run(format_, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        if answer.returncode != 0 or self._cluster_id() is None:
            raise self._problem("the broker's data folder could not be prepared", since)

    def _spawn(self, command: list[str], port: int) -> _State:
        """In a session of its own: neither Ctrl-C in the shell nor the end of this process reaches it."""
        with self.log.open("ab") as log:
            child = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        _children[child.pid] = child
        state = _State(port, child.pid, started_at(child.pid))
        self._remember(state)
        return state

    def _await_answer(self, state: _State, since: int) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if _is_gone(state) or not state.lives:
                raise self._problem("the broker ended while it started", since)
            # A connection is cheaper to try than a client, which would also back off after each refusal.
            if state.port is not None and is_listening(state.port) and self._ask(state, 1.0):
                return
            time.sleep(0.05)
        raise self._problem(f"the broker did not answer within {READY_WITHIN:.0f} s", since)

    def _ask(self, state: _State, within: float) -> ClusterMetadata | None:
        """What the cluster says about itself; None when nobody answers at our port, or somebody else does."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"{LOOPBACK}:{state.port}",
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
        }
        try:
            answer = AdminClient(settings).list_topics(timeout=within)
        except KafkaException:
            return None
        return answer if answer.brokers and answer.cluster_id == self._cluster_id() else None

    def _cluster_id(self) -> str | None:
        try:
            return cluster_id_in((self.data / "meta.properties").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, how: signal.Signals) -> bool:
        state = self._state()
        lived = state.lives
        if lived and state.pid is not None:
            _signal(state.pid, how)
        if not _await_end(state, STOP_WITHIN) and state.pid is not None:
            _signal(state.pid, signal.SIGKILL)
            _await_end(state, STOP_WITHIN)
        (self.folder / "bootstrap").unlink(missing_ok=True)
        if state.pid is not None:
            self._remember(replace(state, pid=None, started=None))
        return lived

    # -- the folder ----------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One command at a time: two `up` at once start one broker, and the second finds it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise EnvironmentProblem(
                f"the broker's folder {self.folder} cannot be used: {error.strerror}", next_command=f"ls -ld {self.folder}"
            ) from error
        with lock:
            deadline = time.monotonic() + LOCK_WITHIN
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Refused(
                            f"another command has been busy with the broker in {self.folder} for {LOCK_WITHIN:.0f} s",
                            next_command="strandline kafka status",
                        ) from None
                    time.sleep(0.05)
            yield

    def _state(self) -> _State:
        try:
            return _State(**json.loads((self.folder / "state.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):  # never started, or another version's words
            return _State()

    def _remember(self, state: _State) -> None:
        self._write("state.json", json.dumps(asdict(state)) + "\n")

    def _announce(self, state: _State) -> None:
        self._write("bootstrap", f"{LOOPBACK}:{state.port}\n")

    def _write(self, name: str, content: str) -> None:
        temporary = self.folder / f".{name}.{os.getpid()}"
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, self.folder / name)

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _log_from(self, since: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(since if since <= self._log_size() else 0)  # it may have been rolled over meanwhile
            return log.read().decode("utf-8", "replace")

    def _problem(self, what: str, since: int) -> EnvironmentProblem:
        said = telling_line(self._log_from(since))
        return EnvironmentProblem(f"{what}: {said or 'it said nothing'}; its log is {self.log}", next_command=f"tail -50 {self.log}")


def _signal(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise EnvironmentProblem(f"the broker (process {pid}) belongs to another user", next_command=f"ps -p {pid} -o user,args") from error


def _await_end(state: _State, within: float) -> bool:
    deadline = time.monotonic() + within
    while not _is_gone(state):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_gone(state: _State) -> bool:
    """Wholly gone: the last threads of a killed process hold its port and its data for a moment after it counts as dead."""
    if state.pid is None:
        return True
    if child := _children.get(state.pid):
        if child.poll() is None:
            return False
        del _children[state.pid]
        return True
    if (found := started_at(state.pid)) is not None:
        return found != state.started
    try:
        return len(os.listdir(f"/proc/{state.pid}/task")) <= 1  # one: nobody has asked for its exit code yet
    except OSError:
        return True


def _size_of(folder: Path) -> int:
    """Bytes on the disk: Kafka's index files claim 10 MB each and hold almost nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Kafka deletes while we count
            total += path.lstat().st_blocks * 512
    return total
