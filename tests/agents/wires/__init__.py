"""Tests of the wires that are spoken without an SDK."""
