"""How errors are told on the command line: the message, the next step, and an exit code."""

from __future__ import annotations

from backchannel.cli.options import Options
from backchannel.errors import ConfigError, GatewayError

FAILED = 1
USAGE = 2
NO_GATEWAY = 3
REFUSED = 4
DEGRADED = 5
INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    FAILED: "it failed: the gateway refused it, a run ended otherwise than ok, or the configuration has errors",
    USAGE: "the command line is wrong",
    NO_GATEWAY: "no gateway answers",
    REFUSED: "the gateway refuses the token, or the token lacks a scope",
    DEGRADED: "`status` only: the gateway works, and something is wrong",
    INTERRUPTED: "interrupted with Ctrl-C",
}

_REFUSALS = ("AUTH_TOKEN_MISMATCH", "scope_missing", "forbidden", "rate_limited")


_LISTED_BY = {
    "session_not_found": ("sessions", ("sessions",)),
    "run_not_found": ("runs", ("runs",)),
    "delivery_not_found": ("deliveries", ("deliveries",)),
    "token_not_found": ("tokens", ("tokens", "list")),
    "job_not_found": ("jobs", ("cron",)),
    "unknown_agent": ("agents", ("agents",)),
}


class CommandFailed(GatewayError):
    """A command cannot do what it was asked."""

    code = "command_failed"


def reason_of(error: GatewayError) -> str:
    """The stable word of an error, whichever side it comes from."""
    return getattr(error, "reason", "") or error.code


def exit_code_of(error: GatewayError) -> int:
    """The code that the program ends with."""
    reason = reason_of(error)
    if reason == "no_gateway":
        return NO_GATEWAY
    return REFUSED if reason in _REFUSALS else FAILED


def told(error: GatewayError, options: Options) -> str:
    """The message of an error. The gateway's own hint, in the words of its methods, gives way to the next step."""
    is_told_here = reason_of(error) in _LISTED_BY and reason_of(error) != "unknown_agent"
    what, hint, _ = error.message.rpartition(" (")
    return options.spell(what if is_told_here and hint and error.message.endswith(")") else error.message)


def next_step(error: GatewayError, options: Options) -> str | None:
    """Say what to do about an error, where its message does not say so itself."""
    if isinstance(error, ConfigError):
        return f"Change it, then see with: {options.command('config', 'check')}"
    match reason_of(error):
        case "AUTH_TOKEN_MISMATCH":
            return (
                f"{_who_serves(options)}The token is taken from BACKCHANNEL_TOKEN, else from the configuration, else "
                "from the file `token` in the state folder; --state names the folder that the gateway uses. An "
                "application that serves its folder has a token of its own: set BACKCHANNEL_TOKEN."
            )
        case "label_in_use":
            holder = str(getattr(error, "details", {}).get("sessionKey", "SESSION"))
            return f"Clear that one with: {options.command('sessions', 'label', holder, '--clear')}"
        case "scope_missing":
            scope = str(error.details.get("scope", "operator.admin")).removeprefix("operator.")
            create = options.command("tokens", "create", "--scope", scope)
            return f"Make a token that has it, with the operator's own: {create}"
        case reason if reason in _LISTED_BY:
            what, words = _LISTED_BY[reason]
            return f"See the {what} with: {options.command(*words)}"
        case "unknown_method" | "PROTOCOL_MISMATCH":
            return "The gateway is of another version than this program: restart it."
    return None


def _who_serves(options: Options) -> str:
    from backchannel.storage.address import load_address

    address = None if options.url else load_address(options.where.state_dir)
    return f"The state folder {options.where.state_dir} is served at {address}. " if address else ""
