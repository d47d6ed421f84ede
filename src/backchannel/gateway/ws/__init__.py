"""The WebSocket door: connections, frames, throttling."""
