"""Joins table, checkpoint and ledger into answers. Needs no JVM.

May import every room below: `model`, `project`, `ledger`, `tables`, `checkpoints`, `runtime`.
"""
