"""Sessions of other programs: what OpenClaw and its older generations write, read as values of ours, and written."""
