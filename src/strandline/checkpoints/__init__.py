"""Reads Spark's checkpoint files without Spark. Changes nothing, except a new checkpoint's identity.

May import `model` and `project`.
"""
