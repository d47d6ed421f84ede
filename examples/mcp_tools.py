"""An MCP server as a tool of an agent: this program is the server too, started by the gateway when a run needs it.
A scripted model stands in for a real one and calls the tool.

Prints:

    The model is told: clock__later - Tell the time so many minutes after another, as HH:MM.
    The tool answers: 10:15
    The reply: The train leaves at 10:15.
"""

import asyncio
import sys

from backchannel import Gateway, ScriptedModel
from backchannel.agents.scripted import call


async def main() -> None:
    config = {
        "mcp": {
            "servers": {"clock": {"command": sys.executable, "args": [__file__, "serve"], "effects": {"later": "none"}}}
        },
        "agents": {"list": [{"id": "main", "model": "scripted/time", "tools": {"allow": ["group:mcp:clock"]}}]},
    }
    gateway = Gateway.open(config)
    model = ScriptedModel(
        "scripted/time", replies=[[call("clock__later", time="09:50", minutes=25)], "The train leaves at 10:15."]
    )
    gateway.add_model(model)

    async with gateway:
        reply = await gateway.ask("main", "It is 09:50, and the train leaves in 25 minutes. When is that?")

    tool = model.requests[0].tools[0]
    print(f"The model is told: {tool.name} - {tool.description}")
    print("The tool answers:", model.requests[1].messages[-1].text)
    print("The reply:", reply)


def serve() -> None:
    from mcp.server import MCPServer

    server = MCPServer("clock")

    @server.tool()
    def later(time: str, minutes: int) -> str:
        """Tell the time so many minutes after another, as HH:MM."""
        hour, minute = map(int, time.split(":"))
        hours, minute = divmod(hour * 60 + minute + minutes, 60)
        return f"{hours % 24:02}:{minute:02}"

    server.run()


serve() if "serve" in sys.argv else asyncio.run(main())
