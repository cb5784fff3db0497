"""A user's project folder: its configuration, its pipelines, its template.

May import `model` only.
"""
