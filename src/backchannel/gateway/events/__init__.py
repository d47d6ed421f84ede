"""Events for clients: who is told of what, and in which order."""
