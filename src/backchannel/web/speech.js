/**
 * What a message of a transcript is to a person: who speaks, what is said, and what of it is machinery.
 *
 * The transcript keeps the prompts of turns, announces and wakes, and control words, because models see them again. The
 * rules are those of `core/readable.py`: only a message that the gateway itself has put there is read in this way, which
 * its provenance says, and only the gateway writes provenance.
 */

const CONTROL_WORDS = { REPLY_SKIP: "nothing more to say", ANNOUNCE_SKIP: "nothing to announce", NO_REPLY: "nothing to answer" };
const TURN = /^\[Agent-to-agent exchange, reply-back turn (\d+) of (\d+)\]/;
const EXCHANGE_ANNOUNCE = "[Agent-to-agent exchange, announce step]";
const LATE = "[Late reply from ";
const FAILURE = "[No reply from ";
const SPAWN_ANNOUNCE = "[Sub-agent, announce step]";
const POST = /^Status: (.+)\nResult: ([^]*)\nStats: .+$/;
const WAKE = "[Results of your sub-agents]";

/** All text blocks of a message, joined. */
export function textOf(message) {
  return texts(message).join("\n");
}

function texts(message) {
  return (message.content || []).filter((block) => block.type === "text").map((block) => block.text);
}

/** The texts that stand between fences, in order. */
export function unfenced(text) {
  const found = [];
  let inside = [];
  let fence = "";
  for (const line of text.split("\n")) {
    if (!fence && /^`{3,}$/.test(line)) {
      fence = line;
      inside = [];
    } else if (fence && line === fence) {
      found.push(inside.join("\n"));
      fence = "";
    } else if (fence) inside.push(line);
  }
  return found;
}

/** The meaning of a reply that is exactly a control word; nothing for any other text. */
export function controlWord(text) {
  return CONTROL_WORDS[text.trim()];
}

/**
 * @returns {{who: "person"|"agent"|"session"|"tool"|"gateway", name?: string, sessionKey?: string, via?: string,
 *   text: string, machinery?: string, what?: string, isMachinery: boolean}}
 *   `text` is what is said; `machinery` the whole text where that is more; `isMachinery`: nothing in it is for people
 */
export function readMessage(message) {
  const whole = textOf(message);
  if (message.role === "assistant") return readReply(whole);
  if (message.role === "toolResult") return { who: "tool", name: message.toolName, text: whole, isMachinery: false };
  return { ...speaker(message), ...readSaid(message, whole) };
}

function readReply(whole) {
  const meaning = controlWord(whole);
  if (meaning) return { who: "agent", text: "", machinery: whole, what: `${meaning} (${whole.trim()})`, isMachinery: true };
  return { who: "agent", text: whole, isMachinery: false };
}

function speaker({ provenance, sender, chat, label, role }) {
  if (provenance?.kind === "inter_session") {
    const key = provenance.sourceSessionKey;
    return key ? { who: "session", sessionKey: key } : { who: "person", name: "Operator", via: provenance.sourceTool };
  }
  if (provenance?.kind === "internal_system" || (!provenance && role === "system")) return { who: "gateway", name: system(provenance, label) };
  const via = place(provenance, chat);
  if (sender) return { who: "person", name: sender.name || sender.id, id: sender.id, via };
  return { who: "person", name: label || "Operator", via };
}

function place(provenance, chat) {
  const channel = provenance?.sourceChannel;
  if (!chat || chat.type === "direct") return channel;
  return `${chat.name || chat.id}${channel ? ` · ${channel}` : ""}`;
}

function system(provenance, label) {
  if (provenance?.sourceTool === "cron") return "Cron job";
  if (provenance?.sourceChannel === "hook") return label ? `Hook ${label}` : "Hook";
  if (provenance?.sourceTool === "chat.inject") return label ? `Note of ${label}` : "Note";
  return label || "Gateway";
}

function readSaid(message, whole) {
  const { provenance } = message;
  if (provenance?.sourceTool === "sessions_send" && provenance.exchangeId) return readExchange(message, whole);
  if (provenance?.sourceTool === "sessions_spawn" && provenance.kind === "internal_system") return readSpawn(whole);
  if (provenance?.sourceTool === "sessions_spawn" && provenance.kind === "inter_session") return readPost(whole);
  return { text: whole, isMachinery: false };
}

/** The report of a sub-agent: its result is what it says, the rest of it one click away. */
function readPost(whole) {
  const post = POST.exec(whole);
  return post ? { text: post[2], machinery: whole, what: `result: ${post[1]}`, isMachinery: false } : { text: whole, isMachinery: false };
}

function readExchange(message, whole) {
  if (whole.startsWith(EXCHANGE_ANNOUNCE)) return hidden(whole, "asked what the chat shall be told");
  const turn = TURN.exec(whole);
  if (turn) return said(unfenced(whole).join("\n"), whole, `turn ${turn[1]} of ${turn[2]}`);
  if (whole.startsWith(LATE)) return said(unfenced(whole).join("\n"), whole, "late reply");
  if (whole.startsWith(FAILURE)) return said(`(no reply: ${unfenced(whole).join(" ")})`, whole, "no reply");
  const [asked = "", ...context] = texts(message);
  return { text: asked, machinery: context.join("\n") || undefined, what: "asks", isMachinery: false };
}

function readSpawn(whole) {
  if (whole.startsWith(SPAWN_ANNOUNCE)) return hidden(whole, "asked what its requester shall be told");
  if (whole.startsWith(WAKE)) return said(unfenced(whole).join("\n\n"), whole, "results of sub-agents");
  return { text: whole, isMachinery: false };
}

const said = (text, machinery, what) => ({ text, machinery, what, isMachinery: !text });
const hidden = (machinery, what) => ({ text: "", machinery, what, isMachinery: true });

/** Where the replies of a run go that is part of a flow: found in the message that it works on. */
export function audienceOf(message) {
  const key = message?.provenance?.sourceSessionKey;
  const { provenance, content } = message || {};
  if (provenance?.sourceTool === "sessions_send" && provenance.exchangeId) {
    const whole = (content || []).find((block) => block.type === "text")?.text || "";
    if (whole.startsWith(EXCHANGE_ANNOUNCE)) return { announce: true };
    return key ? { sessionKey: key } : undefined;
  }
  return undefined;
}
