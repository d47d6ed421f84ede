"""Secrets: tokens, devices, and what is hidden from logs and output."""
