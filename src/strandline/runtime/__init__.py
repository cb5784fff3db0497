"""Runs pipelines: Java and jars, the Spark session, sources, the commit protocol, the running attempt.

May import `model`, `project`, `ledger`, `tables` and `checkpoints`.
"""
