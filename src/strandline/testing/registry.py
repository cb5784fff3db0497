"""A real schema registry for tests: Apicurio Registry, whose Confluent-compatible interface runs as a local process.

Confluent's own server is not on Maven Central; Apicurio's is, and it speaks the same REST interface (v7) with the same
error codes. The archive (142 MB) is fetched once into Strandline's cache and checked by its hash. Schemas are kept in
a file, so a registry that was stopped knows them when it is started again, on the same port.

Apicurio does passwords only with an identity provider. With `user` and `password` a small HTTP server stands in front
of it, lets in who knows them and answers everybody else as Confluent's server does.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from strandline.model.errors import EnvironmentProblem
from strandline.runtime.jars import Jar, ensure_archive
from strandline.runtime.java import ensure_java
from strandline.runtime.places import cache_folder

SERVER = Jar(
    "io.apicurio",
    "apicurio-registry-app",
    "2.6.13.Final",
    "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba",
    classifier="all",
    ext="tar.gz",
)
PATH = "/apis/ccompat/v7"
START_SECONDS = 60.0
"""It takes three; a busy machine with a cold disk may need ten times that."""
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Small, and compiled only as far as a process of a few seconds gains from it."""


class RegistryServer:
    """One registry, as a context manager: started on entry, stopped on exit; in between as often as a test likes."""

    def __init__(self, folder: Path, *, user: str | None = None, password: str | None = None) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._gate = _Gate(self._port, f"{user}:{password or ''}") if user else None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._gate.port if self._gate else self._port}{PATH}"

    def start(self) -> None:
        """Returns when it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "registry.log"
        program = _installed() / f"apicurio-registry-app-{SERVER.version}-runner.jar"
        command: list[str | Path] = [ensure_java(print).executable, *_JVM]
        command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}", "-jar", program]
        environment = {**os.environ, "REGISTRY_DATASOURCE_URL": f"jdbc:h2:file:{self._folder.resolve()}/schemas"}
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._folder)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EnvironmentProblem(f"the registry for tests did not start; its log is {log}", next_command=f"tail -20 {log}")
            time.sleep(0.1)
        if self._gate:
            self._gate.open()

    def stop(self) -> None:
        if self._gate:
            self._gate.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def register(self, topic: str, schema: Mapping[str, Any] | list[Any] | str) -> int:
        """Make this the newest schema of the topic's values, as a producer does; returns its id."""
        return self.register_subject(f"{topic}-value", json.dumps(schema))

    def register_subject(self, subject: str, text: str, *, kind: str = "AVRO", references: list[Mapping[str, Any]] | None = None) -> int:
        body = json.dumps({"schema": text, "schemaType": kind, "references": references or []}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self._behind}/subjects/{subject}/versions", body, headers)
        with _direct.open(request, timeout=10) as answer:
            return int(json.load(answer)["id"])

    @property
    def _behind(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    def _answers(self) -> bool:
        try:
            with _direct.open(f"{self._behind}/subjects", timeout=2):
                return True
        except OSError:
            return False

    def __enter__(self) -> RegistryServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment has no business between a test and its own registry."""


class _Gate:
    """Basic authentication in front of a server that has none."""

    def __init__(self, behind: int, credentials: str) -> None:
        self.port = _free_port()
        self._server: ThreadingHTTPServer | None = None
        expected = "Basic " + base64.b64encode(credentials.encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Authorization") != expected:
                    self.reply(401, b'{"error_code":401,"message":"Unauthorized"}')
                    return
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", behind, timeout=10)) as connection:
                    kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                    connection.request(self.command, self.path, content or None, kind)
                    response = connection.getresponse()
                    self.reply(response.status, response.read())

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the standard library's names

            def reply(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests are quiet."""

        self._handler = Handler

    def open(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _installed() -> Path:
    """The unpacked server in the cache; fetched when it is not there yet."""
    home = cache_folder() / f"apicurio-registry-{SERVER.version}"
    if home.is_dir():
        return home
    archive = ensure_archive(SERVER, ensure_java(print), print, again="pytest")
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        with tarfile.open(archive) as content:
            content.extractall(Path(folder) / "server", filter="data")
        with contextlib.suppress(OSError):  # another test run was faster
            os.rename(Path(folder) / "server", home)
    archive.unlink(missing_ok=True)
    return home


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
