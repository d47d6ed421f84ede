"""The native methods, by noun."""
