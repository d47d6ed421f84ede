"""The MCP door: the route (`door.py`), the transport (`http.py`), the tools (`server.py`)."""
