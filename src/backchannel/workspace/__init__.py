"""The workspace: the folder that an agent's tools read, write and run commands in."""
