"""The starter file that `backchannel init` writes: three agents that may talk to each other."""

from __future__ import annotations

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
  },

  gateway: {
    host: "127.0.0.1",
    port: 18790,
    // A token is made at first start. To use your own (needed to listen on other addresses):
    // auth: { token: "${MY_TOKEN}" },
    // An OpenAI-style API at /v1/chat/completions:
    // http: { chatCompletions: true },
  },

  // A model of your own, used as "local/my-model":
  // models: { providers: { local: { api: "openai", baseUrl: "http://127.0.0.1:8000/v1" } } },

  // A message by the clock:
  // cron: { jobs: [{ id: "morning", schedule: "0 9 * * *", tz: "Europe/Berlin", message: "What is new?" }] },
}
"""


def starter_config() -> str:
    """Write the starter file."""
    return _STARTER
