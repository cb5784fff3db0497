"""What a run tells whoever watches it; the CLI draws it, tests collect it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strandline.runtime.protocol import BatchResult


@dataclass(frozen=True)
class Progress:
    """The moment after a batch."""

    result: BatchResult
    rows_per_second: float
    offsets: str
    lag: str | None
    state_rows: int | None
    """Rows in the state of Spark's own operators."""
    keys: int | None = None
    """Keys with state in keyed operators."""

    def line(self) -> str:
        snapshot = next(iter(self.result.snapshots.values()), None)
        parts = [
            f"batch {self.result.batch}",
            f"{self.result.rows} rows",
            f"{self.rows_per_second:.0f} rows/s",
            self.offsets,
            f"lag {self.lag}" if self.lag is not None else "",
            f"state {self.state_rows} rows" if self.state_rows else "",
            f"{self.keys} keys" if self.keys else "",
            f"late {self.result.late}" if self.result.late else "",
            *(f"{rows} to {topic}" for topic, rows in self.result.delivered.items()),
            f"snapshot {snapshot}" if snapshot is not None else ("" if self.result.delivered else "no new rows"),
            "replayed" if self.result.replayed else "",
        ]
        return " · ".join(part for part in parts if part)


class Reporter(Protocol):
    def say(self, text: str) -> None:
        """A sentence about the run: set-up, takeover, a request that arrived."""
        ...

    def progress(self, progress: Progress) -> None:
        """A batch has returned."""
        ...
