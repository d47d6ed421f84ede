"""The OpenAI-style door, `/v1`: for clients that speak nothing else an agent looks like a model.

`door.py` serves the routes, `chat.py` and `responses.py` are the two forms of a request and its answer, `reading.py`
says what of a request has which effect, and `following.py` streams a run and shows how it ended, in such a way that no
client's automatic repetition runs a message twice.
"""
