"""OpenClaw and its older generations: their sessions read and written, and their configurations read as ours."""
