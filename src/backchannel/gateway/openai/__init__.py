"""The OpenAI-style door, `/v1`, where an agent looks like a model.

`door.py` has the routes, `chat.py` and `responses.py` the two forms of requests and answers. `reading.py` decides the
effect of each parameter. `following.py` streams a run and shows its end; no automatic retry runs a message twice.
"""
