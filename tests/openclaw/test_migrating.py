"""Configuration files rewritten to today's names: what they mean, what they look like, and what is kept."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from backchannel.config import check_config, load_config
from backchannel.errors import ConfigError
from backchannel.openclaw.migrating import plan_migration, store_migration
from tests.config.conftest import Write

from .generations import EXAMPLES, Example, plain

HOW_TO = Path(__file__).parents[2] / "docs/how-to/move-from-an-older-configuration.md"
OLD = '{ agent: { model: "a/b" } } // mine\n'
NEW = '{ agents: { defaults: { model: "a/b" } } } // mine\n'


def migrated(file: Path) -> str:
    migration = plan_migration(file)
    if migration.moves:
        store_migration(migration)
    return file.read_bytes().decode()


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_each_generation_becomes_a_file_of_today_that_means_the_same(
    write: Write, example: Example, tmp_path: Path
) -> None:
    file = write(example.then)
    meant = plain(load_config(file, {}, state=tmp_path))

    assert migrated(file) == example.now

    assert plain(load_config(file, {}, state=tmp_path)) == meant
    assert not any("an older name" in finding.message for finding in check_config(file, {}))


def test_migrating_twice_changes_nothing_more(write: Write, tmp_path: Path) -> None:
    file = write(OLD)

    assert migrated(file) == migrated(file) == NEW
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backchannel.json5", "backchannel.json5.bak"]


# What it looks like


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("{ agent: {} }", "{ agents: { defaults: {} } }"),
        ("{ routing: {} }", "{ }"),
        ("{agent:{model:'a/b'}}", "{ agents: { defaults:{model:'a/b'} } }"),
        (
            "{ 'agent': { 'sandbox': {} }, 'tools': {} }",
            "{ 'agents': { 'defaults': { 'sandbox': {} } }, 'tools': {} }",
        ),
        (
            "{ channels: { telegram: { dmPolicy: 'pairing' /* ask me */, token: 'x' } } }",
            "{ channels: { telegram: { pairing: true /* ask me */, token: 'x' } } }",
        ),
        ('{"channels": {"a": {"dmPolicy": "allowlist", "b": 1}}}', '{"channels": {"a": { "b": 1}}}'),
        ("{ channels: { a: { dmPolicy: 'pairing', pairing: false } } }", "{ channels: { a: { pairing: false } } }"),
        ("{ channels: { a: { dmPolicy: 'open' } } }", "{ channels: { a: { dmPolicy: 'open' } } }"),
        ("{ routing: { agents: { 'A B': {} } } }", '{ agents: { list: [{ id: "A B" }] } }'),
        ("{ routing: { agents: { '${X}': {} } } }", '{ agents: { list: [{ id: "$${X}" }] } }'),
        ("{ routing: { agents: { a: { id: 'a' } } } }", '{ agents: { list: [{ id: "a" }] } }'),
        (
            "{ agents: { list: [] }, routing: { agents: { a: { name: 'A' } } } }",
            "{ agents: { list: [{ id: \"a\", name: 'A' }] } }",
        ),
        (
            "{ tools: { deny: [] }, routing: { agentToAgent: { enabled: true } }, gateway: {} }",
            "{ tools: { deny: [], agentToAgent: { enabled: true } }, gateway: {} }",
        ),
        (
            "{\n\tgateway: {},\n\n\t// all of them\n\tagent: {\n\t\tmodel: 'a/b', // x\n\t},\n}",
            "{\n\tgateway: {},\n\n\tagents: {\n\t\t// all of them\n\t\tdefaults: {\n"
            "\t\t\tmodel: 'a/b', // x\n\t\t},\n\t},\n}",
        ),
        (
            "{\n  tools: { deny: [] },\n  routing: {\n    // both\n    agentToAgent: { enabled: true }\n  }\n}",
            "{\n  tools: {\n    deny: [],\n    // both\n    agentToAgent: { enabled: true }\n  }\n}",
        ),
        (
            '{\n  "agent": {\n    "model": "x \\\n  y"\n  }\n}',
            '{\n  "agents": {\n    "defaults": {\n      "model": "x \\\n  y"\n    }\n  }\n}',
        ),
    ],
)
def test_the_style_of_a_file_is_kept(write: Write, then: str, now: str) -> None:
    assert migrated(write(then)) == now


def test_comments_go_with_their_settings(write: Write) -> None:
    file = write("""\
