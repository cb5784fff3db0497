"""Why the bytes of a checkpoint file cannot be understood. Reasons for whoever reads the file, not yet errors for the user."""

from __future__ import annotations


class Unreadable(ValueError):
    """It is damaged; the message says how, as a clause: ``it ends in the middle of a block``."""


class Truncated(Unreadable):
    """It ends too early. Of a file's first bytes alone that means: read on."""


class NotKnown(Unreadable):
    """It is in a format that only Spark reads: neither good nor damaged."""
