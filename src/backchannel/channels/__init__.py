"""Channels: chat platforms, their inbound messages and files, and their life."""
