"""The OpenAI-style door, `/v1`: for clients that speak nothing else an agent looks like a model.

`door.py` serves the routes, `chat.py` and `responses.py` are the two forms of a request and its answer, `parameters.py`
says what has which effect, `conversation.py` what of a client's history is new, `following.py` streams a run, and
`errors.py` shows what went wrong, so that no client's automatic repetition runs a message twice.
"""
