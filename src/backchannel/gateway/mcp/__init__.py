"""The MCP door, `/mcp`: `door.py` is the route, `http.py` the transport, `server.py` the tools for one caller."""
