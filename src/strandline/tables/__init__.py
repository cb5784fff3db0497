"""Reads and changes Iceberg tables: metadata files to look (no JVM), the JVM to change.

May import `model` and `project`.
"""
