"""Settings that contradict each other, and settings that only cause a warning."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.config import ConfigFinding, config_from
from backchannel.errors import ConfigError

SECRET = "0123456789abcdef"


def findings(mapping: dict[str, Any]) -> list[ConfigFinding]:
    try:
        return list(config_from(mapping).warnings)
    except ConfigError as error:
        return [ConfigFinding(**problem) for problem in error.details["problems"]]


def errors(mapping: dict[str, Any]) -> list[str]:
    return [str(finding) for finding in findings(mapping) if finding.level == "error"]


def warnings(mapping: dict[str, Any]) -> list[str]:
    found = findings(mapping)
    assert not [finding for finding in found if finding.level == "error"]
    return [str(finding) for finding in found]


def bridge(**settings: Any) -> dict[str, Any]:
    return {"adapter": "bridge", "url": "https://bridge.example/out", "secret": SECRET, **settings}


def job(**settings: Any) -> dict[str, Any]:
    return {"cron": {"jobs": [{"id": "j", "schedule": "0 9 * * *", "message": "hi", **settings}]}}


def test_two_agents_cannot_share_an_id() -> None:
    assert errors({"agents": {"list": [{"id": "a b"}, {"id": "A-B"}]}}) == [
        "agents.list[1].id: got 'A-B', agents.list[0] has this id too"
    ]


@pytest.mark.parametrize("name", ["!!!", "x" * 65])
def test_an_id_with_nothing_usable_is_refused(name: str) -> None:
    [error] = errors({"agents": {"list": [{"id": name}]}})

    assert "expected letters, digits, `_` and `-`, at most 64" in error


def test_only_one_agent_can_be_the_default() -> None:
    agents = [{"id": "a", "default": True}, {"id": "b"}, {"id": "c", "default": True}]

    assert errors({"agents": {"list": agents}}) == [
        "agents.list[2].default: agents.list[0] is the default too, and only one agent can be"
    ]


def test_agents_that_may_talk_and_do_not_exist_are_warned_of() -> None:
    talk = {"enabled": True, "allow": ["main", "Res*", "writr", "ghost-*"]}
    [misspelt, unknown] = warnings(
        {
            "agents": {"list": [{"id": "main"}, {"id": "research"}, {"id": "writer"}]},
            "tools": {"agentToAgent": talk, "sessions": {"visibility": "all"}},
        }
    )

    assert "tools.agentToAgent.allow[2]: got 'writr'" in misspelt and "did you mean 'writer'?" in misspelt
    assert "tools.agentToAgent.allow[3]: got 'ghost-*'" in unknown and "main, research, writer" in unknown


def test_agents_that_are_named_must_exist() -> None:
    found = errors(
        {
            "agents": {
                "defaults": {"subagents": {"allowAgents": ["*", "ghost"]}},
                "list": [{"id": "writer", "subagents": {"allowAgents": ["writr"]}}],
            },
            "bindings": [{"match": {"channel": "c"}, "agentId": "Writer"}, {"match": {"channel": "c"}, "agentId": "x"}],
            **job(agentId="wrter"),
        }
    )

    assert found == [
        "bindings[1].agentId: got 'x', no agent has this id; configured: writer",
        "cron.jobs[0].agentId: got 'wrter', no agent has this id; did you mean 'writer'?",
        "agents.defaults.subagents.allowAgents[1]: got 'ghost', no agent has this id; configured: writer",
        "agents.list[0].subagents.allowAgents[0]: got 'writr', no agent has this id; did you mean 'writer'?",
    ]


def test_main_can_be_named_when_no_agent_is_listed() -> None:
    assert errors(job(agentId="main")) == []


@pytest.mark.parametrize("ref", ["gpt-5", "/gpt", "openai/", "open ai/x", ""])
def test_a_model_is_provider_and_name(ref: str) -> None:
    for mapping in (
        {"agents": {"defaults": {"model": ref}}},
        {"agents": {"defaults": {"subagents": {"model": ref}}}},
        {"agents": {"list": [{"id": "a", "model": ref}]}},
        {"agents": {"list": [{"id": "a", "subagents": {"model": ref}}]}},
        job(model=ref),
    ):
        [error] = errors(mapping)
        assert f"model: got {ref!r}, expected `provider/model`" in error


def test_a_provider_that_lists_its_models_has_no_others() -> None:
    provider = {"api": "openai", "baseUrl": "http://127.0.0.1:1/v1"}
    closed = {"models": {"providers": {"mine": {**provider, "models": [{"id": "org/big"}]}}}}
    open_ended = {"models": {"providers": {"mine": provider}}}

    assert errors({**closed, "agents": {"defaults": {"model": "mine/org/big"}}}) == []
    assert errors({**open_ended, "agents": {"defaults": {"model": "mine/anything"}}}) == []
    assert errors({**closed, "agents": {"defaults": {"model": "mine/org/bg"}}}) == [
        "agents.defaults.model: got 'mine/org/bg', `models.providers.mine` lists no such model;"
        " did you mean `mine/org/big`?"
    ]


@pytest.mark.parametrize("key", ["global", "Unknown", "current", "node-1"])
def test_words_with_a_meaning_cannot_be_the_main_key(key: str) -> None:
    assert errors({"session": {"mainKey": key}}) == [
        f"session.mainKey: got {key!r}, this word has a meaning of its own; choose another, such as `main`"
    ]


@pytest.mark.parametrize("name", ["webchat", "internal", "cron", "hook", "node", "node-1", "subagent", "openai"])
def test_words_with_a_meaning_cannot_name_a_channel(name: str) -> None:
    [error] = errors({"channels": {name: bridge(owners=["1"])}})

    assert error.endswith("this word has a meaning of its own; give the channel another name")


@pytest.mark.parametrize("name", ["My Chat", "a:b", "Slack", ""])
def test_a_channel_has_a_plain_name(name: str) -> None:
    [error] = errors({"channels": {name: bridge(owners=["1"])}})

    assert "a channel's name is small letters" in error


def test_secrets_are_long_and_each_its_own() -> None:
    assert errors({"channels": {"a": bridge(secret="short", owners=["1"])}}) == [
        "channels.a.secret: got a text of 5 characters, expected text of at least 16 characters"
    ]
    shared = {
        "gateway": {"auth": {"token": SECRET}},
        "hooks": {"token": SECRET},
        "channels": {"a": bridge(owners=["1"])},
    }
    assert errors(shared) == [
        "hooks.token: must differ from `gateway.auth.token`",
        "channels.a.secret: must differ from `gateway.auth.token`",
    ]
    assert warnings({"gateway": {"auth": {"token": "short"}}}) == [
        "gateway.auth.token: is short; 16 characters or more are hard to guess"
    ]


def test_hooks_need_a_token_of_their_own() -> None:
    assert errors({"hooks": {"enabled": True}}) == ["hooks.enabled: hooks need a token of their own: set `hooks.token`"]
    assert errors({"hooks": {"enabled": True, "token": SECRET}}) == []


def test_a_hook_token_that_is_short_or_a_channels_secret_is_told() -> None:
    assert warnings({"hooks": {"enabled": True, "token": "short"}}) == [
        "hooks.token: is short; 16 characters or more are hard to guess"
    ]
    shared = {"hooks": {"enabled": True, "token": SECRET}, "channels": {"a": bridge(owners=["1"])}}
    assert errors(shared) == ["channels.a.secret: must differ from `hooks.token`"]


def test_a_secret_that_was_copied_from_an_example_is_told() -> None:
    copied = {
        "gateway": {"auth": {"token": "Change-Me-to-a-token-of-yours"}},
        "hooks": {"enabled": True, "token": "change-me-to-a-secret-of-the-hooks"},
        "channels": {"a": bridge(owners=["1"], secret="change-me-to-something-long")},
    }
    assert warnings(copied) == [
        f"{path}: is the one of an example, which everybody knows; choose your own"
        for path in ("gateway.auth.token", "hooks.token", "channels.a.secret")
    ]


def test_a_channel_that_hooks_may_use_should_be_there() -> None:
    hooks = {"enabled": True, "token": SECRET + "x", "allowDeliver": ["a", "webchat", "b"]}
    assert warnings({"hooks": hooks, "channels": {"a": bridge(owners=["1"])}}) == [
        "hooks.allowDeliver[2]: got 'b', no such channel is configured, so no reply can go there"
    ]


@pytest.mark.parametrize("schedule", ["0 9 * * *", "*/5 8-18 * * MON-FRI", "every 10m", "every 1s", "2030-01-01T09:00"])
def test_good_schedules_pass(schedule: str) -> None:
    assert findings(job(schedule=schedule, tz="Europe/Berlin")) == []


@pytest.mark.parametrize("schedule", ["", "daily", "every 0.5s", "every 10x", "0 9 * *", "0 9 * * * ; x", "2030-13-01"])
def test_bad_schedules_are_refused(schedule: str) -> None:
    [error] = errors(job(schedule=schedule))

    assert error.startswith(f"cron.jobs[0].schedule: got {schedule!r}, ")


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../etc/passwd"])
def test_a_time_zone_must_exist(zone: str) -> None:
    assert errors(job(tz=zone)) == [
        f"cron.jobs[0].tz: got {zone!r}, expected a time zone such as `Europe/Berlin` or `UTC`"
    ]


def test_two_jobs_cannot_share_an_id() -> None:
    one = job()["cron"]["jobs"][0]

    assert errors({"cron": {"jobs": [one, one]}}) == ["cron.jobs[1].id: got 'j', cron.jobs[0] has this id too"]


@pytest.mark.parametrize("name", ["a b", "a:b", "-a", "../a", "x" * 129, "j\n", "é"])
def test_a_job_has_a_plain_name(name: str) -> None:
    [error] = errors(job(id=name))

    assert error.startswith("cron.jobs[0].id: ")
    assert "expected letters, digits, `_`, `.` and `-`, at most 128, such as `nightly-report`" in error


def test_what_is_too_much_for_a_job_is_refused() -> None:
    assert errors(job(name="a\x1b[31mb", message="m" * 262_145, timeoutSeconds=1e308)) == [
        "cron.jobs[0].name: got 'a\\x1b[31mb', expected one line of 1 to 256 characters, without control characters",
        "cron.jobs[0].message: got '262,145 bytes', expected at most 262,144",
        "cron.jobs[0].timeoutSeconds: got '1e+308', expected at most 604800 seconds",
    ]


def test_a_day_that_never_comes_is_no_schedule() -> None:
    assert errors(job(schedule="0 0 30 2 *")) == ["cron.jobs[0].schedule: got '0 0 30 2 *', no such day ever comes"]


def test_a_job_delivers_over_a_channel_that_is_configured() -> None:
    channels = {"channels": {"desk": bridge(owners=["1"])}}

    assert errors({**job(deliver={"channel": "desk", "to": "C"}), **channels}) == []
    assert errors({**job(deliver={"channel": "dsk", "to": "C"}), **channels}) == [
        "cron.jobs[0].deliver.channel: got 'dsk', no channel has this name; did you mean 'desk'?"
    ]
    assert errors(job(deliver={"channel": "desk", "to": "C"})) == [
        "cron.jobs[0].deliver.channel: got 'desk', no channel has this name; configured: none"
    ]


def test_one_id_cannot_belong_to_two_people() -> None:
    links = {"ada": ["x:1", "y:2"], "bob": ["Y:2"]}

    assert errors({"session": {"identityLinks": links}}) == [
        "session.identityLinks.bob[0]: got 'Y:2', this id is already linked to 'ada'"
    ]


@pytest.mark.parametrize(
    "channels",
    [
        {"a": bridge(allowFrom=["1", "2"])},
        {"a": bridge(allowFrom=["*"])},
        {"a": bridge(owners=["1"]), "b": bridge(owners=["1"], secret=SECRET + "b")},
        {"a": bridge(owners=["1"], pairing=True)},
        {"a": bridge(pairing=True)},
    ],
)
def test_several_people_in_one_main_session_are_warned_of(channels: dict[str, Any]) -> None:
    [warning] = warnings({"channels": channels})
    assert warning.startswith("session.dmScope: several people share each agent's main session")

    assert warnings({"channels": channels, "session": {"dmScope": "per-peer"}}) == []
    [warning] = warnings({"channels": channels, "session": {"dmScope": "per-peer", "scope": "global"}})
    assert warning.startswith("session.scope: ")


def test_one_person_with_linked_ids_is_not_warned_of() -> None:
    channels = {"a": bridge(owners=["1"]), "b": bridge(allowFrom=["2"], secret=SECRET + "b")}

    assert warnings({"channels": channels, "session": {"identityLinks": {"ada": ["a:1", "b:2"]}}}) == []


def test_settings_without_effect_are_warned_of() -> None:
    found = warnings(
        {
            "tools": {"agentToAgent": {"enabled": True}, "subagents": {"tools": {"allow": ["sessions_spawn"]}}},
            "agents": {"list": [{"id": "a"}]},
            "channels": {"a": bridge()},
            "bindings": [{"match": {"channel": "b"}, "agentId": "a"}],
        }
    )

    assert [warning.split(":")[0] for warning in found] == [
        "channels.a",
        "bindings[0].match.channel",
        "tools.agentToAgent.enabled",
        "tools.subagents.tools.allow",
    ]


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.0/33", "", "*"])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    (problem,) = errors({"gateway": {"trustedProxies": ["127.0.0.1", "::1", "10.0.0.7/8", text]}})
    assert problem.startswith("gateway.trustedProxies[3]: ") and "such as `127.0.0.1` or `10.0.0.0/8`" in problem


def test_an_idle_reset_needs_its_minutes() -> None:
    missing = '`idleMinutes` is missing: mode "idle" needs it, such as 120'

    assert errors({"session": {"reset": {"mode": "idle"}}}) == [f"session.reset: {missing}"]
    assert errors({"session": {"reset": {"mode": "daily", "byType": {"group": {"mode": "idle"}}}}}) == [
        f"session.reset.byType.group: {missing}"
    ]
    assert not findings({"session": {"reset": {"idleMinutes": 60, "byType": {"group": {"mode": "idle"}}}}})


def test_the_hard_mark_is_above_the_other() -> None:
    wrong = {"agents": {"defaults": {"context": {"at": 0.8, "hard": 0.8}}}}
    assert errors(wrong) == ["agents.defaults.context.hard: got 0.8, expected more than `at`, which is 0.8"]
    assert errors({"agents": {"defaults": {"context": {"at": 0.9}}}}) != []
    assert not errors({"agents": {"defaults": {"context": {"at": 0.8, "hard": 0.81}}}})


def test_the_model_of_summaries_is_checked_like_others() -> None:
    (problem,) = errors({"agents": {"defaults": {"context": {"model": "mini"}}}})
    assert problem.startswith("agents.defaults.context.model: ") and "expected `provider/model`" in problem


def test_reset_settings_without_a_mode_cause_a_warning() -> None:
    [warning] = warnings({"session": {"reset": {"idleMinutes": 60}}})

    assert warning == 'session.reset: has no effect until `mode` is "daily" or "idle"'


def test_an_unknown_time_zone_is_refused() -> None:
    [error] = errors({"tz": "Europe/Berlim"})

    assert error.startswith("tz: got 'Europe/Berlim', expected a time zone such as")
