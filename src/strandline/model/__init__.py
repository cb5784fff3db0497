"""The words of the domain as plain values: no engine, no I/O.

Imported by every other room; imports none of them.
"""
