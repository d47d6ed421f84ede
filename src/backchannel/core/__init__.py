"""Decisions and values: no I/O, no clock, no async."""
