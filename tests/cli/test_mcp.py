"""`backchannel mcp`, started by the official client, as people's clients start it."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import INVALID_PARAMS

from backchannel.cli.finding import NoGateway
from backchannel.cli.mcp_bridge import GatewayTools, http_client
from backchannel.cli.options import Options
from backchannel.tools.registry import SESSION_TOOLS

from .program import PATIENCE_S, PROGRAM, Program

pytestmark = pytest.mark.anyio

MODES = {"2025-11-25": "legacy", "2026-07-28": "auto"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "sessions_list": {"limit": 5},
    "sessions_history": {"sessionKey": "agent:writer:main"},
    "agents_list": {},
    "sessions_search": {"query": "hello"},
    "session_status": {"sessionKey": "agent:writer:main"},
}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}

CALL = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}},
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway with three agents, two of which were spoken to; the third sees none but its own sessions."""
    program = Program(tmp_path_factory.mktemp("running"))
    program.write_config(
        '{ agents: { list: [{ id: "main" }, { id: "writer", tools: { deny: ["agents_list"] } }] },'
        ' tools: { sessions: { visibility: "self" } } }'
    )
    with program.up():
        program.answer("chat", "hello main")
        program.answer("chat", "--session", "agent:writer:main", "hello writer")
        yield program


@asynccontextmanager
async def bridged(program: Program, *words: str, mode: str = "auto", **env: str) -> AsyncIterator[Client]:
    """Let the client start `backchannel mcp`; what that says goes to the file `mcp.err`."""
    started = StdioServerParameters(
        command=PROGRAM[0], args=program.command("mcp", *words)[1:], env=program.env | env, cwd=program.home
    )
    with (program.home / "mcp.err").open("w") as said:
        async with Client(stdio_client(started, errlog=said), mode=mode) as client:
            yield client


@pytest.mark.parametrize("version", MODES)
async def test_the_tools_are_listed_and_called(running: Program, version: str) -> None:
    async with bridged(running, mode=MODES[version]) as client:
        listed = (await client.list_tools()).tools
        results = {name: await client.call_tool(name, given) for name, given in ARGUMENTS.items()}

        assert client.protocol_version == version
    assert [(tool.name, tool.description, tool.input_schema) for tool in listed] == [
        (tool.name, tool.description, tool.schema()) for tool in SESSION_TOOLS
    ]
    assert ARGUMENTS.keys() == {tool.name for tool in SESSION_TOOLS if tool.scope == "read"}
    assert not any(result.is_error for result in results.values())
    rows = results["sessions_list"].structured_content["sessions"]
    assert {row["key"] for row in rows} == {"agent:main:main", "agent:writer:main"}
    assert results["sessions_history"].structured_content["messages"][0]["content"][0]["text"] == "hello writer"
    assert (running.home / "mcp.err").read_text() == ""


