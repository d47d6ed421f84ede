"""Configurations of each generation, the oldest first, and what they are called today."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from backchannel.config import Config


class Example(NamedTuple):
    """A file as somebody wrote it then, and as it is written now."""

    then: str
    now: str


def plain(config: Config) -> Config:
    """A configuration without what is told about it."""
    shown: Config = replace(config, file=None, warnings=())
    return shown


EXAMPLES = {
    "surface: a send policy": Example(
        """{
  "session": {
    "sendPolicy": {
      "rules": [
        {
          "match": { "surface": "signal", "chatType": "group" },
          "action": "deny"
        }
      ],
      "default": "allow"
    }
  }
}
""",
        """{
  "session": {
    "sendPolicy": {
      "rules": [
        {
          "match": { "channel": "signal", "chatType": "group" },
          "action": "deny"
        }
      ],
      "default": "allow"
    }
  }
}
""",
    ),
    "provider: a send policy": Example(
        """{
  "session": {
    "scope": "global",
    "agentToAgent": { "maxPingPongTurns": 2 },
    "sendPolicy": {
      "rules": [
        { "match": { "provider": "telegram", "chatType": "direct" }, "action": "allow" }
      ],
      "default": "deny"
    }
  }
}
""",
        """{
  "session": {
    "scope": "global",
    "agentToAgent": { "maxPingPongTurns": 2 },
    "sendPolicy": {
      "rules": [
        { "match": { "channel": "telegram", "chatType": "direct" }, "action": "allow" }
      ],
      "default": "deny"
    }
  }
}
""",
    ),
    "provider: what a sandbox shows": Example(
        """{
  agent: {
    sandbox: {
      // the careful choice is "spawned"
      sessionToolsVisibility: "all" // or "spawned"
    }
  }
}
""",
        """{
  agents: {
    defaults: {
      sandbox: {
        // the careful choice is "spawned"
        sessionToolsVisibility: "all" // or "spawned"
      }
    }
  }
}
""",
    ),
    "provider: which agents may be spawned": Example(
        """{
  routing: {
    agents: {
      planner: { subagents: { allowAgents: ["coder"] } },
      coder: { subagents: { allowAgents: ["*"] } },
    },
  },
}
""",
        """{
  agents: {
    list: [
      { id: "planner", subagents: { allowAgents: ["coder"] } },
      { id: "coder", subagents: { allowAgents: ["*"] } },
    ],
  },
}
""",
    ),
    "provider: sub-agents and their tools": Example(
        """{
  agent: {
    subagents: {
      tools: { allow: ["sessions_history"], deny: ["shell"] }, // one tool back
      archiveAfterMinutes: 90,
    },
  },
}
""",
        """{
  agents: {
    defaults: {
      subagents: {
        archiveAfterMinutes: 90,
      },
    },
  },
  tools: {
    subagents: {
      tools: { allow: ["sessions_history"], deny: ["shell"] }, // one tool back
    },
  },
}
""",
    ),
    "provider: agents that may talk": Example(
        '{ routing: { agentToAgent: { enabled: true, allow: ["plan*"] }, agents: { planner: {} } } }\n',
        '{ tools: { agentToAgent: { enabled: true, allow: ["plan*"] } }, agents: { list: [{ id: "planner" }] } }\n',
    ),
    "provider: who answers where": Example(
        """{
  agents: { list: [{ id: "main" }, { id: "ops" }] },
  bindings: [{ match: { provider: "signal", accountId: "work" }, agentId: "ops" }],
}
""",
        """{
  agents: { list: [{ id: "main" }, { id: "ops" }] },
  bindings: [{ match: { channel: "signal", accountId: "work" }, agentId: "ops" }],
}
""",
    ),
    "channel: a send policy and defaults": Example(
        *[
            """{
  session: {
    sendPolicy: { rules: [{ match: { channel: "slack", chatType: "channel" }, action: "deny" }], default: "allow" },
  },
  agents: {
    defaults: { sandbox: { sessionToolsVisibility: "spawned" }, subagents: { archiveAfterMinutes: 15 } },
    list: [{ id: "planner", subagents: { allowAgents: ["*"] } }],
  },
  tools: { subagents: { tools: { deny: ["shell"] } } },
}
"""
        ]
        * 2
    ),
    "idle minutes: when sessions begin anew": Example(
        """{
  session: {
    // Two hours.
    idleMinutes: 120,
  },
}
""",
        """{
  session: {
    // Two hours.
    reset: { mode: "idle", idleMinutes: 120 },
  },
}
""",
    ),
    "resetByType: when sessions begin anew": Example(
        """{
  session: {
    reset: { mode: "daily", atHour: 5 },
    resetByType: {
      dm: { mode: "idle", idleMinutes: 240 },
      group: { mode: "off" },
    },
    idleMinutes: 90,
  },
}
""",
        """{
  session: {
    reset: {
      mode: "daily",
      atHour: 5,
      idleMinutes: 90,
      byType: {
        direct: { mode: "idle", idleMinutes: 240 },
        group: { mode: "off" },
      },
    },
  },
}
""",
    ),
    "visibility: what tools see": Example(
        *[
            """{
  tools: {
    sessions: {
      // "self" | "tree" | "agent" | "all"
      visibility: "agent",
    },
  },
  agents: { defaults: { sandbox: { sessionToolsVisibility: "all" } } },
}
"""
        ]
        * 2
    ),
}
