"""MCP servers as tools of agents: real programs, good and bad, under a gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.mcp import keeping
from backchannel.core.messages import ImageBlock
from backchannel.core.supervision import Backoff
from backchannel.gateway.condition import examine
from tests.support.loop_time import loop_time
from tests.support.mcp_caller import SERVER, calling, server, until
from tests.support.mcp_web import McpAddress, served
from tests.support.processes import Watched, all_ended

pytestmark = pytest.mark.anyio
MAIN = "agent:main:main"


async def test_a_tool_of_a_server_is_named_after_both_and_called(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server({"page": 3})}) as at:
        assert {"far__echo", "far__post", "far__blocks"} <= await at.names()
        told = await at.call("far__echo", text="hello")

    assert told.text == "echo: hello" and not told.is_error


async def test_a_server_is_started_for_an_agent_that_may_name_its_tools_and_only_then(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    env = {"MCP_DIARY": str(diary)}
    async with calling(tmp_path, {"far": server(env=env)}, ["group:mcp:near", "farther__*", "nothing"]) as at:
        assert await at.names() == set()
        assert not diary.exists()
    async with calling(tmp_path, {"far": server(env=env)}, ["far__e*"]) as at:
        assert await at.names() == {"far__echo", "far__endless"}
        await at.names()
    assert diary.read_text().count("started") == 1


async def test_each_kind_of_block_becomes_what_a_model_can_be_shown(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__blocks")
        structured = await at.call("far__structured")
        failed = await at.call("far__fail", text="why")
        refused = await at.call("far__refuse")

    assert [block for block in told.content if isinstance(block, ImageBlock)] == [
        ImageBlock(mime_type="image/png", data=told.content[1].data)  # type: ignore[union-attr]
    ]
    assert told.text.split("\n") == [
        "some text",
        "(an image that is no PNG, JPEG, GIF or WebP, as image/png: it is not kept)",
        "(audio, 28 bytes of audio/wav: it is not kept)",
        "(a link to a.txt, file:///a.txt: a file)",
        "file:///b.txt:",
        "what is in b",
        "(the resource file:///c.bin, 28 bytes of application/x-c: it is not kept)",
        "(a block that cannot be read, of type hologram)",
        "(a block that cannot be read)",
    ]
    assert structured.text == '{"degrees":21}'
    assert (failed.text, failed.is_error) == ("fail: why", True)
    assert (refused.text, refused.is_error) == ("no such thing", True)


async def test_what_is_too_long_is_cut_in_the_middle(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__big")
        many = await at.call("far__many")

    assert len(told.text) < 110_000
    assert told.text.startswith("aaa") and told.text.endswith("bbb") and "MIDDLE" not in told.text
    assert "[… 9,900,006 characters of 10,000,006 are left out here …]" in told.text
    assert "(19,500 more blocks are left out)" in many.text


async def test_control_characters_of_a_result_do_not_reach_a_model(tmp_path: Path) -> None:
    text = r"a\u001b[31mred\u001b]0;title\u0007 \u202eback\u009b1m\u0000 \udb40\udc41hidden 10%\r20%\r\n\tend\u200d"
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__raw", start='{"content":[{"type":"text","text":"', unit=text, count=1, end='"}]}')

    assert told.text == "ared back hidden 10%\n20%\r\n\tend\u200d"


async def test_of_many_or_large_images_so_much_is_kept(tmp_path: Path) -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 3_000_000).decode()
    image = f'{{"type":"image","mimeType":"image/png","data":"{png}"}},'
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__raw", start='{"content":[', unit=image, count=3, end='{"type":"text","text":"x"}]}')

    assert told.text == "x\n(1 more images are left out)"


async def test_an_answer_that_cannot_be_read_is_an_error_at_once_and_one_that_is_nested_deeply_is_none(
    tmp_path: Path,
) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        broken = await at.call("far__raw", start='{"content":[', unit="no JSON", count=1, end="]}")
        deep = await at.call("far__raw", start='{"structuredContent":{"a":', unit="[", count=400, end="]" * 400 + "}}")

    assert broken.is_error and "the server sent a message that cannot be read" in broken.text
    assert deep.text == '{"a":' + "[" * 400 + "]" * 400 + "}"


async def test_garbage_on_the_output_is_no_message_and_does_no_harm(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server({"start": "garbage"})}) as at:
        assert (await at.call("far__garbage", text="hi")).text == "garbage: hi"
        assert (await at.call("far__echo", text="still")).text == "echo: still"


async def test_a_server_that_crashes_in_a_call_is_started_again_and_its_tools_stay(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        crashed = await at.call("far__crash")
        after = await at.call("far__echo", text="again")

    assert crashed.is_error
    assert "it ended with code 3 and last wrote: it hurts" in crashed.text
    assert "not known: check before you repeat it" in crashed.text
    assert after.text == "echo: again"


async def test_a_message_without_an_end_ends_the_server_and_not_the_gateway(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__endless")
        after = await at.call("far__echo", text="again")

    assert "it sent a message of more than 16 MB" in told.text
    assert after.text == "echo: again"


@pytest.mark.parametrize("name", ["crowd", "crowd_id_last", "crowd_lists", "crowd_digits"])
async def test_an_answer_with_too_many_parts_is_the_error_of_its_call_and_the_server_goes_on(
    tmp_path: Path, name: str
) -> None:
    diary = tmp_path / "diary"
    async with calling(tmp_path, {"far": server(env={"MCP_DIARY": str(diary)})}) as at:
        told = await at.call(f"far__{name}")
        after = await at.call("far__echo", text="again")

    assert told.is_error and "a message with more lists and objects in it than are read" in told.text
    assert after.text == "echo: again"
    assert diary.read_text().count("started") == 1


async def test_halves_of_pairs_and_bytes_that_are_no_text_are_replaced_in_a_result(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        told = await at.call("far__halves")
        await at.gateway.ask("main", "what did it say?")  # what was stored can be sent to a model again

    assert told.text == "a\ufffd b\ufffd😀 c\ufffd \\ud800"


async def test_a_server_that_cannot_start_is_named_by_status_and_holds_nothing_up(tmp_path: Path) -> None:
    servers = {"far": server({"start": "fail"}), "gone": {"command": "/no/such/program"}, "near": server()}
    async with calling(tmp_path, servers) as at:
        assert "near__echo" in await at.names()
        condition = await examine(at.gateway.parts)
        down = {problem.message for problem in condition.problems if problem.code == "mcp_server_down"}

    assert len(down) == 2
    assert any("MCP server far is down: it ended with code 1 and last wrote: there is no key; it is" in d for d in down)
    assert any("MCP server gone is down: it ended with code 127 and last wrote: cannot start" in each for each in down)


async def test_the_last_lines_of_a_server_that_cannot_start_are_in_the_reason(tmp_path: Path) -> None:
    lines = [
        "an early line",
        *("error: no package", "  caused by: a request failed"),
        "\x1b[31mno certificate",
        "d",
        "e",
    ]
    script = f"import sys; sys.exit({chr(10).join(lines)!r})"
    loud = "import sys; sys.exit('the cause is lost ' + 'x' * 100_000 + ' the end')"
    servers = {name: {"command": sys.executable, "args": ["-c", it]} for name, it in (("far", script), ("loud", loud))}
    async with calling(tmp_path, servers) as at:
        await at.names()
        condition = await examine(at.gateway.parts)
        down = {problem.message for problem in condition.problems if problem.code == "mcp_server_down"}

    [far] = [each for each in down if "server far" in each]
    assert "wrote: error: no package / caused by: a request failed / " in far and "no certificate / d / e; it is" in far
    assert "early" not in far and "\x1b" not in far
    [loud] = [each for each in down if "server loud" in each]
    assert len(loud) < 1_500


async def test_what_a_dead_server_says_of_its_secrets_is_told_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import os, sys; sys.exit(f'{sys.argv[1:]} {os.environ[\"PIN\"]} ' + 'x' * 400 + ' ' + sys.argv[2])"
    args = ["-c", script, "--api-key", "open-sesame"]
    far = {"command": sys.executable, "args": args, "env": {"PIN": "a-pin-of-twenty-letters"}}
    async with calling(tmp_path, {"far": far, "near": server(env={"API_KEY": "hunter-two"})}) as at:
        await at.names()
        told = [problem.message for problem in (await examine(at.gateway.parts)).problems]
        failed = await at.call("near__fail", text="with hunter-two")
        crashed = await at.call("near__crash", text="with hunter-two")

    assert any("server far is down: it ended with code 1 and last wrote: ['--api-key', '[hidden]'" in t for t in told)
    assert failed.text == "fail: with [hidden]" and "last wrote: with [hidden]" in crashed.text
    shown = "".join(told) + capsys.readouterr().err
    assert "with [hidden]" in shown and not any(word in shown for word in ("sesame", "a-pin", "hunter"))


async def test_a_server_that_hangs_at_its_start_holds_a_run_up_once_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_PATIENCE_S", 0.3)
    async with calling(tmp_path, {"far": server({"start": "hang"}), "near": server()}) as at:
        async with asyncio.timeout(20):
            assert not any(name.startswith("far") for name in await at.names())
        servers = at.gateway.mcp_servers
        assert servers is not None
        await until(lambda: "far" in servers.down() and bool(servers.tools()))
        async with asyncio.timeout(20):
            assert "near__echo" in await at.names()


async def test_known_tools_of_a_server_that_is_down_say_why_and_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_BACKOFF", Backoff(30.0, 60.0))
    async with calling(tmp_path, {"far": server()}) as at:
        await at.call("far__crash")
        monkeypatch.setattr(keeping, "_PATIENCE_S", 0.3)
        assert "far__echo" in await at.names()
        told = await at.call("far__echo", text="hello")

    assert told.is_error
    assert "The MCP server far is down: it ended with code 3" in told.text
    assert re.search(r"it is tried again in [123]?\d s", told.text)


async def test_a_call_of_a_tool_whose_server_is_not_up_yet_says_what_that_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_BACKOFF", Backoff(30.0, 60.0))
    servers = {"far": server({"start": "fail"}), "slow": server({"start": "hang"}), "near": server()}
    async with calling(tmp_path, servers, ["far__*", "slow__echo", "group:mcp:near"]) as at:
        monkeypatch.setattr(keeping, "_PATIENCE_S", 0.3)
        hung = await at.call("slow__echo")
        mcp = at.gateway.mcp_servers
        assert mcp is not None
        await until(lambda: "it ended" in mcp.down().get("far", "") and bool(mcp.tools()))
        down = await at.call("far__list_directory")
        none = await at.call("near__nothing")
        never = await at.call("nowhere__echo")
        monkeypatch.setattr(keeping, "_PATIENCE_S", 300.0)
        starting = at.gateway.toolset.refusal(MAIN, "slow__echo", [])

    assert down.text.startswith(
        "there is no tool 'far__list_directory' here: the MCP server far is down: it ended with code 1"
    )
    assert "last wrote: there is no key; it is tried again in " in down.text
    # Which of the two is a matter of how busy the machine is.
    assert any(
        f"the MCP server slow is {at}" in hung.text for at in ("down: it has not answered", "still being started")
    )
    assert "the MCP server slow is still being started (" in starting
    assert "here: the MCP server near has no such tool; you have: near__" in none.text
    assert "there is no tool 'nowhere__echo' here; you have: near__" in never.text


async def test_tools_that_a_server_changes_are_seen_by_the_next_run(tmp_path: Path) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        await at.call("far__rename")
        await until(lambda: "far__after" in at.gateway.toolset.of("main", MAIN))
        assert await at.names() == {"far__after"}


async def test_an_abort_and_a_time_limit_cancel_the_call_at_the_server(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    env = {"MCP_DIARY": str(diary)}
    async with calling(tmp_path, {"far": server(env=env), "brief": server(env=env, timeoutSeconds=0.2)}) as at:
        told = await at.call("brief__hang")
        assert "took longer than 0.2 s and was cancelled" in told.text
        await until(lambda: "cancelled" in diary.read_text())
        diary.write_text("")

        at.wanted = [("far__hang", {})]
        await at.gateway.submit("main", "hang", run_id="r")
        await until(lambda: "call hang" in diary.read_text())
        await at.gateway.runtime.abort(MAIN, "r")
        assert (await at.gateway.runtime.wait("r", 10)).state == "aborted"
        await until(lambda: "cancelled" in diary.read_text())


async def test_a_server_gets_no_environment_of_ours_and_its_secrets_are_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-gateway")
    async with calling(tmp_path, {"far": server(env={"API_KEY": "hunter-two-and-more"})}) as at:
        names = json.loads((await at.call("far__secret")).text)
        repeated = repr(at.gateway.config.mcp)

    shown = capsys.readouterr()
    assert "API_KEY" in names and "ANTHROPIC_API_KEY" not in names
    assert "hunter-two" not in shown.err + shown.out + repeated
    assert "the key is" in shown.err and "\x1b[31m" not in shown.err


async def test_a_server_that_floods_its_error_output_writes_so_much_into_the_log_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        assert (await at.call("far__flood", text="hi")).text == "flood: hi"
    logged = capsys.readouterr().err
    assert 100 <= logged.count("an MCP server wrote") <= 200
    assert logged.count("an MCP server writes more lines than are logged") <= 2


@pytest.mark.parametrize(("stream", "line"), [("stderr", "e"), ("stdout", "e"), ("stdout", "{}"), ("stdout", "")])
async def test_a_server_that_writes_short_lines_without_pause_holds_nobody_up(
    tmp_path: Path, stream: str, line: str
) -> None:
    async with calling(tmp_path, {"far": server()}) as at:
        await at.call("far__echo", text="hi")
        with loop_time() as held:
            told = await at.call("far__lines", stream=stream, line=line, count=50_000 if line == "{}" else 300_000)

    assert told.text == "lines: "
    assert held.longest_s < 0.1, f"{held.longest_s * 1000:.0f} ms at once"


async def test_nothing_of_a_server_is_left_when_the_gateway_stops(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with calling(tmp_path, {"far": server(env={"MCP_DIARY": str(diary)})}) as at:
        child = int((await at.call("far__fork")).text)
        own = int(diary.read_text().split()[1])
        processes = [Watched(child), Watched(own)]
        assert not any(process.has_ended(0) for process in processes)
    assert all_ended(processes, 0)


async def test_all_sessions_share_one_server(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with calling(tmp_path, {"far": server(env={"MCP_DIARY": str(diary)})}) as at:
        await asyncio.gather(*(at.gateway.ask(f"agent:main:s{n}", "hello") for n in range(5)))
        await at.gateway.ask("agent:other:main", "hello")
    assert diary.read_text().count("started") == 1


@pytest.mark.usefixtures("real_sandbox")
async def test_a_sandboxed_session_has_a_server_of_its_own_that_sees_its_workspace_alone(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    shutil.copy(SERVER, workspace / "server.py")
    far = {"command": "/usr/bin/python3", "args": ["-I", "server.py"], "cwd": str(workspace)}
    main = {"id": "main", "model": "scripted/test", "workspace": str(workspace), "sandbox": {"mode": "non-main"}}
    servers = {"far": far, "web": {"url": "http://127.0.0.1:9/mcp", "effects": {"echo": "none"}}}
    async with calling(tmp_path, servers, agents=[main]) as at:
        token = str(at.gateway.config.state_dir / "backchannel.db")
        outside = await at.call("far__look", path=token)
        inside = await at.call("far__look", session="agent:main:side", path=token)
        own = await at.call("far__look", session="agent:main:side", path="/workspace/server.py")
        assert at.gateway.mcp_servers is not None
        assert at.gateway.mcp_servers.up == 2

    assert [told.text for told in (outside, inside, own)] == ["there", "not there", "there"]


@pytest.mark.usefixtures("real_sandbox")
async def test_what_a_server_finds_in_one_sandbox_is_no_tool_of_sessions_elsewhere(tmp_path: Path) -> None:
    agents: list[dict[str, Any]] = []
    for id, tool in (("main", "look"), ("other", "peek")):
        folder = tmp_path / id
        folder.mkdir()
        (folder / "server.py").write_text(SERVER.read_text().replace("look", tool))
        agents.append({"id": id, "model": "scripted/test", "workspace": str(folder), "sandbox": {"mode": "all"}})
    far = {"command": "/usr/bin/python3", "args": ["-I", "server.py"]}
    async with calling(tmp_path, {"far": far}, agents=agents) as at:
        for _ in range(2):
            assert {"far__look", "far__peek"} & await at.names() == {"far__look"}
            assert {"far__look", "far__peek"} & await at.names("agent:other:main") == {"far__peek"}


@pytest.mark.usefixtures("real_sandbox")
async def test_a_program_that_the_sandbox_does_not_see_is_named_with_what_it_sees(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.symlink_to("/bin/sh")
    agents = [{"id": "main", "model": "scripted/test", "sandbox": {"mode": "all"}}]
    async with calling(tmp_path, {"far": {"command": str(program)}}, agents=agents) as at:
        await at.names()
        condition = await examine(at.gateway.parts)
        [down] = [problem.message for problem in condition.problems if problem.code == "mcp_server_down"]

    assert f"only /usr and the workspace (as /workspace) are seen, and `{program}` is not there" in down


async def test_a_sandboxed_session_without_a_network_has_no_server_at_an_address(tmp_path: Path) -> None:
    address = McpAddress()
    async with served(address) as url:
        agents = [
            {"id": "main", "model": "scripted/test", "sandbox": {"mode": "non-main"}},
            {"id": "online", "model": "scripted/test", "sandbox": {"mode": "all", "network": True}},
        ]
        web = {"url": url, "effects": {"echo": "none"}}
        async with calling(tmp_path, {"web": web}, agents=agents) as at:
            assert "web__echo" in await at.names()
            assert await at.names("agent:main:side") == set()
            told = await at.call("web__echo", session="agent:main:side")
            assert "web__echo" in await at.names("agent:online:main")

    assert "its sandbox has no network (sandbox.network)" in told.text
    assert address.called == []
