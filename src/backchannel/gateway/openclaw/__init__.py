"""OpenClaw's dialect: its further methods, its words, and their translation."""
