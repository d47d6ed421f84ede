"""Passwords and encryption on the way to PostgreSQL: by the URL and by libpq's variables, and in no text shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from backchannel.errors import StartupError
from backchannel.storage.databases import database_at
from tests.storage.support import MAIN, Host, note, texts
from tests.support.logs import captured_logs
from tests.support.postgres import Cluster, new_database
from tests.support.tls import TlsFront, make_certificate

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

USER, PASSWORD, WRONG = "keeper", "hush/hush", "hush-wrong"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that asks one of its users for a password."""
    cluster = Cluster()
    cluster.ask_for_password(USER, PASSWORD)
    yield cluster
    cluster.remove()


@pytest.fixture
def name(cluster: Cluster) -> str:
    return urlsplit(new_database(server=cluster.url, is_prepared=False)).path.strip("/")


@pytest.fixture
async def front(cluster: Cluster, tmp_path: Path) -> AsyncIterator[TlsFront]:
    async with TlsFront(cluster.socket, make_certificate(tmp_path, "localhost")) as front:
        yield front


async def refusal(url: str) -> str:
    """Read why a start on a database is refused, and all that was logged meanwhile."""
    with captured_logs() as logs, pytest.raises(StartupError) as refused:
        await asyncio.to_thread(database_at(url).prepare, has_past=lambda: False)
    return f"{refused.value} {refused.value.wire()} {logs}"


async def works(url: str, folder: Path) -> bool:
    host = Host(folder / "state", url)
    await host.start()
    await host.store.add_note(MAIN, note("kept"))
    said = await texts(host.store)
    await host.end()
    return said == ["kept"]


async def test_the_servers_certificate_and_name_are_checked_and_all_connections_encrypted(
    front: TlsFront, name: str, tmp_path: Path
) -> None:
    checked = f"sslmode=verify-full&sslrootcert={tmp_path / 'localhost.pem'}"
    assert await works(f"postgresql://{USER}:hush%2Fhush@localhost:{front.port}/{name}?{checked}", tmp_path)
    assert front.encrypted > 3


async def test_passwords_and_encryption_can_be_set_by_variables_alone(
    front: TlsFront, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"HOST": "localhost", "PORT": str(front.port), "USER": USER, "PASSWORD": PASSWORD, "DATABASE": name}
    variables |= {"SSLMODE": "verify-full", "SSLROOTCERT": str(tmp_path / "localhost.pem")}
    for variable, value in variables.items():
        monkeypatch.setenv(f"PG{variable}", value)
    assert await works("postgresql://", tmp_path)
    assert front.encrypted > 3


async def test_a_server_whose_certificate_nobody_vouches_for_or_is_anothers_is_refused(
    front: TlsFront, cluster: Cluster, name: str, tmp_path: Path
) -> None:
    stranger, other = make_certificate(tmp_path, "stranger"), make_certificate(tmp_path, "elsewhere")
    url = f"postgresql://{USER}:hush%2Fhush@localhost:{front.port}/{name}?sslmode=verify-full&sslrootcert="
    assert "certificate verify failed" in await refusal(f"{url}{stranger}")
    async with TlsFront(cluster.socket, other) as wrong:
        moved = url.replace(str(front.port), str(wrong.port))
        assert 'for "elsewhere"' in await refusal(f"{moved}{other}")
    assert front.encrypted == 0


@pytest.mark.parametrize("given", ["by the URL", "by a variable"])
async def test_a_wrong_password_is_not_repeated(
    front: TlsFront, name: str, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    place = f"localhost:{front.port}/{name}?sslmode=require"
    if given == "by a variable":
        monkeypatch.setenv("PGPASSWORD", WRONG)
    said = await refusal(f"postgresql://{USER}{'' if given == 'by a variable' else f':{WRONG}'}@{place}")
    assert f'password authentication failed for user "{USER}"' in said
    assert WRONG not in said
