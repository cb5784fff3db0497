"""State per key: types, bytes and their evolution, without engine and without files.

Knows nobody but `model`; what ties it to Spark is in `runtime.keyed`.
"""
