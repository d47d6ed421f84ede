"""The sandbox for whoever has no rights: as another user than root, and within a namespace without privileges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.privileges import NOBODY

ROOT = Path(__file__).parents[2]
SUITE = ("sandbox_escapes", "sandbox_memory", "sandbox_disk", "seccomp")
AS = {
    "another user": ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    "a namespace without privileges": ("unshare", "--user", "--map-user=1000", "--map-group=1000"),
}
NO_NAMESPACES = ("bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--disable-userns", "--")
USUAL = "/usr/local/bin:/usr/bin:/bin"
PATIENCE_S = 300
TRY = "import msgspec, pytest, subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Have a folder that others can reach: those of the tests are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="backchannel-"))
    if os.geteuid() == 0:
        os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def environment_in(folder: Path) -> dict[str, str]:
    paths = (str(ROOT / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {
        "PATH": USUAL,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "CI": "1",  # that bubblewrap does not work is a failure
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def interpreter_for(words: tuple[str, ...], env: dict[str, str]) -> str:
    """Find a Python that somebody else can start too: one in root's home is closed to them."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        tried = subprocess.run([*words, python, "-c", TRY], env=env, cwd=ROOT, capture_output=True)
        if tried.returncode == 0:
            return python
    pytest.skip(f"no Python with what the tests need is open to others here: {tried.stderr.decode()[-200:]}")


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize("who", AS)
@pytest.mark.timeout(PATIENCE_S)
def test_the_sandbox_holds_for(who: str, folder: Path) -> None:
    words = AS[who]
    if words[0] == "setpriv" and os.geteuid() != 0:
        pytest.skip("only root can become another user; the suite itself has run as one")
    env = environment_in(folder)
    files = [f"tests/agents/test_{name}.py" for name in SUITE]
    ran = subprocess.run(
        [*words, interpreter_for(words, env), "-m", "pytest", "-n", "0", "-q", "--tb=short", *files],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


@pytest.mark.usefixtures("real_sandbox")
def test_where_namespaces_are_refused_doctor_says_so_and_names_the_sessions_that_get_no_tools(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "backchannel.json5").write_text(json.dumps({"agents": {"defaults": {"sandbox": {"mode": "all"}}}}))
    ran = subprocess.run(
        [*NO_NAMESPACES, sys.executable, "-m", "backchannel", "--state", str(state), "doctor"],
        env={"PATH": USUAL, "HOME": str(tmp_path), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "no sandbox can be made here, so such sessions get no tools with outside effects" in ran.stdout, ran.stderr
    assert "bubblewrap does not work here: " in ran.stdout
    assert "(does this system let users make namespaces?)" in ran.stdout
