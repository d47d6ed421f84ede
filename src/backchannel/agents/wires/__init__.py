"""Wires that are spoken without an SDK: OpenAI's two, and Anthropic's.

`frames.py` is what surrounds the messages of a request, as pydantic-ai writes it. The encoders write the messages. The
decoders read the streamed reply. `talking.py` sends and receives.
"""
