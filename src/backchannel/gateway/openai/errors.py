"""What went wrong, in the form that these clients read, and whether they may send the request again.

Their libraries send a request again by themselves after 408, 409, 429 and 5xx. Where the message was taken, that would
run it once more: such answers are others, and all say `x-should-retry: false` but those after which it is right.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from backchannel.core.runs import Run, RunState
from backchannel.gateway.errors import NO_RETRY
from backchannel.gateway.events import error_of


def describe_failure(run: Run) -> dict[str, Any]:
    """Say why a run did not end well."""
    return {"message": error_of(run), "type": "run_failed", "param": None, "code": run.error_code}


def show_failure(run: Run) -> Response:
    """Show a run that did not end well: it was stopped, what it depends on failed, or the gateway did."""
    status = 422
    if run.state is RunState.ERROR:
        status = 424 if run.error_code == "model_failed" else 500
    return JSONResponse({"error": describe_failure(run)}, status_code=status, headers=NO_RETRY)
