"""MCP servers whose tools agents have: `servers.py` is the way in."""
