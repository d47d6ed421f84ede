"""The workspace: the folder in which an agent's tools read, write and run commands."""
