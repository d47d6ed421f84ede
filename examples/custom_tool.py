"""A tool of your own: what the model is told of it, how it is called, and what a wrong call gives.
A scripted model stands in for a real one and calls the tool, first with a wrong argument.

Prints:

    The model is told: weather(city: string) - Tell the temperature in a city.
    The tool answers an error: the arguments do not fit: Expected `str`, got `int` - at `$.city`
    The tool answers: {"city":"Oslo","celsius":3}
    The reply: Take a coat, it is 3 degrees in Oslo.
"""

import asyncio

from backchannel import Gateway, ScriptedModel
from backchannel.agents.scripted import call


async def main() -> None:
    gateway = Gateway.open({"agents": {"list": [{"id": "main", "model": "scripted/weather"}]}})

    # It only looks something up, so after a crash it may run again; what posts or pays is effects="outside".
    @gateway.tool(effects="none")
    async def weather(city: str) -> dict[str, object]:
        """Tell the temperature in a city."""
        return {"city": city, "celsius": 3}

    model = ScriptedModel(
        "scripted/weather",
        replies=[
            [call("weather", city=7)],
            [call("weather", city="Oslo")],
            "Take a coat, it is 3 degrees in Oslo.",
        ],
    )
    gateway.add_model(model)

    async with gateway:
        reply = await gateway.ask("main", "What is the weather in Oslo?")

    tool = next(tool for tool in model.requests[0].tools if tool.name == "weather")
    parameters = ", ".join(f"{name}: {what['type']}" for name, what in tool.parameters["properties"].items())
    print(f"The model is told: {tool.name}({parameters}) - {tool.description}")
    for request in model.requests[1:]:  # each asks the model to go on after a result
        result = request.messages[-1]
        print(f"The tool answers{' an error' if result.is_error else ''}: {result.text}")
    print("The reply:", reply)


asyncio.run(main())