async def test_a_bad_call_is_an_error_of_the_tool_as_at_the_gateway_itself(running: Program) -> None:
    async with bridged(running) as client:
        result = await client.call_tool("sessions_list", {"limit": 0})

    assert result.is_error
    error = result.structured_content["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["details"] == {"code": "bad_params", "param": "limit"}


async def test_the_flag_fixes_the_caller(running: Program) -> None:
    async with bridged(running, "--as", "agent:writer:main") as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        listed = await client.call_tool("sessions_list", {})
        unseen = await client.call_tool("sessions_history", {"sessionKey": "agent:main:main"})
        denied = await client.call_tool("agents_list", {})

    assert "agents_list" not in names
    assert listed.structured_content["count"] == 1
    assert unseen.structured_content["status"] == "forbidden"
    assert denied.is_error and denied.structured_content["error"]["details"]["code"] == "forbidden"


async def test_an_agents_token_is_bound_to_its_session(running: Program) -> None:
    token = running.json("tokens", "create", "--session", "agent:writer:main")["token"]
    async with bridged(running, BACKCHANNEL_TOKEN=token) as client:
        listed = await client.call_tool("sessions_list", {})
    other = running.run("mcp", "--as", "agent:main:main", BACKCHANNEL_TOKEN=token)

    assert listed.structured_content["count"] == 1
    assert (other.returncode, other.stdout) == (4, "")
    assert "bound to one session" in other.stderr


def test_a_key_in_any_script_can_be_named(running: Program) -> None:
    running.answer("chat", "--session", "agent:main:käse", "hello")
    done = running.run("mcp", "--as", "agent:main:käse")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_gateway_on_this_machine_is_reached_past_any_proxy(running: Program) -> None:
    done = running.run("mcp", HTTP_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9")

    assert (done.returncode, done.stderr) == (0, "")


# Starting and ending


def test_without_a_gateway_it_says_how_to_start_one(program: Program) -> None:
    done = program.run("mcp")

    assert (done.returncode, done.stdout) == (0, "")
    assert "Start one with: " in done.stderr
    assert done.stderr.endswith("Waiting for it ...\n")


@pytest.mark.parametrize("words", [(), ("--as", "writer")])
async def test_a_gateway_that_is_not_there_yet_is_waited_for(program: Program, words: tuple[str, ...]) -> None:
    program.write_config('{ agents: { list: [{ id: "main" }, { id: "writer" }] } }')
    async with bridged(program, *words, mode="legacy") as client:
        waiting = asyncio.create_task(client.call_tool("agents_list", {}))
        await asyncio.to_thread(wait_said, program, "Waiting for it ...")
        with program.up():
            async with asyncio.timeout(PATIENCE_S):
                result = await waiting

    assert result.structured_content["requester"] == ("writer" if words else "main")
    assert (program.home / "mcp.err").read_text().endswith("It is there.\n")


async def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(running: Program) -> None:
    async with bridged(running) as client:
        with pytest.raises(MCPError, match=r"did you mean sessions_list\?") as caught:
            await client.call_tool("session_list", {})

    assert caught.value.error.code == INVALID_PARAMS


def test_a_wrong_token_is_refused(running: Program) -> None:
    done = running.run("mcp", BACKCHANNEL_TOKEN="wrong")

    assert (done.returncode, done.stdout) == (4, "")
    assert "the token is not valid" in done.stderr


@pytest.mark.parametrize("key", ["agent:main:cron:never", "agent:nobody:main", "agent::"])
def test_nobody_calls_as_a_session_that_is_not_there(running: Program, key: str) -> None:
    done = running.run("mcp", "--as", key)

    assert (done.returncode, done.stdout) == (4, "")
    assert "nobody can call as this session" in done.stderr


async def test_what_answers_elsewhere_is_no_gateway(program: Program) -> None:
    async with stand_in() as other:
        other.answers.put_nowait(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
        done = await asyncio.to_thread(program.run, "--url", other.url, "mcp", BACKCHANNEL_TOKEN="any")

    assert done.returncode == 3
    assert "is no gateway" in done.stderr


def test_an_address_that_is_none_is_told(program: Program) -> None:
    done = program.run("--url", "gopher://127.0.0.1", "mcp", BACKCHANNEL_TOKEN="any")

    assert done.returncode == 3
    assert "is not an address" in done.stderr


def test_nothing_but_messages_is_printed_and_it_ends_with_its_input(running: Program) -> None:
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "agents_list"}},
    ]
    with subprocess.Popen(
        running.command("mcp"), env=running.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"not a message\n" + b"".join(json.dumps(message).encode() + b"\n" for message in asked))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()

        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["requester"] == "main"


@pytest.mark.parametrize("last", ["tools/list", "tools/call"])
def test_what_a_pipe_asked_is_answered_before_the_end(running: Program, last: str) -> None:
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": last, "params": {"name": "agents_list"}},
    ]
    done = running.run("mcp", "--as", "main", text="".join(json.dumps(message) + "\n" for message in asked))
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}

    assert (done.returncode, done.stderr) == (0, "")
    assert answers.keys() == {1, 2, 3}
    assert all("result" in answer for answer in answers.values())


@pytest.mark.parametrize("leaves", ["pipes", "output", "socket"])
async def test_it_ends_quietly_when_its_client_goes_away_during_a_call(program: Program, leaves: str) -> None:
    ours, theirs = socket.socketpair()
    pipe = theirs.fileno() if leaves == "socket" else subprocess.PIPE
    async with stand_in() as gateway:
        gateway.then({"tools": []})
        env = program.env | {"BACKCHANNEL_URL": gateway.url, "BACKCHANNEL_TOKEN": "any"}
        with (
            subprocess.Popen(  # noqa: ASYNC220  # its pipes are closed by hand
                program.command("mcp"), env=env, stdin=pipe, stdout=pipe, stderr=subprocess.PIPE
            ) as process,
            process.stdin or ours.makefile("wb") as to_it,
        ):
            theirs.close()
            to_it.write(b"".join(json.dumps(message).encode() + b"\n" for message in CALL))
            to_it.flush()
            async with asyncio.timeout(PATIENCE_S):
                while len(gateway.asked) < 2:  # noqa: ASYNC110  # it is asked by another process
                    await asyncio.sleep(0.01)
            if process.stdout is not None:
                process.stdout.close()
            if leaves != "output":
                to_it.close()
            ours.close()

            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            assert process.stderr and process.stderr.read() == b""
        gateway.hang_up()


