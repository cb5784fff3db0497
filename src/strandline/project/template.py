"""What ``strandline init`` writes: a project small enough to read in a minute, and real enough to run."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from strandline.model.errors import UsageError

FILES = {
    "strandline.yaml": "strandline.yaml",
    "pipelines/order_totals.py": "order_totals.py.txt",
    "data/orders/orders-001.jsonl": "orders-001.jsonl",
    "data/orders/orders-002.jsonl": "orders-002.jsonl",
    ".gitignore": "gitignore.txt",
}


def write_project(folder: Path) -> list[Path]:
    """Write the example project; an existing file is never overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", next_command="strandline init another-folder") from error
    taken = [name for name in FILES if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder} already holds {', '.join(taken)}; nothing was written", next_command="strandline init another-folder")
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in folder.resolve().name)
    name = name if name[:1].isalpha() else f"project-{name}"
    written = []
    for target, template in FILES.items():
        text = resources.files("strandline.project").joinpath("example", template).read_text(encoding="utf-8")
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("PROJECT_NAME", name), encoding="utf-8")
        written.append(path)
    return written
