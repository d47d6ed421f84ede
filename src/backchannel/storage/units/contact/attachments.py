"""Files that a run sends, taken in the commits of its tool calls."""

from __future__ import annotations

from backchannel.core.delivery.outgoing import FileCopy, read_file, write_file
from backchannel.core.runs import Run
from backchannel.storage.tables import ATTACHMENTS
from backchannel.storage.tx import Tx


def add(tx: Tx, run: Run, call_id: str, copy: FileCopy) -> None:
    """Record the file of a tool call, once. It is sent with the reply of the run."""
    row = tx.one("SELECT count(*) FROM attachments WHERE run_id = ?", run.id)
    number = 1 + (0 if row is None else int(row[0]))
    body = write_file(copy)
    tx.insert(ATTACHMENTS, ATTACHMENTS.or_skip, call_id=call_id, run_id=run.id, number=number, body=body)


def of_run(tx: Tx, run_id: str) -> tuple[FileCopy, ...]:
    """List the files of a run, in the order of its calls."""
    rows = tx.all("SELECT body FROM attachments WHERE run_id = ? ORDER BY number, call_id", run_id)
    return tuple(read_file(body) for (body,) in rows)
