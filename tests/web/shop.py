"""The scripted models of a small bicycle shop, for a gateway that looks used.

A line of the script is found by the words of the message that it answers; how many tools have answered since says which
of its steps comes next.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.support.stub_provider import Answer, Asked, Call, Fault, Hang, Told

AGENTS = {
    "main": "Front desk of Harbour Cycles, a bicycle shop.",
    "researcher": "Finds out what things cost and where they come from.",
    "writer": "Writes what customers read.",
}
MORNING = """Good morning. Overnight:

| | what | state |
|---|---|---|
| **3** | orders from the web shop | packed, labels printed |
| **1** | return (brake pads, wrong size) | waits for you |
| **2** | rims left | 20 more come **Thursday** |

The return is from *Lina Okafor*; she would rather have the larger pads than the money. Shall I answer her?

```text
HC-2038  chain 11-speed   1   31.50
HC-2039  rim 28″          2  108.00
HC-2040  lights, set      1   44.90
```
"""
PRICES = """I compared three suppliers for **28″ rims**:

1. *Nordrad*: 38.20 from 20 pieces, three days
2. *Velo Parts*: 36.90, but eleven days
3. *Rijwiel BV*: 41.00, next day

For Thursday only Nordrad works. At 54.00 in the shop the margin is 29 %."""

RIMS_LEFT = "Two are left, Marek. 20 more are on order and should be here on **Thursday**."
LOW = "Low: rims 28″ (2, 20 on order), brake pads B01S (0, **none on order**)."
RESULTS = """Two of the three are done:

- **Returns**: nine of 14 were brake pads in the wrong size. I would put the size chart above the button.
- **Manual**: translated; two drawings still have German labels.

The parcel is still lost: the helper failed. Shall I try again?"""


def use(tool: str, **arguments: object) -> Call:
    return Call(tool, arguments)


def says(text: str | tuple[str, ...] = "", *calls: Call, thinking: str = "", cost: int = 1) -> Answer:
    """Make a reply; `cost` makes it a larger one."""
    return Answer(
        text=_streamed(text) if isinstance(text, str) else text,
        calls=calls,
        thinking=thinking,
        input_tokens=1_400 * cost,
        output_tokens=max(24, sum(map(len, text)) // 4),
    )


def _streamed(text: str) -> tuple[str, ...]:
    first, *others = text.split(" ")
    return (first, *(f" {word}" for word in others)) if text else ()


RIMS = "28-inch rims"
SCRIPT: list[tuple[tuple[str, ...], list[Told]]] = [
    # Steps of flows come first: they quote what was said before.
    (("announce step", RIMS), [says("Rims: 20 are ordered from Nordrad at 38.20; they are here on Thursday.")]),
    (("turn 1", RIMS), [says("Eleven days is too long for us. Is Nordrad reliable about its three?")]),
    (("turn 2", RIMS), [says("Their last five orders took two, three, three, two and three days.")]),
    (("turn 3", RIMS), [says("Good, then Nordrad it is: please order 20 in our name.")]),
    (
        ("turn 4", RIMS),
        [says("", use("place_order", item="rim-28", count=20)), says("Ordered: HC-2041, for Thursday.")],
    ),
    (("turn 5", RIMS), [says("REPLY_SKIP")]),
    (("announce step", "returns"), [says("Of 14 returns in October, 9 were brake pads in the wrong size.")]),
    (("announce step", "Polish"), [says("The manual is translated; two drawings still have German labels.")]),
    (("announce step",), [says("ANNOUNCE_SKIP")]),
    # People
    (
        ("came in overnight",),
        [
            says("", use("stock", item="rim-28"), use("stock", item="pads-b01s"), thinking="What is low comes first."),
            says(MORNING, cost=2),
        ],
    ),
    (("answer her",), [says("I wrote to her: the larger pads go out today, and the return label is in the mail.")]),
    (("rims do we have",), [says("", use("stock", item="rim-28")), says(RIMS_LEFT)]),
    (("hold one",), [says("Done: one of the two is under Marek's name at the counter, until Friday.")]),
    (("have they found",), [says(RESULTS, cost=2)]),
    (("From today",), [says("Hello, everyone. Ask me about prices, delivery times and who has what.")]),
    (
        ("spring price list",),
        [
            says("I start with what we have.", use("stock", item="chain-11s"), use("stock", item="rim-28"), cost=2),
            says("Now the dealer prices.", use("read_page", url="https://dealers.example/spring"), cost=3),
            says("The price list is ready: 214 items, 31 prices changed, most of all **rims, +4 %**.", cost=4),
        ],
    ),
    (
        ("ask the researcher",),
        [
            says(
                "",
                use(
                    "sessions_send",
                    sessionKey="agent:researcher:slack:group:suppliers",
                    message=f"What do {RIMS} cost with our suppliers, and who can deliver by Thursday?",
                    timeoutSeconds=60,
                ),
            ),
            says("Nordrad can: 38.20 a piece from 20 on, here on Thursday."),
        ],
    ),
    ((RIMS,), [says("", use("read_page", url="https://nordrad.example/rims")), says(PRICES, cost=3)]),
    (
        ("Three things",),
        [
            says(
                "I start three helpers.",
                use("sessions_spawn", task="Say what the returns of October have in common", label="returns"),
                use("sessions_spawn", task="Translate the manual of the cargo bike to Polish", label="manual-pl"),
                use("sessions_spawn", task="Ask the carrier about the lost parcel", label="parcel"),
            ),
            says("All three are at work. I tell you when they are done."),
        ],
    ),
    (("returns of October",), [says("", use("stock", item="pads-b01s")), says("14 returns, 9 of them pads.", cost=2)]),
    (("manual of the cargo bike",), [says("Translated: 38 pages.", cost=9)]),
    (("lost parcel",), [Fault(400, "the model is overloaded, and gave up")]),
    (
        ("newsletter",),
        [says("Draft of the newsletter: *Winter tyres are in*, and the workshop has free days.", cost=2)],
    ),
    (("stock report",), [says("", use("stock", item="rim-28"), use("stock", item="pads-b01s")), says(LOW)]),
]


class Models:
    """Answer as the script says, and take as long as models do, or no time at all."""

    def __init__(self, *, pace: float = 0) -> None:
        self._pace = pace
        self.are_gone = False
        """They do not answer any more once they have used their tools."""

    def __call__(self, asked: Asked) -> Told:
        if self.are_gone and asked.messages[-1]["role"] == "tool":
            return Hang()
        told = answer(asked)
        if not self._pace or not isinstance(told, Answer):
            return told
        gate = asyncio.Event()
        took_s = (0.3 + 0.01 * sum(map(len, told.texts)) + 0.2 * len(told.calls)) * self._pace
        asyncio.get_running_loop().call_later(min(took_s, 3 * self._pace), gate.set)
        return replace(told, gate=gate, held_at=0)


def answer(asked: Asked) -> Told:
    """Say what the script says to this."""
    messages = asked.messages
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    text = _text(messages[last]["content"])
    step = sum(1 for message in messages[last:] if message["role"] == "assistant")
    for words, steps in SCRIPT:
        if all(word in text for word in words):
            return steps[min(step, len(steps) - 1)]
    return says("I have no answer to that.")


def _text(content: object) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)  # type: ignore[attr-defined]