// the file
{
  // of routing
  routing: { // opened
    // of the agents
    agents: {
      // of ada
      ada: { name: "A" }, // her name
      // after all
    },
    /* of the switch */ agentToAgent: { enabled: true /* yes */ },
  }, // closed
}
// the end
""")
    assert (
        migrated(file)
        == """\
// the file
{
  // of routing
  // closed
  // opened
  // of the agents
  // after all
  agents: {
    list: [
      // of ada
      { id: "ada", name: "A" }, // her name
    ],
  },
  tools: {
    /* of the switch */
    agentToAgent: { enabled: true /* yes */ },
  },
}
// the end
"""
    )


def test_comments_of_what_is_left_out_are_told(write: Write) -> None:
    file = write("""{
  agents: { defaults: { model: "a/b", sandbox: {} } },
  agent: {
    model: "c/d", // the old one
    // by and by
    sandbox: { /* nothing */ },
  },
}""")
    migration = plan_migration(file)

    assert [(".".join(map(str, lost.path)), lost.text) for lost in migration.lost] == [
        ("agent.model", "// the old one"),
        ("agent.sandbox", "// by and by"),
        ("agent.sandbox", "/* nothing */"),
    ]
    assert migrated(file) == '{\n  agents: { defaults: { model: "a/b", sandbox: {} } },\n}'


def test_variables_stay_as_they_are_written(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_MODEL", "hush/hush")
    file = write("{ agent: { model: '${SECRET_MODEL}' }, gateway: { auth: { token: '${NOT_SET}' } } }")

    after = migrated(file)

    assert after == "{ agents: { defaults: { model: '${SECRET_MODEL}' } }, gateway: { auth: { token: '${NOT_SET}' } } }"


def test_line_ends_and_a_byte_order_mark_are_kept(write: Write) -> None:
    file = write("")
    file.write_bytes(b'\xef\xbb\xbf{\r\n  agent: {\r\n    model: "a/b",\r\n  },\r\n}\r\n')

    migrated(file)

    assert file.read_bytes() == (
        b'\xef\xbb\xbf{\r\n  agents: {\r\n    defaults: {\r\n      model: "a/b",\r\n    },\r\n  },\r\n}\r\n'
    )


def test_errors_that_have_nothing_to_do_with_names_do_not_stand_in_the_way(write: Write) -> None:
    file = write("{ agent: { model: 5, heartbeat: '~/x' }, gatway: {} }")

    assert migrated(file) == "{ agents: { defaults: { model: 5, heartbeat: '~/x' } }, gatway: {} }"
    assert {finding.path for finding in check_config(file, {}) if finding.level == "error"} == {
        "agents.defaults.heartbeat",
        "agents.defaults.model",
        "gatway",
    }


# What cannot be rewritten


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{ agent: {", "line 1: column 11: the file ends before the '{' of line 1 is closed"),
        ("{ agent: {}, agent: {} }", "line 1: agent: this setting is given twice"),
        ("[]", "the file holds a list"),
        ("{\n routing: { agents: [] } }", "line 2: routing.agents: got a list, expected an object"),
        ("{ routing: { queue: 1, agents: {} } }", "line 1: routing.queue: unknown setting"),
        ("{ agent: {}, agents: 5 }", "line 1: agent: cannot be put into `agents`, which is no object"),
        (r"{ routing: { agents: { '\ud83d\ude00': {} } } }", "this file cannot be rewritten"),
    ],
)
def test_what_cannot_be_rewritten_is_an_error_and_nothing_is_written(
    write: Write, tmp_path: Path, text: str, error: str
) -> None:
    file = write(text)

    with pytest.raises(ConfigError, match=re.escape(error)):
        plan_migration(file)

    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        plan_migration(tmp_path / "none.json5")


# What is kept, and what a crash leaves


def test_backups_are_numbered_and_never_replaced(write: Write, tmp_path: Path) -> None:
    kept = []
    for number in range(3):
        text = f"{{ agent: {{ timeoutSeconds: {number + 1} }} }}"
        kept.append((store_migration(plan_migration(write(text))).name, text))

    assert [name for name, _ in kept] == [f"backchannel.json5.bak{end}" for end in ("", ".1", ".2")]
    assert all((tmp_path / name).read_text() == text for name, text in kept)


def test_mode_and_owner_are_those_of_the_file_for_the_backup_too(write: Write) -> None:
    file = write(OLD)
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    before = file.stat()

    backup = store_migration(plan_migration(file))

    for path in (file, backup):
        after = path.stat()
        assert stat.S_IMODE(after.st_mode) == 0o640
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_a_link_stays_a_link(write: Write, tmp_path: Path) -> None:
    file = write(OLD)
    link = tmp_path / "link.json5"
    link.symlink_to(file)

    migrated(link)

    assert link.is_symlink()
    assert file.read_text() == NEW


def test_a_file_that_was_changed_since_it_was_read_stays_as_it_is(write: Write) -> None:
    file = write(OLD)
    migration = plan_migration(file)
    file.write_text("{ /* saved by an editor */ }")

    with pytest.raises(ConfigError, match="has been changed in the meantime"):
        store_migration(migration)

    assert file.read_text() == "{ /* saved by an editor */ }"


# Kills the process in place of the n-th call that changes the disk.
_KILLED = """
import os, sys
from pathlib import Path
from backchannel.openclaw.migrating import plan_migration, store_migration

