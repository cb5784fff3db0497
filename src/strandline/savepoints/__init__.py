"""Savepoints: evidence of one batch that a pipeline can go on from. Taking, checking, restoring, disposing."""
