"""The Spark session of a run: every setting that correctness or quiet depends on, with its reason."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.model.errors import EnvironmentProblem
from strandline.model.times import parse_duration
from strandline.project.config import Project, SecretRef
from strandline.runtime.jars import ensure_jars
from strandline.runtime.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}}{{UTC}} %p %c{{1}}: %m%n%ex
# The state server warns once per key that has no state yet.
logger.state.name = org.apache.spark.sql.execution.streaming.state
logger.state.level = error
# foreachBatch hands us an ordinary batch; Spark then warns about every streaming-only option it ignores.
logger.resolve.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.resolve.level = error
"""


_LOCAL_CHECKPOINTS = {
    # Spark's default asks Hadoop's FileContext, which starts a `readlink` process for every look at a local file: some 60 per batch.
    # This one makes files visible by the same check and rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def catalog_settings(project: Project) -> dict[str, str]:
    """The embedded catalog as Iceberg's JdbcCatalog sees it.

    WAL + busy timeout let readers and writers wait for each other; IMMEDIATE takes the write lock before the
    compare of compare-and-set, so two commits queue up instead of failing half-way.
    """
    config = project.profile.catalog
    patience = int(parse_duration(config.busy_timeout).total_seconds() * 1000)
    prefix = f"spark.sql.catalog.{config.name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{prefix}.uri": f"jdbc:sqlite:file:{project.catalog_file}?journal_mode=WAL&busy_timeout={patience}&transaction_mode=IMMEDIATE",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": project.warehouse if "://" in project.warehouse else f"file:{project.warehouse}",
        f"{prefix}.cache-enabled": "false",  # another process may commit; a cached table would hide it
    }


ENGINE_SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Format 2 names the exact state files of each batch: the anchor between checkpoint and snapshot.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without a UI nobody reads the plan texts that Spark writes for every execution, twice per batch here.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "2000",
    # A missing or broken file must stop the run, never shrink the table.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}


def start_session(project: Project, name: str, log_file: Path, say: Callable[[str], None]) -> SparkSession:
    """Start (or join, inside one process) the Spark session for a project; Spark's own log goes to a file."""
    java = ensure_java(say)
    jars = ensure_jars(java, say)
    _prepare_folders(project, log_file)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # else workers may use another Python
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="pyspark")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    log4j = log_file.with_suffix(".log4j2.properties")
    log4j.write_text(_LOG4J.format(file=log_file))
    spark_config = project.profile.spark
    local = spark_config.master.startswith("local")
    settings = {
        **ENGINE_SETTINGS,
        **catalog_settings(project),
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": spark_config.driver_memory,
        "spark.sql.warehouse.dir": str(project.root / ".strandline" / "spark-warehouse"),
        **({} if "://" in project.checkpoints else _LOCAL_CHECKPOINTS),
        **({"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"} if local else {}),
        **({"spark.sql.shuffle.partitions": str(_local_cores(spark_config.master))} if local else {}),
        **{k: v.resolve() if isinstance(v, SecretRef) else _plain(v) for k, v in spark_config.conf.items()},
    }
    own_options = f"-Dlog4j2.configurationFile=file:{log4j} -Duser.timezone=UTC"
    settings[_JAVA_OPTIONS] = f"{own_options} {settings.get(_JAVA_OPTIONS, '')}".strip()
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(f"strandline:{name}").master(spark_config.master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _stderr_into(log_file):
            spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"Spark did not start: {error}; its log is {log_file}", next_command="strandline doctor") from error
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    return spark


class EarlySession:
    """Spark for what must be known before a run is begun; whoever runs afterwards goes on in it."""

    def __init__(self, project: Project, name: str, say: Callable[[str], None]) -> None:
        self._project, self._name, self._say = project, name, say
        self.started: SparkSession | None = None

    def __enter__(self) -> EarlySession:
        return self

    def __exit__(self, *_: object) -> None:
        if self.started is not None:
            self.started.stop()

    def session(self) -> SparkSession:
        if self.started is None:
            log_file = self._project.logs / f"{self._name}-restore.log"
            self._say(f"starting Spark, log in {log_file}")
            self.started = start_session(self._project, self._name, log_file, self._say)
        return self.started


def _prepare_folders(project: Project, log_file: Path) -> None:
    for folder in (log_file.parent, project.catalog_file.parent, *_local_folders(project)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"folder {folder} cannot be made: {error.strerror}", next_command="strandline doctor") from error
        if not os.access(folder, os.W_OK):
            raise EnvironmentProblem(f"folder {folder} is not writable", next_command=f"chmod u+w {folder}")


def _local_folders(project: Project) -> list[Path]:
    return [Path(location) for location in (project.warehouse, project.checkpoints) if "://" not in location]


def _local_cores(master: str) -> int:
    """Shuffle partitions of a local run: one per core. State is kept per partition, and Spark's default of 200 means
    200 state stores opened per batch on a laptop. The number is fixed in the checkpoint with the first batch."""
    inside = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(inside) if inside.isdigit() else (os.cpu_count() or 2 if inside == "*" else 1)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _stderr_into(log_file: Path) -> Iterator[None]:
    """The JVM inherits our stderr when it starts: its banner, and later its workers' noise, belong in the log."""
    saved = os.dup(2)
    sink = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
