/**
 * Messages that were sent and are not confirmed yet.
 *
 * They are kept in the browser, per session, each with its key. After a lost connection, a reload, or in another view, a
 * message is sent again under the same key, and the gateway takes it once.
 */
import { gateway } from "./gateway.js";
import { readStored, storedKeys, useStored, writeStored } from "./live.js";

const PREFIX = "outbox.";
const RETRY_MS = 2_000;
const busy = new Set();
const listeners = new Map();

/** The messages of a session that are not confirmed: `{id, text, at, error?}`. */
export function useOutbox(key) {
  const [entries] = useStored(PREFIX + key, []);
  return entries;
}

/** Send what waits, now and after every reconnect, whatever is on the screen. */
export function startOutbox() {
  const flushAll = () => storedKeys(PREFIX).forEach((name) => flush(name.slice(PREFIX.length)));
  gateway.on("resync", flushAll);
}

/** Make drafts again of what is not sent: whoever logs in next must not send it in their name. */
export function withdrawAll() {
  for (const name of storedKeys(PREFIX)) {
    const draft = `draft.${name.slice(PREFIX.length)}`;
    const texts = readStored(name, []).map((entry) => entry.text);
    writeStored(draft, [readStored(draft, ""), ...texts].filter(Boolean).join("\n"));
    writeStored(name, undefined);
  }
}

/** Hear what became of each message of a session: `listener(entry, answer)`. */
export function onAnswer(key, listener) {
  listeners.set(key, listener);
  return () => listeners.get(key) === listener && listeners.delete(key);
}

export function sendLater(key, text) {
  change(key, (entries) => [...entries, newEntry(text)]);
  flush(key);
}

/** Send anew what was refused: under a new key, since the old one is that of the refused request. */
export function sendAgain(key, id) {
  change(key, (entries) => entries.map((entry) => (entry.id === id ? newEntry(entry.text) : entry)));
  flush(key);
}

export function dropUnsent(key, id) {
  change(key, (entries) => entries.filter((entry) => entry.id !== id));
}

function change(key, update) {
  const next = update(readStored(PREFIX + key, []));
  writeStored(PREFIX + key, next.length ? next : undefined);
}

const newEntry = (text) => ({ id: newKey(), text, at: Date.now() });

/** A key of its own for each message; `crypto.randomUUID` is missing where the page came by plain http. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Send the messages of a session, one after the other. */
async function flush(key) {
  if (busy.has(key)) return;
  busy.add(key);
  try {
    for (;;) {
      const entry = readStored(PREFIX + key, []).find((each) => !each.error);
      if (!entry || !(await send(key, entry))) return;
    }
  } finally {
    busy.delete(key);
  }
}

/** Whether the next one may follow: not while the gateway is away. */
async function send(key, entry) {
  try {
    const answer = await gateway.call("chat.send", { sessionKey: key, message: entry.text, idempotencyKey: entry.id });
    dropUnsent(key, entry.id);
    listeners.get(key)?.(entry, answer);
    return true;
  } catch (error) {
    if (error.code === "disconnected") return false; // sent again after the reconnect
    if (error.retryable) {
      setTimeout(() => flush(key), error.retryAfterMs || RETRY_MS);
      return false;
    }
    change(key, (entries) => entries.map((each) => (each.id === entry.id ? { ...each, error: error.message } : each)));
    return true;
  }
}
