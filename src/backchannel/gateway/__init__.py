"""The gateway: its doors, their methods and events."""
