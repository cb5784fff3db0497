"""Tests of keyed state; they share their strategies."""
