"""Compaction: the older part of a transcript as a summary.

`telling.py` writes the covered messages as text for a model. `prompting.py` asks for the summary. `entry.py` writes the
entry of the transcript: the summary, people's last words, and what is open. `core/cut.py` decides where the view begins
then. Everything is about one session.
"""
