"""Tests of checkpoints; they share how damaged files are made."""
