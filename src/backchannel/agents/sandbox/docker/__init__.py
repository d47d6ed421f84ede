"""Sandboxes of docker or podman: containers."""
