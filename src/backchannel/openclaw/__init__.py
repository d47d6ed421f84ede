"""OpenClaw's files: sessions read and written, and configurations read as ours."""
