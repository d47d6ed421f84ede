"""The database's own record: the writer and fence of each message, and the ends of each run.

Triggers write it down in the transaction that they watch, so nothing of it depends on what a gateway thinks it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from backchannel.core.messages import decode_message
from tests.cluster.gateways import execute
from tests.cluster.member import Asked
from tests.support.postgres import Rows

_TRIGGERS = """
CREATE TABLE seen_messages (
  session_id TEXT, seq BIGINT, role TEXT, run_id TEXT, fence BIGINT, holder TEXT, writer TEXT
);
CREATE TABLE seen_ends (run_id TEXT);
CREATE FUNCTION see_message() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO seen_messages
    SELECT NEW.session_id, NEW.seq, NEW.role, r.id, r.fence, p.name, current_setting('application_name')
    FROM runs r LEFT JOIN processes p ON p.number = r.fence WHERE r.id = NEW.body::json->>'runId';
  RETURN NEW;
END $$;
CREATE FUNCTION see_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.state NOT IN ('queued', 'running') AND OLD.state IN ('queued', 'running') THEN
    INSERT INTO seen_ends VALUES (NEW.id);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER see_message AFTER INSERT ON messages FOR EACH ROW EXECUTE FUNCTION see_message();
CREATE TRIGGER see_end AFTER UPDATE OF state ON runs FOR EACH ROW EXECUTE FUNCTION see_end();
"""


def watch(url: str) -> None:
    """Begin to write down what happens in a database that has its tables."""
    execute(url, _TRIGGERS)


def check(folder: Path, url: str, asked: Sequence[Asked]) -> str:
    """Check that everything was done once, by who was to do it; returns what was counted."""
    messages = [each for each in asked if not each.is_post]
    posts = [each for each in asked if each.is_post]
    with closing(Rows(url)) as rows:
        runs, moved = _check_ends(rows), _check_writers(rows)
        _check_messages(rows, messages)
        uncertain = _check_posts(rows, posts, Counter((folder / "wall.log").read_text().splitlines()))
        ((sessions,),) = rows.execute("SELECT count(*) FROM sessions WHERE spawned_by IS NULL").fetchall()
    return (
        f"{len(messages)} keys of messages taken once each, in {sessions} sessions\n"
        f"{len(posts)} posts, {uncertain} of them uncertain and the others there once\n"
        f"{runs} runs ended once each; {moved} times one went on in another process"
    )


def _check_ends(rows: Rows) -> int:
    """Check that every run ended, and once; returns how many there are."""
    ends = Counter(run_id for (run_id,) in rows.execute("SELECT run_id FROM seen_ends").fetchall())
    twice = [run_id for run_id, count in ends.items() if count > 1]
    assert not twice, f"runs that ended more than once: {twice}"
    runs = {run_id for (run_id,) in rows.execute("SELECT id FROM runs").fetchall()}
    assert runs == ends.keys(), f"runs that never ended: {runs - ends.keys()}"
    return len(runs)


def _check_writers(rows: Rows) -> int:
    """Check that only who held a run wrote its steps, and that nobody did who had lost it; returns how many changed."""
    found = rows.execute(
        "SELECT run_id, fence, holder, writer FROM seen_messages WHERE role <> 'user' ORDER BY run_id, seq"
    ).fetchall()
    foreign = [row for row in found if row[3] != f"backchannel {row[2]}"]
    assert not foreign, f"steps that were written by a process that did not hold the run: {foreign}"
    moved = 0
    for run_id, steps in groupby(found, key=lambda row: row[0]):
        fences = [fence for fence, _ in groupby(fence for _, fence, _, _ in steps)]
        assert len(fences) == len(set(fences)), f"processes took turns on {run_id}: {fences}"
        moved += len(fences) - 1
    return moved


def _check_messages(rows: Rows, asked: Sequence[Asked]) -> None:
    """Check that each key was taken once: one run, and one message."""
    known = dict(rows.execute("SELECT id, session_key FROM runs").fetchall())
    bodies = rows.execute("SELECT body FROM messages WHERE role = 'user'").fetchall()
    said = Counter(decode_message(body).text for (body,) in bodies)
    for each in asked:
        assert known.get(each.key) == each.session, f"asked for and lost: {each}"
        assert said[each.text] == 1, f"said {said[each.text]} times: {each}"


def _check_posts(rows: Rows, asked: Sequence[Asked], shown: Counter[str]) -> int:
    """Check that each post is in its chat once, or marked as uncertain; returns how many are."""
    posts = rows.execute("SELECT text, state FROM deliveries WHERE channel = 'wall'").fetchall()
    states = dict(posts)
    assert len(states) == len(posts), "a post was made twice"
    for each in asked:
        state, count = states[each.text], shown[each.text]
        assert (state, count) in (("sent", 1), ("uncertain", 0), ("uncertain", 1)), (each, state, count)
    return sum(state == "uncertain" for state in states.values())
