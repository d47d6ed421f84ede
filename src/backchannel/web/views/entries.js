/** The rows of a transcript in stable groups, each tool result with its call. */
import { useMemo, useRef } from "../vendor/preact.js";
import { audienceOf, readMessage } from "../speech.js";

const GROUP = 16;

const readings = new WeakMap();

function reading(message) {
  let found = readings.get(message);
  if (!found) readings.set(message, (found = readMessage(message)));
  return found;
}

/**
 * Rows as entries: a tool's result stands with its call. Entries and groups stay the same objects while nothing in them
 * changes, and groups keep their place when older rows come, so that only what is new is rendered.
 */
export function useGroups(transcript) {
  const kept = useRef({ entries: new Map(), groups: [] });
  return useMemo(() => {
    const { entries, groups } = build(transcript, kept.current.entries);
    const before = new Map(kept.current.groups.map((group) => [group.id, group]));
    kept.current = { entries, groups: groups.map((group) => same(before.get(group.id), group)) };
    return kept.current.groups;
  }, [transcript.messages, transcript.notes, transcript]);
}

function same(before, group) {
  const isSame = before && before.entries.length === group.entries.length && before.entries.every((entry, index) => entry === group.entries[index]);
  return isSame ? before : group;
}

function build({ messages, notes, prepended }, known) {
  const results = new Map();
  const called = new Set();
  const asked = new Map();
  const undone = new Set();
  for (const message of messages) {
    if (message.compaction?.undoes) undone.add(message.compaction.undoes);
    if (message.role === "toolResult") results.set(message.toolCallId, message);
    else if (message.role === "user" && message.runId) asked.set(message.runId, message);
    for (const block of message.content || []) if (block.type === "toolCall") called.add(block.id);
  }
  const entries = new Map();
  const groups = new Map();
  const put = (at, entry) => {
    const id = Math.floor(at / GROUP);
    if (!groups.has(id)) groups.set(id, { id, entries: [] });
    groups.get(id).entries.push(entry);
  };
  const byRow = notesByRow(notes);
  byRow.get(undefined)?.forEach((note) => put(-prepended, noteEntry(note, entries, known)));
  messages.forEach((message, index) => {
    const at = index - prepended;
    const isInCall = message.role === "toolResult" && called.has(message.toolCallId);
    if (!isInCall) put(at, messageEntry(message, { results, asked, undone }, entries, known));
    byRow.get(message.id)?.forEach((note) => put(at, noteEntry(note, entries, known)));
  });
  return { entries, groups: [...groups.values()].sort((a, b) => a.id - b.id) };
}

function messageEntry(message, { results, asked, undone }, entries, known) {
  const calls = (message.content || []).filter((block) => block.type === "toolCall");
  const own = calls.map((call) => results.get(call.id));
  const audience = message.role === "assistant" ? audienceOf(asked.get(message.runId)) : undefined;
  const isUndone = undone.has(message.id);
  const before = known.get(message.id);
  const isSame = before && before.message === message && before.own.every((each, index) => each === own[index]) && Boolean(before.audience) === Boolean(audience) && before.isUndone === isUndone;
  const entry = isSame
    ? before
    : { id: message.id, message, reading: reading(message), own, results: new Map(calls.map((call, index) => [call.id, own[index]])), audience, isUndone };
  entries.set(message.id, entry);
  return entry;
}

function notesByRow(notes) {
  const found = new Map();
  for (const note of notes) found.set(note.after, [...(found.get(note.after) || []), note]);
  return found;
}

function noteEntry(note, entries, known) {
  const id = `note-${note.id}`;
  const entry = known.get(id) || { id, note };
  entries.set(id, entry);
  return entry;
}
