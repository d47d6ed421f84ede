"""Policies: permissions to see, send, speak, spawn and approve, and their limits."""