async def test_a_call_that_its_client_cancels_is_not_answered(program: Program) -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
    async with stand_in() as gateway:
        gateway.then({"tools": []})
        env = program.env | {"BACKCHANNEL_URL": gateway.url, "BACKCHANNEL_TOKEN": "any"}
        process = await asyncio.create_subprocess_exec(
            *program.command("mcp"), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin and process.stdout
        process.stdin.writelines(json.dumps(message).encode() + b"\n" for message in CALL)
        async with asyncio.timeout(PATIENCE_S):
            while len(gateway.asked) < 2:  # noqa: ASYNC110  # it is asked by another process
                await asyncio.sleep(0.01)
            process.stdin.write(json.dumps(cancel).encode() + b"\n")
            process.stdin.close()
            answers = (await process.stdout.read()).splitlines()
            assert await process.wait() == 0
        gateway.hang_up()

    assert [json.loads(answer)["id"] for answer in answers] == [1]


def test_ctrl_c_ends_it(running: Program) -> None:
    with running.terminal("mcp") as shown:
        shown.type(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}) + "\n")
        shown.expect('"serverInfo"')
        shown.type("\x03")

        assert shown.wait() == 130


# A gateway that goes away


async def test_a_gateway_that_restarts_is_found_again_even_elsewhere(program: Program) -> None:
    with program.up() as first:
        async with bridged(program) as client:
            await client.call_tool("agents_list", {})
            assert await asyncio.to_thread(first.stop, signal.SIGTERM) == 0
            waiting = asyncio.create_task(client.call_tool("agents_list", {}))
            await asyncio.to_thread(wait_said, program, "The gateway went away.")
            with program.up():
                async with asyncio.timeout(PATIENCE_S):
                    result = await waiting
                again = await client.call_tool("sessions_list", {})

    assert result.structured_content["requester"] == "main"
    assert not again.is_error
    assert "It is back." in (program.home / "mcp.err").read_text()


def wait_said(program: Program, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in (program.home / "mcp.err").read_text():
        assert time.monotonic() < deadline, f"{text!r} was not said"
        select.select([], [], [], 0.02)


class StandIn:
    """Something at an address, which answers each request with the next of `answers`; an empty one hangs up."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def then(self, result: dict[str, Any]) -> None:
        event = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        self.answers.put_nowait(head + b": a sign of life\n\ndata: " + event + b"\n\n")

    def hang_up(self) -> None:
        self.answers.put_nowait(b"")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split()[0])
        self.asked.append(json.loads(await reader.readexactly(length)))
        writer.write(await self.answers.get())
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    made = StandIn()
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


@asynccontextmanager
async def tools_at(url: str, state: Path, patience_s: float = PATIENCE_S) -> AsyncIterator[GatewayTools]:
    async with http_client() as http:
        yield GatewayTools(Options(state=state, url=url), None, http, patience_s)


async def test_a_call_that_is_broken_off_is_put_again_as_the_same_call(tmp_path: Path) -> None:
    async with stand_in() as gateway, tools_at(gateway.url, tmp_path) as tools:
        gateway.hang_up()
        gateway.then({"structuredContent": {"status": "ok"}})
        gateway.then({"structuredContent": {"status": "ok"}})
        assert await tools.call("any", {}, None) == {"status": "ok"}
        await tools.call("any", {}, "a key of the client's own")

    keys = [asked["params"]["_meta"]["backchannel/idempotencyKey"] for asked in gateway.asked]
    assert keys[0] == keys[1] != keys[2] == "a key of the client's own"


async def test_a_gateway_that_stays_away_is_told_in_the_end(tmp_path: Path) -> None:
    async with stand_in() as gateway:
        pass
    async with tools_at(gateway.url, tmp_path, patience_s=0) as tools:
        with pytest.raises(NoGateway, match="No gateway answers at"):
            await tools.call("any", {}, None)


async def test_a_call_that_takes_long_reports_progress(program: Program) -> None:
    reports: list[str | None] = []

    async with stand_in() as gateway:

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            reports.append(message)
            gateway.then({"structuredContent": {"status": "ok"}})

        for _ in ("asked at the start", "asked by the client"):
            gateway.then({"tools": [{"name": "slow", "inputSchema": {"type": "object"}}]})
        async with bridged(program, BACKCHANNEL_URL=gateway.url, BACKCHANNEL_TOKEN="any") as client:
            await client.list_tools()
            async with asyncio.timeout(PATIENCE_S):
                result = await client.call_tool("slow", {}, progress_callback=heard)

    assert result.structured_content == {"status": "ok"}
    assert reports[0] == "slow has taken 1 s so far"
