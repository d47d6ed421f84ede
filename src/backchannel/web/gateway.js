/**
 * The connection to the gateway: one WebSocket, requests answered by id, events by name.
 *
 * It comes back by itself. Events are hints and rows are the truth: after every connect, a gap in the numbers of the
 * events, or a long silence, listeners of "resync" read their rows again.
 *
 *     closed ── start ──▶ connecting ── hello ──▶ open
 *        ▲                    │  ▲                  │
 *        └──── logout ────────┤  └── back-off ◀─────┘ lost
 *                             └── the token is refused ──▶ refused (login starts again)
 */

const TOKEN_KEY = "backchannel.token";
const PROTOCOL = 4;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 8_000;
const CONNECT_MS = 10_000;
const CALL_WAITS_MS = 10_000;
const SILENT_TICKS = 3;
const SCOPES = ["operator.read", "operator.write", "operator.admin"];

/** A request that failed: `code` is the stable word, `kind` the coarse word of the wire. */
export class GatewayError extends Error {
  constructor({ code, message, details, retryable, retryAfterMs } = {}) {
    super(message || "the gateway gave no reason");
    this.name = "GatewayError";
    this.kind = code || "UNAVAILABLE";
    this.code = details?.code || code || "unknown";
    this.details = details || {};
    this.retryable = Boolean(retryable);
    this.retryAfterMs = retryAfterMs;
  }
}

const lost = (message) => new GatewayError({ code: "disconnected", message, retryable: true });

function remembered() {
  try {
    return localStorage.getItem(TOKEN_KEY) || "";
  } catch {
    return ""; // storage is switched off: one logs in again on each load
  }
}

function remember(token) {
  try {
    if (token) localStorage.setItem(TOKEN_KEY, token);
    else localStorage.removeItem(TOKEN_KEY);
  } catch {
    // the same
  }
}

/** Take a token from the address, once, and remove it from there, so that no history or screenshot keeps it. */
function tokenOfAddress() {
  const found = /^#token=([^&]+)(?:&(.*))?$/.exec(location.hash);
  if (!found) return "";
  history.replaceState(null, "", location.pathname + (found[2]?.startsWith("/") ? `#${found[2]}` : "#/sessions"));
  try {
    return decodeURIComponent(found[1]).trim();
  } catch {
    return found[1].trim();
  }
}

class Gateway {
  state = "closed";
  /** The last refusal. */
  error = null;
  /** What `connect` answered. */
  hello = null;
  /** When the next attempt is made, while there is no connection. */
  nextTryAt = 0;

  #socket = null;
  #token = "";
  /** A token that has not been accepted yet: it replaces the one that is kept only if it is right. */
  #candidate = "";
  #nextId = 1;
  #calls = new Map();
  #listeners = new Map();
  #stateListeners = new Set();
  #pause = FIRST_PAUSE_MS;
  #retryTimer = 0;
  #silenceTimer = 0;
  #lastSeq = 0;

