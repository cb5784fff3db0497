"""Tests that start real processes and kill them."""
