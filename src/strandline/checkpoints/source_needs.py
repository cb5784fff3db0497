"""What sources keep in a checkpoint of their own, as far as a restart from a batch needs it.

The file source logs the files of each of its entries: one small file per entry, and every tenth time a ``.compact`` file with all entries
so far. Other sources keep where they began, in a file or two.
"""

from __future__ import annotations

import json

from strandline.checkpoints.batch_files import PlannedBatch
from strandline.checkpoints.needed import FileKind, Look, NeededFile

_COMPACT = ".compact"
_WHY = "log of the file source up to entry {entry}: without it files would be read again"


def source_needs(look: Look, plan: PlannedBatch) -> list[NeededFile]:
    entries = [_log_entry(line) for line in plan.lines]
    folders = sorted(int(name) for name in look.folders("sources") if name.isdigit())
    logs = [folder for folder in folders if _is_log(look, folder, entries)]
    found = []
    for folder in folders:
        if folder in logs:
            found += _log(look, folder, _entry_of(look, folder, logs, entries))
        else:
            found += [look.need(path, FileKind.SOURCE, "where the source began") for path in look.below(f"sources/{folder}")]
    if not logs and any(entry is not None for entry in entries):
        lost = next(number for number, entry in enumerate(entries) if entry is not None)
        found += _log(look, lost, entries[lost] or 0)
    return found


def _log_entry(line: str | None) -> int | None:
    """The log entry of a file source's offset; None for other sources. -1: it was started and found no file yet."""
    try:
        told = json.loads(line or "null")
        return int(told["logOffset"]) if isinstance(told, dict) and "logOffset" in told else None
    except (ValueError, TypeError):
        return None


def _is_log(look: Look, folder: int, entries: list[int | None]) -> bool:
    """Kafka's start has the same name as a first entry; the content tells them apart."""
    names = look.names(f"sources/{folder}")
    if all(entry is None for entry in entries) or not names:
        return False
    if any(name.endswith(_COMPACT) for name in names):
        return True
    oldest = look.read(f"sources/{folder}/{min((name for name in names if name.isdigit()), key=int, default=names[0])}")
    if oldest is not None and b'"path"' in oldest and b'"batchId"' in oldest:
        return True
    return len(names) > 1 or (folder < len(entries) and entries[folder] is not None)


def _entry_of(look: Look, folder: int, logs: list[int], entries: list[int | None]) -> int:
    """How far the log of a source must go.

    Sources are numbered as the plan first names them, and a source that the plan names twice has two lines: so the line of a source is
    at its number or later. Where several lines could be meant, too many entries are harmless (their files are read by the next batch)
    and too few are not.
    """
    possible = sorted({entry for entry in entries[folder:] if entry is not None} or {entry for entry in entries if entry is not None})
    own = entries[folder] if folder < len(entries) else None
    if len(possible) == 1 or (own is not None and len(entries) == logs[-1] + 1):
        return own if own is not None else possible[0]
    newest = max((int(name.removesuffix(_COMPACT)) for name in _log_names(look, folder)), default=-1)
    reached = [entry for entry in possible if entry <= newest]
    return max([*reached[-1:], *([own] if own is not None else [])], default=possible[0])


def _log_names(look: Look, folder: int) -> list[str]:
    return [name for name in look.names(f"sources/{folder}") if name.removesuffix(_COMPACT).isdigit()]


def _log(look: Look, folder: int, entry: int) -> list[NeededFile]:
    """The newest compaction up to the entry and what came after it, as Spark reads it back."""
    names = set(_log_names(look, folder))
    why = _WHY.format(entry=entry)
    compactions = sorted(int(name.removesuffix(_COMPACT)) for name in names if name.endswith(_COMPACT))
    base = max((end for end in compactions if end <= entry), default=-1)
    wanted = [f"{base}{_COMPACT}"] if base >= 0 else []
    singles = [str(number) for number in range(base + 1, entry + 1)]
    later = next((end for end in compactions if end > entry), None)
    if later is not None and not names.issuperset(singles):  # cleaned up: a later compaction holds them all
        wanted, singles = [f"{later}{_COMPACT}"], []
    return [look.need(f"sources/{folder}/{name}", FileKind.SOURCE_LOG, why) for name in (*wanted, *singles)]
