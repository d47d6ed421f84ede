"""How errors are told on the command line: the message, the next step, and an exit code."""

from __future__ import annotations

from backchannel.cli.options import Options
from backchannel.errors import ConfigError, GatewayError

FAILED = 1
USAGE = 2
NO_GATEWAY = 3
REFUSED = 4
INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    FAILED: "it failed: the gateway refused it, a run ended otherwise than ok, or the configuration has errors",
    USAGE: "the command line is wrong",
    NO_GATEWAY: "no gateway answers",
    REFUSED: "the gateway refuses the token, or the token lacks a scope",
    INTERRUPTED: "interrupted with Ctrl-C",
}

_REFUSALS = ("AUTH_TOKEN_MISMATCH", "scope_missing", "forbidden", "rate_limited")


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


def next_step(error: GatewayError, options: Options) -> str | None:
    """Say what to do about an error, where its message does not say so itself."""
    if isinstance(error, ConfigError):
        return f"Change it, then see with: {options.command('config', 'check')}"
    match reason_of(error):
        case "AUTH_TOKEN_MISMATCH":
            return (
                "The token is taken from BACKCHANNEL_TOKEN, else from the configuration, else from the file `token` "
                "in the state folder; --state names the folder that the gateway uses."
            )
        case "scope_missing":
            return f"Make a token that has it: {options.command('tokens', 'create', '--scope', 'admin')}"
        case "session_not_found":
            return f"See the sessions with: {options.command('sessions')}"
        case "run_not_found":
            return f"See the runs with: {options.command('runs')}"
        case "token_not_found":
            return f"See the tokens with: {options.command('tokens', 'list')}"
        case "job_not_found":
            return f"See the jobs with: {options.command('cron')}"
        case "unknown_agent":
            return f"See the agents with: {options.command('status')}"
        case "unknown_method" | "PROTOCOL_MISMATCH":
            return "The gateway is of another version than this program: restart it."
    return None
