"""Policies: who may see, send, speak, spawn and approve, and within which limits."""
