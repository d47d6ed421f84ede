"""OpenClaw's own clients, unmodified, against this gateway: each row of `rows.py` is tried by tests."""
