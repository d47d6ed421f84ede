"""Flows: the pure steps of exchanges, spawns and barriers."""
