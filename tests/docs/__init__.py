"""Tests that follow the documentation, word for word."""
