"""An agent with a folder of its own: it writes a program, runs it, corrects it and runs it again.
A scripted model stands in for a real one; `sandbox: {mode: "all"}` would run the commands in a sandbox.

Prints:

    write: wrote sum.sh: 14 bytes
    exec: 5 [exit code 0, … s]
    edit: edited sum.sh at line 1
    exec: 4 [exit code 0, … s]
    read outside: path: '../token' leads out of the workspace; paths are relative to it
    The reply: Two and two are 4.
"""

import asyncio

from backchannel import Gateway, ScriptedModel
from backchannel.agents.scripted import call

CONFIG = {
    "agents": {"list": [{"id": "main", "model": "scripted/clerk"}]},
    "tools": {"allow": ["group:fs", "group:exec"]},  # none of them is on unless it is named
}


async def main() -> None:
    model = ScriptedModel(
        "scripted/clerk",
        replies=[
            [call("write", path="sum.sh", content="echo $((2+3))\n")],
            [call("exec", command="sh sum.sh", timeoutSeconds=10)],
            [call("edit", path="sum.sh", oldText="2+3", newText="2+2")],
            [call("exec", command="sh sum.sh", timeoutSeconds=10)],
            [call("read", path="../token")],
            "Two and two are 4.",
        ],
    )
    gateway = Gateway.open(CONFIG)
    gateway.add_model(model)
    async with gateway:
        reply = await gateway.ask("main", "What are two and two?")

    for request in model.requests[1:]:  # each asks the model to go on after a result
        result = request.messages[-1]
        said = " ".join(result.text.split())
        print(f"{result.tool_name}{' outside' if result.is_error else ''}: {said}")
    print("The reply:", reply)


asyncio.run(main())