  /** Connect with the token of the address or the one that is kept, and stay connected. */
  start() {
    this.#candidate = tokenOfAddress();
    this.#token = remembered();
    addEventListener("hashchange", () => {
      const token = tokenOfAddress();
      if (token) this.login(token);
    });
    addEventListener("online", () => this.#hurry());
    addEventListener("focus", () => this.#hurry());
    addEventListener("pageshow", () => this.#hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.#hurry());
    addEventListener("storage", (event) => event.key === TOKEN_KEY && this.#tokenChanged(event.newValue || ""));
    if (this.#candidate || this.#token) this.#connect();
    else this.#set("refused", null);
  }

  login(token) {
    this.#candidate = token.trim();
    this.#pause = FIRST_PAUSE_MS;
    this.#drop();
    this.#connect();
  }

  logout() {
    remember("");
    this.#token = this.#candidate = "";
    this.hello = null;
    this.#drop();
    this.#set("refused", null);
  }

  /** Another tab logged in or out. */
  #tokenChanged(token) {
    if (token === this.#token) return;
    this.#token = token;
    this.#candidate = "";
    this.#drop();
    if (token) this.#connect();
    else this.#set("refused", null);
  }

  /** Whether the token allows a scope; a scope includes those before it. */
  has(scope) {
    const granted = this.hello?.auth?.scopes || [];
    return SCOPES.slice(SCOPES.indexOf(scope)).some((each) => granted.includes(each));
  }

  /** Whether this gateway knows a method: an older one may not. */
  knows(method) {
    return Boolean(this.hello?.features?.methods?.includes(method));
  }

  on(event, listener) {
    const listeners = this.#listeners.get(event) || new Set();
    this.#listeners.set(event, listeners);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }

  onState(listener) {
    this.#stateListeners.add(listener);
    return () => this.#stateListeners.delete(listener);
  }

  /** Save a file that an agent sent: a plain link could not carry the token. */
  async save(file, name) {
    const answer = await fetch(`media/${file}/${encodeURIComponent(name)}`, { headers: { Authorization: `Bearer ${this.#token}` } });
    if (!answer.ok) throw new GatewayError({ code: "UNAVAILABLE", message: `the file cannot be had (${answer.status})` });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  /** Ask for something. Waits for the connection; throws GatewayError. */
  async call(method, params = {}) {
    await this.#opened();
    return this.#ask(method, params);
  }

  #ask(method, params) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return Promise.reject(lost("the connection to the gateway was lost"));
    const id = String(this.#nextId++);
    const frame = JSON.stringify({ type: "req", id, method, params });
    const most = this.hello?.policy?.maxPayload;
    if (most && frame.length * 3 > most && new Blob([frame]).size > most) return Promise.reject(tooLarge(most));
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.#socket.send(frame);
    });
  }

  #opened() {
    if (this.state === "open") return Promise.resolve();
    if (this.state === "refused") return Promise.reject(this.error || lost("log in first"));
    return new Promise((resolve, reject) => {
      const end = (settle) => {
        clearTimeout(timer);
        off();
        settle();
      };
      const timer = setTimeout(() => end(() => reject(lost("the gateway does not answer"))), CALL_WAITS_MS);
      const off = this.onState(() => {
        if (this.state === "open") end(resolve);
        else if (this.state === "refused") end(() => reject(this.error || lost("log in first")));
      });
    });
  }

  // The socket

  #connect() {
    clearTimeout(this.#retryTimer);
    this.nextTryAt = 0;
    this.#set("connecting", this.error);
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`);
    this.#socket = socket;
    this.#lastSeq = 0;
    const tooLong = setTimeout(() => socket.close(), CONNECT_MS);
    socket.onmessage = (message) => {
      if (socket !== this.#socket) return;
      this.#heard();
      const frame = JSON.parse(message.data);
      if (frame.type === "res") this.#answered(frame);
      else if (frame.event === "connect.challenge") this.#greet(socket, tooLong);
      if (frame.type === "event") this.#happened(frame);
    };
    socket.onclose = () => {
      clearTimeout(tooLong);
      if (socket === this.#socket) this.#lostIt();
    };
  }

  async #greet(socket, tooLong) {
    const token = this.#candidate || this.#token;
    const client = { id: "backchannel-page", version: "1", platform: "web", mode: "webchat" };
    try {
      const hello = await this.#ask("connect", {
        minProtocol: PROTOCOL,
        maxProtocol: PROTOCOL,
        client,
        role: "operator",
        auth: { token },
      });
      clearTimeout(tooLong);
      this.hello = hello;
      if (!this.has("operator.read")) throw notForPeople();
      await this.#ask("sessions.subscribe", {}); // before anyone reads: what changes after a read is heard
    } catch (error) {
      if (socket === this.#socket) this.#refused(error);
      return;
    }
    if (socket !== this.#socket) return;
    this.#keep(token);
    this.#pause = FIRST_PAUSE_MS;
    this.#set("open", null);
    this.#emit("resync", {});
  }

  #keep(token) {
    if (this.#candidate) remember(token);
    this.#token = token;
    this.#candidate = "";
  }

  #refused(error) {
    const isWrong = error.code === "rate_limited"; // a right token is let in at once, however many wrong ones came
    if (error.retryable && !isWrong) return this.#socket?.close();
    const hasOther = this.#candidate && this.#token && this.#candidate !== this.#token;
    this.#candidate = "";
    this.#drop();
    if (hasOther) return this.#connect(); // a link with a wrong token does not log anyone out
    this.#set("refused", error);
  }

  #answered(frame) {
    const call = this.#calls.get(frame.id);
    this.#calls.delete(frame.id);
    if (!call) return;
    if (frame.ok) call.resolve(frame.payload);
    else call.reject(new GatewayError(frame.error));
  }

  #happened(frame) {
    const isGap = this.#lastSeq > 0 && frame.seq > this.#lastSeq + 1;
    this.#lastSeq = frame.seq;
    this.#emit(frame.event, frame.payload);
    if (isGap && this.state === "open") this.#emit("resync", {});
  }

  #emit(event, payload) {
    for (const name of [event, "*"]) {
      for (const listener of [...(this.#listeners.get(name) || [])]) listener(payload, event);
    }
  }

  /** Something came: the gateway is alive. Three ticks without anything mean that it is not. */
  #heard() {
    clearTimeout(this.#silenceTimer);
    const tick = this.hello?.policy?.tickIntervalMs || 15_000;
    const socket = this.#socket;
    this.#silenceTimer = setTimeout(() => socket === this.#socket && this.#lostIt(), SILENT_TICKS * tick);
  }

  #lostIt() {
    this.#drop();
    const wait = this.#pause * (0.75 + Math.random() / 2);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE_MS);
    this.nextTryAt = Date.now() + wait;
    this.#retryTimer = setTimeout(() => this.#connect(), wait);
    this.#set("connecting", this.error);
  }

  /** Forget the socket; what was asked of it is answered with an error that says so. */
  #drop() {
    clearTimeout(this.#retryTimer);
    clearTimeout(this.#silenceTimer);
    const socket = this.#socket;
    this.#socket = null;
    if (socket) socket.close();
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) call.reject(lost("the connection to the gateway was lost"));
  }

  /** Try at once if there is only a pause between two attempts. */
  #hurry() {
    if (this.state === "connecting" && !this.#socket) this.#connect();
  }

  #set(state, error) {
    this.state = state;
    this.error = error;
    for (const listener of [...this.#stateListeners]) listener();
  }
}

/** The gateway would close the connection for it, and again each time that it is sent. */
function tooLarge(most) {
  return new GatewayError({
    code: "INVALID_REQUEST",
    message: `this is too large: the gateway takes ${Math.floor(most / 1_000_000)} MB at a time`,
    details: { code: "payload_too_large" },
  });
}

function notForPeople() {
  return new GatewayError({
    code: "FORBIDDEN",
    message: "this token is an agent's or a node's, and may not look around: use an operator's",
    details: { code: "not_an_operator" },
  });
}

export const gateway = new Gateway();
