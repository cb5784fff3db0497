"""Small projects for tests and the demo: quick to start, one file of pipelines."""

from __future__ import annotations

import textwrap
from pathlib import Path

from strandline.project.config import CONFIG_NAME, Project, load_project

FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Short-lived test JVMs spend their time compiling; the first tier is enough for them."""

_CONFIG = """\
version: 1
project: test
profiles:
  local:
    catalog: {{name: {catalog}}}
    spark:
      master: local[2]
      driver_memory: 1g
      conf:
        spark.driver.extraJavaOptions: "{java_options}"
"""


def write_sandbox(folder: Path, pipelines: str = "", catalog: str = "local") -> Project:
    """A minimal project: fast to start, one file of pipelines."""
    (folder / "pipelines").mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(_CONFIG.format(catalog=catalog, java_options=FAST_JVM))
    (folder / "pipelines" / "tested.py").write_text(textwrap.dedent(pipelines))
    return load_project(folder)
