"""Triggers: cron jobs, hooks and nodes, which start runs without a chat."""
