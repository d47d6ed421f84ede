"""Sandboxes, and the backends that make them."""
