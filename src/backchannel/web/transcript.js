/**
 * A session's transcript in one tab: loaded rows, waiting messages, and the streaming reply.
 *
 * Rows are the truth. A `session.message` event appends its row; everything else that might have been missed is read with
 * `chat.history {after}` from the last row that is known: after a reconnect, a gap, or a change of the session. Streaming text
 * is only shown until its row is there.
 */
import { gateway } from "./gateway.js";
import { textOf } from "./speech.js";

const FIRST_PAGE = 100;
const PAGE = 200;
const SYNC_MS = 300;
const OPEN = ["queued", "running"];
const MOST_NOTES = 50;
const NEAR_END = 50;

export class Transcript {
  key;
  sessionId = undefined;
  follows = undefined;
  /** Rows, oldest first; a new array whenever they change. */
  messages = [];
  /** Accepted, and not yet in the transcript. */
  pending = [];
  pendingLeftOut = 0;
  #pendingNext = undefined;
  #morePending = []; // pages of the inbox behind the first, as far as somebody asked for them
  hasOlder = false;
  /** How many rows were put before those that were there first: groups of rows stay the same when older ones come. */
  prepended = 0;
  isLoaded = false;
  /** No such session yet: the first message makes it. */
  isNew = false;
  error = null;
  /** What is being said now, by run: `{text, thinking, tools: [{callId, name, args, isDone, isError}], isInternal}`. */
  live = new Map();
  /** The newest runs, by id. */
  runs = new Map();
  /** Answers that are in no transcript, such as those to commands: `{id, text, timestamp, after}`. */
  notes = [];
  /** What this tab has sent and the gateway has confirmed, until it is read as a row: `{id, text, at}`. */
  expected = [];

  #ids = new Set();
  #changed;
  #offs = [];
  #timer = 0;
  #frame = 0;
  #isSyncing = false;
  #isWanted = false;
  #isOver = false;
  #lastSeq = 0;
  #early = [];
  /** Runs whose end was heard and whose rows are not read yet. */
  #ended = new Map();

  /** With `pastId` it is an earlier transcript of the session, which has no events. */
  constructor(key, changed, pastId) {
    this.key = key;
    this.pastId = pastId;
    this.#changed = changed;
  }

  /** What reading methods are given to name this transcript. */
  get address() {
    return { sessionKey: this.key, ...(this.pastId && { transcriptId: this.pastId }) };
  }

