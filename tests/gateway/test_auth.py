"""Tokens, scopes, the slow-down, and the checks of Host and Origin, with plain values."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from backchannel.config.schema_doors import AuthSettings, ControlUiSettings, GatewaySettings
from backchannel.core.records import TokenRow
from backchannel.errors import Forbidden, InvalidRequest, SlowDown, StartupError, Unauthorized
from backchannel.gateway.auth import (
    MAX_WRONG_REMEMBERED,
    Access,
    OriginCheck,
    TokenHolder,
    check_bind,
    expand_scopes,
    hash_token,
    is_loopback,
    load_operator_token,
    read_bearer,
    read_scopes,
)
from backchannel.gateway.ws.throttling import (
    ADDRESS_FAILURES,
    CREDENTIAL_FAILURES,
    MAX_REMEMBERED,
    FailedAttempts,
    Proxies,
)
from backchannel.wire.frames import TokenScope
from tests.support.clocks import StageClock
from tests.support.logs import captured_logs

ALL = frozenset(TokenScope)


class Stored:
    def __init__(self, *rows: TokenRow) -> None:
        self.rows = {row.digest: row for row in rows}
        self.asked = 0

    async def token_by_digest(self, digest: str) -> TokenRow | None:
        self.asked += 1
        return self.rows.get(digest)


def stored(token: str, **fields: object) -> TokenRow:
    values: dict[str, object] = {"scopes": ("operator.read",), "session_key": None, "label": None, "created_at": 1}
    return TokenRow(id="t1", digest=hash_token(token), **{**values, **fields})  # type: ignore[arg-type]


class TestScopes:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ([], set()),
            (["read"], {TokenScope.READ}),
            (["operator.read"], {TokenScope.READ}),
            (["write"], {TokenScope.READ, TokenScope.WRITE}),
            (["Operator.Admin"], set(TokenScope)),
            (["operator.approvals"], set()),
            (["operator.approvals", "read"], {TokenScope.READ}),
        ],
    )
    def test_each_includes_those_before_it_and_foreign_ones_give_nothing(
        self, words: list[str], expected: set[TokenScope]
    ) -> None:
        assert expand_scopes(words) == expected

    def test_an_unknown_scope_of_a_new_token_is_an_error(self) -> None:
        with pytest.raises(InvalidRequest, match="unknown scope 'root'"):
            read_scopes(["read", "root"])

    def test_granted_is_what_was_asked_and_the_token_has(self) -> None:
        writer = TokenHolder("t", frozenset([TokenScope.READ, TokenScope.WRITE]))
        assert writer.with_scopes(["admin"]).scopes == {TokenScope.READ, TokenScope.WRITE}
        assert writer.with_scopes(["read"]).scopes == {TokenScope.READ}
        assert writer.with_scopes(["operator.pairing"]).scopes == frozenset()

    def test_nothing_asked_is_all_the_token_has(self) -> None:
        assert TokenHolder("t", ALL).with_scopes(None).scopes == ALL
        assert TokenHolder("t", ALL).with_scopes([]).scopes == ALL


class TestFirstToken:
    def test_one_is_made_at_first_start_and_kept(self, tmp_path: Path) -> None:
        first = load_operator_token(tmp_path / "state", None)
        again = load_operator_token(tmp_path / "state", None)
        assert first.is_new and not again.is_new
        assert first.token == again.token
        assert len(first.token) > 40

    def test_only_its_owner_can_read_it(self, tmp_path: Path) -> None:
        load_operator_token(tmp_path, None)
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
        assert [file.name for file in tmp_path.iterdir()] == ["token"]

    def test_a_configured_one_wins_and_makes_no_file(self, tmp_path: Path) -> None:
        assert load_operator_token(tmp_path, "mine").token == "mine"
        assert not (tmp_path / "token").exists()

    def test_an_empty_file_is_an_error_that_says_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("\n")
        with pytest.raises(StartupError, match="delete it"):
            load_operator_token(tmp_path, None)

    def test_a_folder_that_cannot_be_written_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("a file, not a folder")
        with pytest.raises(StartupError, match="cannot keep the operator token"):
            load_operator_token(tmp_path / "state", None)

    def test_no_repr_shows_it(self, tmp_path: Path) -> None:
        made = load_operator_token(tmp_path, None)
        assert made.token not in repr(made)


@pytest.mark.anyio
class TestLogin:
    async def test_the_operators_token_has_all_scopes(self) -> None:
        caller = await Access(Stored(), "secret", StageClock.still(0)).login("secret", "1.2.3.4")
        assert caller.scopes == ALL and not caller.is_agent

    async def test_a_stored_token_has_its_scopes(self) -> None:
        access = Access(Stored(stored("abc", scopes=("operator.write",))), "secret", StageClock.still(0))
        caller = await access.login("abc", "1.2.3.4")
        assert caller.scopes == {TokenScope.READ, TokenScope.WRITE}
        assert caller.token_id == "t1"

    async def test_an_agents_token_has_a_session_and_no_scopes(self) -> None:
        access = Access(Stored(stored("abc", session_key="agent:main:main")), "secret", StageClock.still(0))
        caller = await access.login("abc", "1.2.3.4")
        assert caller.is_agent and caller.session_key == "agent:main:main"
        assert caller.scopes == frozenset()

    @pytest.mark.parametrize("token", [None, "", "wrong", "secret ", "\ud800", "x" * 100_000])
    async def test_anything_else_is_refused_without_showing_it(self, token: str | None) -> None:
        with pytest.raises(Unauthorized) as refused:
            await Access(Stored(), "secret", StageClock.still(0)).login(token, "1.2.3.4")
        assert refused.value.code == "AUTH_TOKEN_MISMATCH"
        assert not token or token not in refused.value.message

    async def test_a_revoked_token_is_refused(self) -> None:
        access = Access(Stored(stored("abc", revoked_at=5)), "secret", StageClock.still(0))
        with pytest.raises(Unauthorized):
            await access.login("abc", "1.2.3.4")

    async def test_a_right_token_gets_in_whatever_wrong_ones_come_beside_it(self) -> None:
        access = Access(Stored(stored("abc")), "secret", StageClock.still(0))
        for n in range(10 * ADDRESS_FAILURES):
            with pytest.raises((Unauthorized, SlowDown)):
                await access.login(f"wrong {n % 30}", "127.0.0.1")
            assert (await access.login("secret", "127.0.0.1")).scopes == ALL
            assert (await access.login("abc", "127.0.0.1")).token_id == "t1"

    async def test_an_old_token_is_slowed_down_for_a_minute_and_says_how_long(self) -> None:
        clock = StageClock.still(0)
        access = Access(Stored(), "secret", clock)
        for _ in range(CREDENTIAL_FAILURES):
            with pytest.raises(Unauthorized):
                await access.login("old", "1.2.3.4")
            clock.move_on(1)
        with pytest.raises(SlowDown) as slowed:
            await access.login("old", "1.2.3.4")
        assert slowed.value.wire()["retryAfterMs"] == 56_001
        assert "try again in 56 s" in slowed.value.message
        with pytest.raises(Unauthorized):
            await access.login("mistyped", "1.2.3.4")
        with pytest.raises(Unauthorized):
            await access.login("old", "5.6.7.8")
        clock.move_on(56.1)
        with pytest.raises(Unauthorized):
            await access.login("old", "1.2.3.4")

    async def test_many_different_wrong_ones_of_one_address_are_slowed_down_too(self) -> None:
        access = Access(Stored(), "secret", StageClock.still(0))
        for n in range(ADDRESS_FAILURES):
            with pytest.raises(Unauthorized):
                await access.login(f"guess {n}", "1.2.3.4")
        with pytest.raises(SlowDown):
            await access.login("another guess", "1.2.3.4")

    async def test_a_wrong_token_is_looked_up_once_however_often_it_comes(self) -> None:
        rows = Stored()
        access = Access(rows, "secret", StageClock.still(0))
        for _ in range(100):
            with pytest.raises((Unauthorized, SlowDown)):
                await access.login("wrong", "1.2.3.4")
        assert rows.asked == 1

    async def test_the_memory_of_wrong_tokens_is_bounded(self) -> None:
        access = Access(Stored(), "secret", StageClock.still(0))
        for n in range(MAX_WRONG_REMEMBERED + 50):
            with pytest.raises((Unauthorized, SlowDown)):
                await access.login(f"guess {n}", "1.2.3.4")
        assert len(access._wrong) == MAX_WRONG_REMEMBERED

    async def test_a_missing_token_is_no_guess(self) -> None:
        access = Access(Stored(), "secret", StageClock.still(0))
        for _ in range(ADDRESS_FAILURES + 1):
            with pytest.raises(Unauthorized):
                await access.login(None, "1.2.3.4")

    async def test_a_wrong_token_is_not_sent_to_a_command_that_needs_a_right_one(self) -> None:
        with pytest.raises(Unauthorized) as refused:
            await Access(Stored(), "secret", StageClock.still(0)).login("wrong", "1.2.3.4")
        assert "tokens list" not in refused.value.message


class TestFailures:
    def test_a_client_cannot_choose_another_address_of_its_own_network(self) -> None:
        failures = FailedAttempts(StageClock.still(0), "login")
        for n in range(CREDENTIAL_FAILURES):
            failures.add(f"2001:db8::{n + 1}", "old")
        with pytest.raises(SlowDown):
            failures.add("2001:db8::ffff", "old")
        failures.add("2001:db8:0:1::1", "old")

    def test_an_address_has_one_name_in_both_families(self) -> None:
        failures = FailedAttempts(StageClock.still(0), "login")
        for _ in range(CREDENTIAL_FAILURES):
            failures.add("::ffff:1.2.3.4", "old")
        with pytest.raises(SlowDown):
            failures.add("1.2.3.4", "old")

    def test_memory_is_bounded(self) -> None:
        failures = FailedAttempts(StageClock.still(0), "login")
        for n in range(MAX_REMEMBERED + 50):
            failures.add(f"client {n}", "old")
        assert len(failures._by_address._times) == len(failures._by_credential._times) == MAX_REMEMBERED
        assert len(failures._logged) == MAX_REMEMBERED

    def test_the_log_has_a_line_a_minute_for_each_address_however_many_fail(self) -> None:
        clock = StageClock.still(0)
        failures = FailedAttempts(clock, "login")
        with captured_logs() as logs:
            for n in range(15):
                failures.add("1.2.3.4", f"guess {n}")
            failures.add("5.6.7.8", "guess")
            clock.move_on(60)
            failures.add("1.2.3.4", "guess")
        assert [(line["event"], line["log_level"], line["address"], line["times"]) for line in logs] == [
            ("login refused", "info", "1.2.3.4", 1),
            ("login refused", "info", "5.6.7.8", 1),
            ("login refused", "info", "1.2.3.4", 15),
        ]


class TestProxies:
    TRUSTED = ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32")

    @pytest.mark.parametrize(
        ("connects", "forwarded", "client"),
        [
            ("127.0.0.1", ["1.2.3.4"], "1.2.3.4"),
            ("127.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
            ("127.0.0.1", ["6.6.6.6", "1.2.3.4, 10.1.1.1"], "1.2.3.4"),
            ("127.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            ("::ffff:127.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
            ("2001:db8::1", ["[2001:470::5]:443"], "2001:470::5"),
            ("127.0.0.1", ["2001:470::5"], "2001:470::5"),
            ("127.0.0.1", [], "127.0.0.1"),
            ("127.0.0.1", ["", "unknown"], "127.0.0.1"),
            ("127.0.0.1", ["1.2.3.4, <script>, 10.1.1.1"], "10.1.1.1"),
            ("9.9.9.9", ["1.2.3.4"], "9.9.9.9"),
            ("local", ["1.2.3.4"], "local"),
        ],
    )
    def test_the_last_hop_that_is_no_trusted_proxy_is_the_client(
        self, connects: str, forwarded: list[str], client: str
    ) -> None:
        assert Proxies(self.TRUSTED).client(connects, forwarded) == client

    def test_without_trusted_proxies_nobody_is_believed(self) -> None:
        assert Proxies(()).client("127.0.0.1", ["1.2.3.4"]) == "127.0.0.1"


class TestBearer:
    @pytest.mark.parametrize(
        ("header", "token"),
        [
            ("Bearer abc", "abc"),
            ("bearer  abc ", "abc"),
            ("Basic abc", None),
            ("Bearer", None),
            ("", None),
            (None, None),
        ],
    )
    def test_only_a_bearer_header_holds_a_token(self, header: str | None, token: str | None) -> None:
        assert read_bearer(header) == token


class TestBinding:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
    def test_loopback_needs_no_token_of_ones_own(self, host: str) -> None:
        assert is_loopback(host)
        check_bind(GatewaySettings(host=host))

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "no-such-host.invalid"])
    def test_anything_else_does(self, host: str) -> None:
        with pytest.raises(StartupError, match="BACKCHANNEL_TOKEN"):
            check_bind(GatewaySettings(host=host))
        check_bind(GatewaySettings(host=host, auth=AuthSettings(token="mine")))


class TestDoorkeeper:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1:18790", "localhost", "LOCALHOST:1", "[::1]:18790", "127.0.0.5", "gw.example:443"]
    )
    def test_names_of_this_gateway_pass(self, host: str) -> None:
        OriginCheck(GatewaySettings(allowed_hosts=("gw.example",))).check_host(host)

    @pytest.mark.parametrize(
        "host", [None, "", "evil.example", "localhost.evil.example", "evil.example:18790", "10.0.0.1", "[::", "a b"]
    )
    def test_any_other_name_does_not(self, host: str | None) -> None:
        with pytest.raises(Forbidden):
            OriginCheck(GatewaySettings()).check_host(host)

    def test_a_gateway_that_listens_everywhere_has_any_address_but_not_any_name(self) -> None:
        keeper = OriginCheck(GatewaySettings(host="0.0.0.0"))
        keeper.check_host("192.168.1.5:18790")
        with pytest.raises(Forbidden):
            keeper.check_host("evil.example")

    @pytest.mark.parametrize("origin", [None, "http://localhost:1", "https://localhost:1", "https://chat.example"])
    def test_the_own_and_configured_origins_pass(self, origin: str | None) -> None:
        page = ("https://chat.example/",)
        for settings in (
            GatewaySettings(allowed_origins=page),
            GatewaySettings(control_ui=ControlUiSettings(allowed_origins=page)),
        ):
            assert OriginCheck(settings).foreign("localhost:1", origin) is None

    @pytest.mark.parametrize(
        "origin",
        ["https://evil.example", "null", "", "http://localhost:2", "http://localhost", "file://", "localhost:1"],
    )
    def test_any_other_origin_does_not(self, origin: str) -> None:
        foreign = OriginCheck(GatewaySettings()).foreign("localhost:1", origin)
        assert foreign is not None and "gateway.controlUi.allowedOrigins" in foreign.message
