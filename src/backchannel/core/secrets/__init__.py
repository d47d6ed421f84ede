"""Secrets: tokens, devices, and redaction of logs and output."""
