"""Chat commands: their words, their answers, and control words."""
