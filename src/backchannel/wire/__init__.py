"""The native protocol: frames, parameters, rows, answers and events."""