  start() {
    this.#offs = this.pastId ? [gateway.on("resync", () => this.#resync())] : [
      gateway.on("resync", () => this.#resync()),
      gateway.on("session.message", (payload) => payload.sessionKey === this.key && this.#appended(payload)),
      gateway.on("sessions.changed", (payload) => payload.sessionKey === this.key && this.syncSoon()),
      gateway.on("chat", (payload) => payload.sessionKey === this.key && this.#chat(payload)),
      gateway.on("agent", (payload) => payload.sessionKey === this.key && this.#agent(payload)),
    ];
    this.#resync();
  }

  stop() {
    this.#isOver = true;
    this.#offs.forEach((off) => off());
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    if (gateway.state === "open" && !this.pastId) gateway.call("sessions.messages.unsubscribe", { key: this.key }).catch(() => {});
  }

  /** Read what is new, soon. */
  syncSoon(ms = SYNC_MS) {
    if (this.#isSyncing) this.#isWanted = true;
    else if (!this.#timer) this.#timer = setTimeout(() => this.#sync(), ms);
  }

  /** Read a page of older rows; `beforeChange` is called right before they are shown. */
  async loadOlder(limit = PAGE, beforeChange) {
    const [first] = this.messages;
    if (!this.hasOlder || !first) return;
    const sessionId = this.sessionId;
    const page = await gateway.call("chat.history", { ...this.address, before: first.id, limit });
    if (page.sessionId !== sessionId || this.messages[0] !== first) return;
    const older = page.messages.filter((message) => !this.#ids.has(message.id));
    older.forEach((message) => this.#ids.add(message.id));
    this.messages = [...older, ...this.messages];
    this.prepended += older.length;
    this.hasOlder = page.hasMore;
    beforeChange?.();
    this.#changed();
  }

  has(messageId) {
    return this.#ids.has(messageId);
  }

  /** Whether one of the newest rows shows a tool call. */
  hasCall(callId) {
    return this.messages.slice(-NEAR_END).some((message) => message.content?.some((block) => block.type === "toolCall" && block.id === callId));
  }

  /** Whether a run, by the id of its message's key, is known to the gateway. */
  knowsRun(runId) {
    return this.runs.has(runId) || this.messages.some((message) => message.runId === runId) || this.pending.some((message) => message.runId === runId);
  }

  /** The run that this session works on now. */
  get activeRun() {
    for (const run of this.runs.values()) if (run.status === "running") return run;
    return undefined;
  }

  expect(entry) {
    this.expected = [...this.expected, entry];
    this.syncSoon(0);
  }

  addNote(id, text) {
    if (this.notes.some((note) => note.id === id)) return;
    const after = this.messages.at(-1)?.id;
    this.notes = [...this.notes, { id, text, timestamp: Date.now(), after }].slice(-MOST_NOTES);
    this.#tell();
  }

  // Reading rows

  #resync() {
    this.#lastSeq = 0;
    this.syncSoon(0);
  }

  async #sync() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isSyncing = true;
    this.#isWanted = false;
    const ended = [...this.#ended.keys()];
    const { expected } = this;
    try {
      if (!this.pastId) await gateway.call("sessions.messages.subscribe", { key: this.key });
      await this.#readRows();
      if (!this.pastId) await this.#readRuns();
      this.error = null;
      this.expected = this.expected.filter((entry) => !expected.includes(entry));
      ended.forEach((runId) => this.#settle(runId));
    } catch (error) {
      this.#failed(error);
    }
    if (this.#isOver) return;
    this.#isSyncing = false;
    const early = this.#early;
    this.#early = [];
    early.forEach((payload) => this.#appended(payload));
    this.#tell();
    if (this.#isWanted) this.syncSoon();
  }

  async #readRows() {
    const last = this.messages.at(-1);
    if (!last) return this.#readNewest();
    let after = last.id;
    for (;;) {
      let page;
      try {
        page = await gateway.call("chat.history", { ...this.address, after, limit: PAGE });
      } catch (error) {
        if (error.kind !== "NOT_FOUND" || error.code === "session_not_found") throw error;
        return this.#readNewest(); // the row is in another transcript: the session was reset
      }
      if (page.sessionId !== this.sessionId) return this.#readNewest();
      this.#append(page.messages);
      this.#setPending(page);
      if (!page.hasMore || !page.messages.length) return undefined;
      after = page.messages.at(-1).id;
    }
  }

  async #readNewest() {
    const page = await gateway.call("chat.history", { ...this.address, limit: FIRST_PAGE });
    if (this.sessionId !== undefined && page.sessionId !== this.sessionId) {
      this.live.clear();
      this.notes = this.notes.slice(-1).map((note) => ({ ...note, after: undefined })); // the answer to /new
    }
    this.key = page.sessionKey;
    this.sessionId = page.sessionId;
    this.follows = page.follows;
    this.messages = page.messages;
    this.prepended = 0;
    this.#ids = new Set(page.messages.map((message) => message.id));
    this.hasOlder = page.hasMore;
    this.#setPending(page);
    for (const [runId, live] of this.live) if (this.isSaid(runId, live.text)) this.#stepEnded(runId);
    this.isLoaded = true;
    this.isNew = !page.sessionId;
  }

  #setPending(page) {
    const isFirst = new Set(page.pending.map((message) => message.id));
    this.#morePending = page.pendingLeftOut ? this.#morePending.filter((message) => !this.#ids.has(message.id) && !isFirst.has(message.id)) : [];
    this.pending = [...page.pending.filter((message) => !this.#ids.has(message.id)), ...this.#morePending];
    this.pendingLeftOut = Math.max(0, (page.pendingLeftOut || 0) - this.#morePending.length);
    if (!this.#morePending.length) this.#pendingNext = page.pendingNext;
  }

  /** Read the next page of the inbox. */
  async readMorePending() {
    const cursor = this.#pendingNext;
    if (!cursor) return;
    const page = await gateway.call("chat.history", { ...this.address, limit: 1, pendingCursor: cursor });
    if (page.sessionId !== this.sessionId || cursor !== this.#pendingNext) return;
    this.#morePending = [...this.#morePending, ...page.pending];
    this.pending = [...this.pending, ...page.pending];
    this.pendingLeftOut = page.pendingLeftOut || 0;
    this.#pendingNext = page.pendingNext;
    this.#tell();
  }

  async #readRuns() {
    if (this.isNew) return;
    const { runs } = await gateway.call("runs.list", { sessionKey: this.key, limit: 30 });
    this.runs = new Map(runs.map((run) => [run.runId, run]));
    for (const runId of this.live.keys()) {
      const run = this.runs.get(runId);
      if (run && !OPEN.includes(run.status)) this.live.delete(runId);
    }
    for (const { runId, retry } of runs) if (retry && !this.live.has(runId)) this.#grow(runId, { retry }); // told before this tab listened
  }

  #failed(error) {
    if (error.code === "disconnected") return;
    if (error.code === "session_not_found" || error.code === "invalid_session_key") {
      this.isNew = error.code === "session_not_found";
      this.isLoaded = true;
      this.error = this.isNew ? null : error;
      this.messages = [];
      this.#ids.clear();
      this.sessionId = undefined;
    } else this.error = error;
  }

  #append(rows) {
    const fresh = rows.filter((message) => !this.#ids.has(message.id));
    if (!fresh.length) return;
    fresh.forEach((message) => this.#ids.add(message.id));
    this.messages = [...this.messages, ...fresh];
    const isThere = new Set(fresh.map((message) => message.id));
    if (this.pending.some((message) => isThere.has(message.id))) this.pending = this.pending.filter((message) => !isThere.has(message.id));
    for (const message of fresh) if (message.role === "assistant") this.#stepEnded(message.runId);
  }

  /** What was streamed is a row now; a next step starts anew. */
  #stepEnded(runId) {
    const live = this.live.get(runId);
    if (live) this.live.set(runId, { ...live, text: "", thinking: "" });
  }

  /** Whether a text that was streamed is in the run's newest row: an event may come after the row was read. */
  isSaid(runId, text) {
    const row = this.messages.slice(-NEAR_END).findLast((message) => message.role === "assistant" && message.runId === runId);
    return Boolean(row && text && textOf(row).startsWith(text.trimEnd()));
  }

  // Events

  #appended(payload) {
    if (this.#isSyncing || !this.isLoaded) {
      this.#early.push(payload);
      return;
    }
    const isGap = this.#lastSeq > 0 && payload.messageSeq > this.#lastSeq + 1;
    if (payload.sessionId !== this.sessionId || isGap) {
      this.#lastSeq = 0;
      this.syncSoon(0);
      return;
    }
    this.#lastSeq = Math.max(this.#lastSeq, payload.messageSeq);
    this.#append([payload.message]);
    this.#tell();
  }

  #chat(payload) {
    const { runId, state } = payload;
    const text = payload.message ? textOf(payload.message) : "";
    if (state === "delta") return; // what it is saying now is in `agent` events
    this.#ended.set(runId, { state, text, error: payload.errorMessage });
    this.syncSoon(0);
  }

  #agent({ runId, stream, data }) {
    const isInternal = data.backchannel?.internal;
    if (stream === "lifecycle" && data.phase === "start") this.#grow(runId, { isInternal, startedAt: data.startedAt });
    else if (stream === "lifecycle") {
      if (!this.#ended.has(runId)) this.#ended.set(runId, { state: "ended", text: "" });
      this.syncSoon(0);
    } else if (stream === "assistant") {
      if (!this.isSaid(runId, data.text)) this.#grow(runId, { text: data.text, isInternal });
    } else if (stream === "thinking") this.#grow(runId, { thinking: (this.live.get(runId)?.thinking || "") + data.delta });
    else if (stream === "tool") this.#tool(runId, data);
    else if (stream === "retry") this.#grow(runId, { text: "", thinking: "", retry: data });
  }

  #tool(runId, data) {
    const tools = (this.live.get(runId)?.tools || []).filter((tool) => tool.callId !== data.toolCallId);
    if (data.phase === "start") tools.push({ callId: data.toolCallId, name: data.name, args: data.args });
    this.#grow(runId, { tools });
  }

  #grow(runId, change) {
    const before = this.live.get(runId) || { text: "", thinking: "", tools: [], startedAt: Date.now() };
    this.live.set(runId, { ...before, retry: undefined, ...change });
    this.#tell();
  }

  /** A run has ended and its rows are read: what was streamed goes, and what no row holds stays as a note. */
  #settle(runId) {
    const end = this.#ended.get(runId);
    this.#ended.delete(runId);
    this.live.delete(runId);
    const isRow = this.messages.some((message) => message.role === "assistant" && message.runId === runId);
    if (end.state !== "final" || isRow || !end.text.trim()) return;
    const isKnown = this.messages.slice(-50).some((message) => textOf(message) === end.text);
    if (!isKnown) this.addNote(runId, end.text);
  }

  /** Tell the view once a frame, however much happens. */
  #tell() {
    if (this.#isOver || this.#frame) return;
    const tell = () => {
      this.#frame = 0;
      if (!this.#isOver) this.#changed();
    };
    this.#frame = document.hidden ? setTimeout(tell, 100) : requestAnimationFrame(tell);
  }
}
