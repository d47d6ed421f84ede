"""Agents: models, tools, function agents, programs and sandboxes."""
