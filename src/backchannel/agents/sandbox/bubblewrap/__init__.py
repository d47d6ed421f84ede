"""Sandboxes of bubblewrap: Linux namespaces, without root."""
