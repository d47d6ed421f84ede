"""The WebSocket door: connections, their frames, and how fast they may ask."""
