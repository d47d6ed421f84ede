"""OpenClaw's published gateway protocol, as far as this gateway's frames are checked against it.

`protocol.json` is cut from `protocol.schema.json` of the npm package `@openclaw/gateway-protocol`, whose licence is
beside it: the names of all methods, and the definitions that `shapes.py` names, unchanged. After a change to either:

    .venv/bin/python -m tests.support.openclaw.cut <protocol.schema.json>

`make interop`, which has the package, checks that the cut is what the package has.
"""