left = int(sys.argv[2])

def mortal(name):
    real = getattr(os, name)
    def call(*args, **options):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return real(*args, **options)
    setattr(os, name, call)

migration = plan_migration(Path(sys.argv[1]))
for name in ("fchown", "fchmod", "fsync", "link", "replace", "unlink"):
    mortal(name)
store_migration(migration)
"""


def test_a_kill_at_any_step_leaves_a_whole_file_and_whole_backups(write: Write, tmp_path: Path) -> None:
    for step in range(100):
        file = write(OLD)
        done = subprocess.run([sys.executable, "-c", _KILLED, str(file), str(step)], check=False, timeout=20)

        backups = list(tmp_path.glob("*.bak*"))
        assert all(backup.read_text() == OLD for backup in backups)
        assert file.read_text() == OLD or (file.read_text() == NEW and backups)
        assert migrated(file) == NEW
        for path in tmp_path.iterdir():
            path.unlink()
        if done.returncode == 0:
            break
    assert step == 12


_FULL = """
import resource, sys
from pathlib import Path
from backchannel.openclaw.migrating import plan_migration, store_migration

migration = plan_migration(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    store_migration(migration)
except OSError as error:
    print(error.strerror)
"""


def test_a_file_that_cannot_be_written_is_as_it_was_and_nothing_is_left_behind(write: Write, tmp_path: Path) -> None:
    file = write(OLD)

    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(file)], capture_output=True, text=True, check=True, timeout=20
    )

    assert done.stdout == "File too large\n"
    assert file.read_text() == OLD
    assert list(tmp_path.iterdir()) == [file]


# What is shown


def test_the_difference_shows_what_changes_and_covers_secrets(write: Write) -> None:
    file = write("""{
  // token: "hush-old"
  gateway: { auth: { token: "hush-1", } }, // url: hush-comment
  agent: { model: "a/b" },
  database: { "url":
    'postgresql://me:hush-2@db' },
  models: { providers: { p: { api: "openai", apiKey: "hush-3", baseUrl: "http://hush-4" } } },
  hooks: { token: { of: "hush-5" } },
  channels: { c: { secret: "hush-6" } }, /* secret: hush-7, password=hush-8 */
  // sk-ant-api03-hush9aaaaaaaaaaaaaaaaaaaaaaaa
  bindings: [{ match: { chatId: "https://me:hush-10@example.org" }, agentId: "main" }],
}""")
    lines = plan_migration(file).diff

    assert [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        '-  agent: { model: "a/b" },',
        "+  agents: {",
        '+    defaults: { model: "a/b" },',
        "+  },",
    ]
    assert "hush" not in "\n".join(lines)
    assert lines[:2] == [f"--- {file}", f"+++ {file}"]


def test_a_file_of_today_has_no_difference(write: Write) -> None:
    migration = plan_migration(write(NEW))

    assert (migration.moves, migration.diff, migration.after) == ((), [], NEW)


def test_the_page_shows_what_happens(write: Write) -> None:
    then, now = re.findall(r"^```(?:text|json5)\n(\{.*?\n)```$", HOW_TO.read_text("utf-8"), re.DOTALL | re.MULTILINE)[
        :2
    ]

    assert migrated(write(then)) == now
