"""Chat commands: their names, their answers, and control words."""
