/** Texts, figures, states and names in rows, as people read them. */
import { html } from "./vendor/preact.js";
import { useTicker } from "./live.js";
import { href } from "./routes.js";

// Text

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f\u0080-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Make control characters and marks that turn the direction of text visible: `␛`, `⟨U+202E⟩`. */
export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    .replace(CONTROLS, (mark) => {
      const code = mark.charCodeAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
    });
}

/** The text of an agent where there is room for a line: without the marks that Markdown has around words. */
export function preview(text) {
  return visible(text).replace(/\*\*|`+/g, "");
}

/** A text of somebody else, in one line of ours: its direction ends with it. */
export function Text({ children }) {
  return html`<bdi>${visible([children].flat().join(""))}</bdi>`;
}

// Figures

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `12s`, `5m`, `3h`, `2d`: how long ago, in as few characters as tell it. */
export function age(ts, now = Date.now()) {
  const ms = Math.max(0, now - ts);
  if (ms < 5_000) return "now";
  if (ms < MINUTE) return `${Math.floor(ms / 1000)}s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)}h`;
  return ms < 365 * DAY ? `${Math.floor(ms / DAY)}d` : `${Math.floor(ms / (365 * DAY))}y`;
}

/** How long something took: `340ms`, `2.4s`, `5m12s`, `1h2m`. */
export function duration(ms) {
  if (ms === undefined || ms === null) return "–";
  if (ms < 1_000) return `${Math.round(ms)}ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)}s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${seconds % 60}s`;
  return `${Math.floor(seconds / 3600)}h${Math.floor((seconds % 3600) / 60)}m`;
}

const sameDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const otherDay = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** The time of day, with the date where it is not today. */
export function clock(ts) {
  const isToday = new Date(ts).toDateString() === new Date().toDateString();
  return (isToday ? sameDay : otherDay).format(ts);
}

/** How long ago; the whole time as its title. */
export function Age({ ts, suffix = "" }) {
  const now = useTicker(10_000);
  if (!ts) return html`<span class="muted">–</span>`;
  const shown = age(ts, now);
  return html`<time dateTime=${new Date(ts).toISOString()} title=${whole.format(ts)}>${shown}${shown === "now" ? "" : suffix}</time>`;
}

/** A moment, as a clock shows it. */
export function When({ ts }) {
  if (!ts) return html`<span class="muted">–</span>`;
  return html`<time dateTime=${new Date(ts).toISOString()} title=${whole.format(ts)}>${clock(ts)}</time>`;
}

export function money(usd) {
  if (usd === undefined || usd === null) return "";
  if (usd > 0 && usd < 0.0001) return "<$0.0001";
  return usd > 0 && usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

/** A price; a dash where none is known. */
export function Cost({ usd }) {
  if (usd === undefined || usd === null) return html`<span class="muted" title="no price is known">–</span>`;
  return html`<span class="number">${money(usd)}</span>`;
}

export function count(n) {
  if (n < 1_000) return String(n);
  if (n < 999_950) return `${(n / 1_000).toFixed(n < 9_950 ? 1 : 0)}k`;
  return `${(n / 1_000_000).toFixed(1)}m`;
}

/** A number of tokens. */
export function Tokens({ n }) {
  if (n === undefined || n === null) return html`<span class="muted">–</span>`;
  return html`<span class="number" title=${`${n.toLocaleString()} tokens`}>${count(n)}</span>`;
}

// States

const TONES = {
  running: "busy", connecting: "busy", sending: "busy", started: "busy", primary: "busy", handover: "busy", turn: "busy", announce: "busy",
  queued: "wait", pending: "wait", waiting: "wait", scheduled: "wait", setAside: "wait", interrupted: "wait",
  ok: "good", sent: "good", done: "good", success: "good", resumed: "good", accepted: "good", announced: "good",
  forbidden: "bad", error: "bad", failed: "bad", timeout: "bad", down: "bad", unavailable: "bad",
  uncertain: "warn", degraded: "warn",
};
const WORDS = { no_channel: "no channel", setAside: "set aside" };

/** A state: a dot and its word, so that colour never says it alone. */
export function Status({ status, title }) {
  if (!status) return html`<span class="muted">–</span>`;
  return html`<span class=${`status tone-${TONES[status] || "quiet"}`} title=${title}><span class="dot" aria-hidden="true"></span>${WORDS[status] || status}</span>`;
}

// Sessions

/** What a session does now; its row says of one that is idle how its last run ended. */
export function activity(session) {
  if (session.archivedAt) return "archived";
  return session.hasActiveRun === false ? "idle" : session.status;
}

/** How people call a session: its name, else its key without what every key begins with. */
export function sessionName(session) {
  const { key, label, displayName, name } = typeof session === "string" ? { key: session } : session;
  return visible(label || displayName || name || shortKey(key));
}

const UUID = /([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/gi;

/** A key without `agent:`, with the beginning of each id in it and, for main sessions, only the agent's id. */
export function shortKey(key = "") {
  const [first, agent, ...rest] = key.replace(UUID, "$1…").split(":");
  if (first !== "agent" || !agent || !rest.length) return key;
  return rest.length === 1 && rest[0] === "main" ? agent : `${agent}:${rest.join(":")}`;
}

/** A session's name, linked; its whole key as the title. `session` is a row or a key. */
export function Key({ session, params }) {
  if (!session) return html`<span class="muted">operator</span>`;
  const key = typeof session === "string" ? session : session.key;
  return html`<a class="key" href=${href("sessions", key, params)} title=${key}><bdi>${sessionName(session)}</bdi></a>`;
}
