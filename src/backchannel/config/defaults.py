"""Defaults: the model of agents that name none, and the starter file of `backchannel init`.

A key in the environment decides, then a local Ollama, then the built-in demo model. Only the look for
Ollama touches the network, and only when no key is set; loading a configuration never does.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backchannel.config.schema import DEMO_MODEL, Config, DefaultModel
from backchannel.core.hosts import OLLAMA_VARIABLES, ollama_base

ANTHROPIC_MODEL = "anthropic/claude-sonnet-5-5"
OPENAI_MODEL = "openai/gpt-6.1-sol"

Probe: TypeAlias = Callable[[str], str | None]

_CONNECT_S = 0.1
_ANSWER_S = 0.5
_MAX_ANSWER_BYTES = 1024 * 1024


def probe_ollama(base: str) -> str | None:
    """Ask the Ollama at `base` (`http://host:port`) for the model it would use; `None` if there is none."""
    import http.client  # takes 10 ms to import, and is not needed where a key is set

    place = urlsplit(base)
    address = (place.hostname or "127.0.0.1", place.port or (443 if place.scheme == "https" else 80))
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
        connection = kind(*address, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", f"{place.path}/api/tags")
            answer = connection.getresponse()
            found = msgspec.json.decode(answer.read(_MAX_ANSWER_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError, ValueError, RecursionError):
        return None
    return _first_chat_model(found)


def default_model(env: Mapping[str, str], probe: Probe = probe_ollama) -> DefaultModel:
    """Find the model of agents that name none: a key in the environment, a local Ollama, else the demo."""
    if env.get("ANTHROPIC_API_KEY"):
        return DefaultModel(ANTHROPIC_MODEL, "ANTHROPIC_API_KEY is set")
    if env.get("OPENAI_API_KEY"):
        return DefaultModel(OPENAI_MODEL, "OPENAI_API_KEY is set")
    base = ollama_base(env)
    if base and (model := probe(base)):
        return DefaultModel(f"ollama/{model}", f"Ollama answers at {base}", f"{base}/v1")
    if variable := next((name for name in OLLAMA_VARIABLES if env.get(name)), None):
        return DEMO_MODEL._replace(why=f"{variable} is set, but no Ollama with a model answers there")
    return DEMO_MODEL._replace(why="no ANTHROPIC_API_KEY, no OPENAI_API_KEY and no local Ollama was found")


def needs_default_model(config: Config) -> bool:
    """Whether some agent names no model, so that a look for one is worth it."""
    return config.agents.defaults.model is None and any(a.model is None for a in config.agents.list)


def with_default_model(config: Config, found: DefaultModel) -> Config:
    """Let agents that name no model use the one that was found."""
    return replace(config, default_model=found)


def _first_chat_model(found: Any) -> str | None:
    models = found.get("models") if isinstance(found, dict) else None
    names = [m.get("name") for m in models if isinstance(m, dict)] if isinstance(models, list) else []
    return next((n for n in names if isinstance(n, str) and n and "embed" not in n), None)


_STARTER = """\
// Backchannel: the starter configuration. This is JSON5: comments, bare names and trailing commas are fine.
// After a change, `backchannel config check` says whether it is right; restart the gateway to use it.
// All settings: docs/reference/configuration.md.
{
  agents: {
    defaults: {
      // The model of all agents, as "provider/model". Left out: ANTHROPIC_API_KEY or OPENAI_API_KEY decides,
      // then a local Ollama, then a built-in demo model that works offline.
      // model: "anthropic/claude-sonnet-5-5",

      subagents: {
        allowAgents: ["*"], // every agent may start sub-agents under every other
      },

      // sandbox: { mode: "all" }, // or "non-main": all sessions but each agent's main one
    },

    list: [
      {
        id: "main",
        default: true, // answers whatever names no agent
        name: "Main",
        instructions: "Answer people briefly. Ask the researcher for facts and the writer for texts.",
      },
      {
        id: "researcher",
        name: "Researcher",
        instructions: "You find things out and answer with facts. Say so when you are not sure.",
      },
      {
        id: "writer",
        name: "Writer",
        // A longer text can live in a file beside this one: instructions: { file: "writer.md" },
        instructions: "You turn notes into clear, short texts.",
      },
    ],
  },

  tools: {
    // Agents see every session, and may reach those of other agents. The careful default is "tree":
    // only a session itself and what it spawned.
    sessions: { visibility: "all" },
    agentToAgent: { enabled: true, allow: ["main", "researcher", "writer"] },

    // Files and commands, in a folder of each agent. Commands run with all your rights, unless the session is
    // sandboxed (which needs the package bubblewrap): see docs/how-to/give-agents-tools.md and sandbox.md.
    // allow: ["group:sessions", "group:fs", "group:exec"],
  },

  // Tools of MCP servers, as every MCP client names them. An agent has those that tools.allow names, here with
  // "group:mcp:time". In a sandbox (above), uvx has to lie in /usr and needs `network: true` there:
  // mcp: { servers: { time: { command: "uvx", args: ["mcp-server-time"] } } },

  gateway: {
    host: "127.0.0.1",
    port: 18790,
    // A token is made at first start. To use your own (needed to listen on other addresses):
    // auth: { token: "${MY_TOKEN}" },
    // An OpenAI-style API at /v1/chat/completions:
    // http: { chatCompletions: true },
  },

  // A Telegram bot, with the token that @BotFather gives you (`pip install 'backchannel[telegram]'` first). Whoever
  // writes to it is sent a code, which you confirm with `backchannel pairing approve CODE`, and has a conversation of
  // their own: docs/how-to/telegram.md.
  // channels: { telegram: { adapter: "telegram", token: "${TELEGRAM_TOKEN}", pairing: true } },
  // session: { dmScope: "per-channel-peer" },

  // A model of your own, used as "local/my-model":
  // models: { providers: { local: { api: "openai", baseUrl: "http://127.0.0.1:8000/v1" } } },

  // A message by the clock:
  // cron: { jobs: [{ id: "morning", schedule: "0 9 * * *", tz: "Europe/Berlin", message: "What is new?" }] },
}
"""


def starter_config() -> str:
    """Write the starter file."""
    return _STARTER
