/**
 * Messages of a transcript as a person reads them: the speaker and the words.
 *
 * The transcript keeps the prompts of turns, announces and wakes, and control words, because models see them again. The
 * step in a message's provenance says what it is; only the gateway writes provenance.
 */

const CONTROL_WORDS = { REPLY_SKIP: "nothing more to say", ANNOUNCE_SKIP: "nothing to announce", NO_REPLY: "nothing to answer" };
const POST = /^Status: (.+)\nResult: ([^]*)\nStats: .+$/;

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
  if (message.compaction) return readSummary(message.compaction, whole);
  if (message.role === "assistant") return readReply(whole);
  if (message.role === "toolResult") return { who: "tool", name: message.toolName, text: whole, isMachinery: false };
  return { ...speaker(message), ...readSaid(message, whole) };
}

/** A summary stands folded, with what it covers. */
function readSummary({ messages, tokensBefore, tokensAfter, undoes }, whole) {
  const what = undoes ? `took back the summary of ${messages} messages` : `compacted ${messages} messages, ${tokens(tokensBefore)} → ${tokens(tokensAfter)} tokens`;
  return { who: "gateway", name: "Gateway", text: "", machinery: whole, what, isMachinery: true };
}

const tokens = (count) => (count < 1000 ? String(count) : `${String((count / 1000).toFixed(count < 9950 ? 1 : 0)).replace(/\.0$/, "")}k`);

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
  const { step, exchangeId, turn, maxTurns } = (message.role === "user" && message.provenance) || {};
  switch (step) {
    case "ask": {
      const [asked = "", ...context] = texts(message);
      return { text: asked, machinery: context.join("\n") || undefined, what: "asks", isMachinery: false };
    }
    case "turn":
      return said(unfenced(whole).join("\n"), whole, `turn ${turn} of ${maxTurns}`);
    case "announce":
      return hidden(whole, exchangeId ? "asked what the chat shall be told" : "asked what its requester shall be told");
    case "late_reply":
      return said(unfenced(whole).join("\n"), whole, "late reply");
    case "failure":
      return said(`(no reply: ${unfenced(whole).join(" ")})`, whole, "no reply");
    case "post":
      return readPost(whole);
    case "wake":
      return said(unfenced(whole).join("\n\n"), whole, "results of sub-agents");
    default:
      return { text: whole, isMachinery: false };
  }
}

/** The report of a sub-agent: its result is what it says, the rest of it one click away. */
function readPost(whole) {
  const post = POST.exec(whole);
  return post ? { text: post[2], machinery: whole, what: `result: ${post[1]}`, isMachinery: false } : { text: whole, isMachinery: false };
}

const said = (text, machinery, what) => ({ text, machinery, what, isMachinery: !text });
const hidden = (machinery, what) => ({ text: "", machinery, what, isMachinery: true });

/** Where the replies of a run go that is part of a flow: found in the message that it works on. */
export function audienceOf(message) {
  const { step, exchangeId, sourceSessionKey } = message?.provenance || {};
  if (!exchangeId) return undefined;
  if (step === "announce") return { announce: true };
  return sourceSessionKey ? { sessionKey: sourceSessionKey } : undefined;
}
