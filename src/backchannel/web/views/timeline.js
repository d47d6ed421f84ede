/**
 * The timeline of a run: model calls and tools as bars on one axis.
 *
 * Between them, in words, is what happened to the run itself: a process that died, another try, a time set aside.
 */

import { html, useMemo, useState } from "../vendor/preact.js";
import { href } from "../routes.js";
import { Button, Fold, Key, Status, count, duration, money, preview, sessionName, visible } from "../parts.js";
import { Quote } from "./pieces.js";
import { buildScale } from "./scale.js";
import { STOPPED, clockTime, counted, isEnded, oneLine, pretty, until } from "./words.js";

const WORK = new Set(["model", "tool", "lost"]);
const SHOWN = 120; // of a long run the newest rows: each tick draws them anew while it is at work
const MOST_FOLDS = 8; // more of them would be noise
const BARS = new Set(["queued", "waiting", ...WORK]);

export function Timeline({ run, entries, now }) {
  const [shown, setShown] = useState(SHOWN);
  const rows = useMemo(() => pairUp(entries), [entries]);
  const start = Math.min(run.acceptedAt, ...entries.map((entry) => entry.at));
  const end = isEnded(run) ? Math.max(run.endedAt ?? start, ...entries.map((entry) => entry.endedAt ?? entry.at)) : Math.max(now, start);
  const endOf = (entry) => entry.endedAt ?? (isEnded(run) ? entry.at : end);
  const first = Math.max(0, rows.length - shown);
  const from = first > 0 ? rows[first].at : start;
  const scale = buildScale(rows.filter((row) => WORK.has(row.kind)).map((row) => ({ from: row.at, to: endOf(row) })), from, end);
  const folds = scale.folds.length > MOST_FOLDS ? [] : scale.folds;
  const axis = { start, scale, folds, endOf, now };
  return html`<div class="timeline" role="group" aria-labelledby="timeline-title">
    <${Axis} scale=${scale} folds=${folds} since=${from - start} />
    ${first > 0 && html`<div class="more"><span class="muted">${counted(first, "entry", "entries")} before these</span>
      <${Button} onClick=${() => setShown(shown + SHOWN * 2)}>Show earlier ones<//></div>`}
    <ol>${rows.slice(first).map((row, index) => (BARS.has(row.kind) ? html`<${Bar} key=${first + index} entry=${row} axis=${axis} run=${run} />`
      : html`<${Mark} key=${first + index} entry=${row} axis=${axis} run=${run} />`))}</ol>
  </div>`;
}

/** Joins an interruption with the moment in which the run went on, and a call with what it waits for. */
function pairUp(entries) {
  const rows = [];
  for (const entry of entries) {
    const broken = entry.kind === "resumed" && rows.findLast((row) => row.kind === "interrupted" && row.resumedAt === undefined);
    const calling = entry.kind === "waiting" && !entry.approvalId && rows.find((row) => row.kind === "tool" && row.callId === entry.callId);
    if (broken) broken.resumedAt = entry.at;
    else if (calling) calling.isWaiting = true;
    else rows.push(...lostWork(entry, entries), { ...entry });
  }
  return rows;
}

/** The work that an interruption cut off, of which nothing was kept: it is done again. */
function lostWork(entry, entries) {
  if (entry.kind !== "interrupted") return [];
  const before = entries.filter((other) => other !== entry && other.at <= entry.at && other.kind !== "interrupted");
  const isCalling = before.some((other) => other.kind === "tool" && (other.endedAt ?? Infinity) > entry.at);
  const since = Math.max(...before.map((other) => Math.min(other.endedAt ?? other.at, entry.at)));
  return isCalling || !(entry.at > since) ? [] : [{ kind: "lost", at: since, endedAt: entry.at }];
}

function Axis({ scale, folds, since }) {
  return html`<div class="axis" aria-hidden="true"><div class="axis-line">
    ${scale.ticks.map((tick) => html`<span class="tick" key=${tick.ms} style=${{ left: percent(tick.left) }}>${since + tick.ms
      ? `+${duration(since + tick.ms)}` : "0"}</span>`)}
    ${folds.map((fold) => html`<span class="fold-mark" key=${fold.left} style=${{ left: percent(fold.left), width: percent(fold.width) }}
      title=${`Nothing happened for ${duration(fold.ms)}`}>${duration(fold.ms)}</span>`)}
  </div></div>`;
}

const percent = (part) => `${(part * 100).toFixed(3)}%`;

const TITLES = { queued: "Accepted", model: "Model", waiting: "Waits", lost: "At work" };

const APPROVALS = { pending: "waits for an owner's word", approved: "approved", denied: "denied", expired: "nobody answered in time" };

const NOTES = {
  waiting: (entry) => APPROVALS[entry.status] ?? (entry.sessionKey ? `for ${sessionName(entry.sessionKey)}` : ""),
  lost: () => "broken off, done again",
  queued: (entry) => (entry.endedAt === undefined ? "waits in line" : entry.endedAt - entry.at > 50 ? "waited in line" : ""),
  model: (entry) => visible(entry.model),
  tool: (entry) => (entry.sessionKey ? `${entry.childKey ? "starts" : entry.isWaiting ? "waits for" : "to"} ${sessionName(entry.sessionKey)}`
    : "tool"),
};

function Bar({ entry, axis, run }) {
  const from = axis.scale.at(entry.at);
  const to = axis.scale.at(axis.endOf(entry));
  const isOpen = entry.endedAt === undefined && !isEnded(run);
  const took = duration(axis.endOf(entry) - entry.at);
  const title = entry.kind === "tool" ? visible(entry.name) : entry.approvalId ? `Approval of ${visible(entry.name)}` : (TITLES[entry.kind] ?? entry.kind);
  const tone = entry.isError || entry.error ? "bad" : entry.kind;
  const row = html`<span class="tl-name">
      <span class=${`tl-kind is-${tone}`} aria-hidden="true" />
      <span class="tl-title">${title}</span>
      ${(entry.isError || entry.error) && html`<${Status} status="error" />`}
      ${NOTES[entry.kind] && html`<span class="muted small">${NOTES[entry.kind](entry)}</span>`}
    </span>
    <span class="tl-track" aria-hidden="true">
      ${axis.folds.map((fold) => html`<span class="tl-fold" key=${fold.left} style=${{ left: percent(fold.left), width: percent(fold.width) }} />`)}
      <span class=${`tl-bar is-${tone} ${isOpen ? "is-open" : ""}`} style=${{ left: percent(from), width: percent(Math.max(to - from, 0)) }} />
    </span>
    <span class="tl-used number">${used(entry)}</span>
    <span class="tl-took number">${isOpen ? `${took} so far` : took}</span>`;
  const details = detailsOf(entry, axis);
  return html`<li class="tl-row">
    ${details ? html`<${Fold} summary=${row} label=${`${title}, ${took}`}><div class="tl-more">${details}</div><//>`
      : html`<div class="tl-plain">${row}</div>`}
    <${Excerpt} entry=${entry} />
  </li>`;
}

/** Tokens and cost of a model call, on one line. */
function used(entry) {
  const tokens = entry.tokensIn === undefined && entry.tokensOut === undefined ? ""
    : `${count(entry.tokensIn ?? 0)} in${cached(entry)}, ${count(entry.tokensOut ?? 0)} out`;
  return [tokens, money(entry.cost)].filter(Boolean).join(" · ");
}

/** The share of a request that was read from the provider's cache. */
function cached(entry) {
  if (entry.tokensCached === undefined || !entry.tokensIn) return "";
  return ` (${Math.round(100 * entry.tokensCached / entry.tokensIn)} % cached)`;
}

/** The line under a bar that tells most rows without opening them. */
function Excerpt({ entry }) {
  const text = entry.error ?? entry.text;
  if (!text) return null;
  return html`<div class=${`tl-excerpt ${entry.error ? "bad-text" : ""}`} dir="auto">${entry.kind === "model" ? preview(oneLine(text, 140)) : oneLine(text, 140)}</div>`;
}

function detailsOf(entry, axis) {
  const isKnown = ["text", "thinking", "arguments", "result", "error", "tokensIn", "tokensOut", "childKey",
    "exchangeId", "moved"].some((name) => entry[name] !== undefined);
  if (!isKnown) return null;
  return html`
    <p class="small muted">
      ${clockTime(entry.at, axis.now)}${entry.endedAt ? ` to ${clockTime(entry.endedAt, axis.now)}` : ""}
      ${entry.step !== undefined && html`, step ${entry.step}`}
    </p>
    <${Links} entry=${entry} />
    ${entry.moved && html`<p class="small muted">Its request does not just extend the one before: ${visible(entry.moved)}.</p>`}
    ${entry.error && html`<${Part} name="Error"><${Quote} text=${entry.error} kind="bad" /><//>`}
    ${entry.thinking && html`<${Part} name="Thinking"><${Quote} text=${entry.thinking} kind="faint" /><//>`}
    ${entry.text && html`<${Part} name=${entry.kind === "queued" ? "Message" : "Text"}>
      <${Quote} text=${entry.text} isMarkdown=${entry.kind === "model"} /><//>`}
    ${entry.arguments !== undefined && html`<${Part} name="Arguments"><pre class="code" tabindex="0">${pretty(entry.arguments)}</pre><//>`}
    ${entry.result !== undefined && html`<${Part} name=${entry.isError ? "Result, an error" : "Result"}>
      <pre class=${`code ${entry.isError ? "bad" : ""}`} tabindex="0">${prettyResult(entry.result)}</pre><//>`}`;
}

const Part = ({ name, children }) => html`<h3>${name}</h3>${children}`;

/** A result is JSON as text, mostly. */
function prettyResult(result) {
  if (typeof result !== "string") return pretty(result);
  try {
    return pretty(JSON.parse(result));
  } catch {
    return result;
  }
}

function Links({ entry }) {
  if (!entry.childKey && !entry.exchangeId && !entry.deliveryId) return null;
  return html`<p class="links">
    ${entry.childKey && html`<span>Started <${Key} session=${entry.childKey} /></span>`}
    ${entry.exchangeId && html`<a href=${href("exchanges", [entry.exchangeId])}>See the exchange</a>`}
    ${entry.deliveryId && html`<a href=${href("deliveries", [], { id: entry.deliveryId })}>See the receipt</a>`}
  </p>`;
}

/** What happened to the run itself, in words. */
function Mark({ entry, axis, run }) {
  const { tone, text } = sayMark(entry, axis, run);
  const left = axis.scale.at(entry.at);
  return html`<li class=${`tl-mark is-${tone}`}>
    <span class="tl-mark-text"><span class=${`tl-kind is-${tone}`} aria-hidden="true" /><span>${text}</span></span>
    <span class="tl-track" aria-hidden="true"><span class=${`tl-point is-${tone}`} style=${{ left: percent(left) }} /></span>
    <span class="tl-used" />
    <span class="tl-took number muted" title=${clockTime(entry.at, axis.now)}>+${duration(entry.at - axis.start)}</span>
    <${Links} entry=${entry} />
  </li>`;
}

function sayMark(entry, axis, run) {
  const why = entry.error ? `: ${oneLine(entry.error, 300)}` : "";
  switch (entry.kind) {
    case "interrupted":
      return { tone: "bad", text: `${INTERRUPTED[entry.text] ?? "The process was last seen here, then it died"}${wentOn(entry, run)}` };
    case "resumed":
      return { tone: "good", text: "It went on here" };
    case "retry":
      return { tone: "warn", text: `The model failed, and was asked again${entry.endedAt ? ` after ${duration(entry.endedAt - entry.at)}`
        : ""}${why}` };
    case "waits":
      return { tone: "warn", text: `No model answered, and it waited${entry.endedAt ? ` until ${clockTime(entry.endedAt, axis.now)}` : ""}${why}` };
    case "setAside":
      return { tone: "warn", text: setAside(entry, axis) };
    case "retried":
      return { tone: "info", text: `A person started it once more${againAfter(entry.text)}` };
    case "reset":
      return { tone: "info", text: `The conversation began anew${entry.status === "daily" ? ", for a new day" : ", after a pause"}` };
    case "ended":
      if (entry.error === STOPPED) return { tone: "info", text: "It was stopped here" };
      return { tone: entry.error || run.status !== "ok" ? "bad" : "good", text: `Ended: ${entry.status ?? run.status}${why}` };
    default:
      return { tone: "info", text: entry.text ?? entry.kind };
  }
}

function againAfter(error) {
  if (!error) return "";
  return error === STOPPED ? ", after it was stopped" : `, after it had failed: ${oneLine(error, 300)}`;
}

/** A death is known by the last sign of life before it; a stop has a time. */
const INTERRUPTED = { "the gateway was stopped": "The gateway was stopped here" };

function wentOn(entry, run) {
  if (entry.resumedAt !== undefined) return `, and it went on after ${duration(entry.resumedAt - entry.at)}`;
  return isEnded(run) ? "" : ", and it has not gone on yet";
}

function setAside(entry, axis) {
  if (entry.endedAt === undefined) return "Set aside after crashes: it is tried again by itself";
  const rest = entry.endedAt > axis.now ? `, tried again ${until(entry.endedAt, axis.now)}` : "";
  return `Set aside after crashes, until ${clockTime(entry.endedAt, axis.now)}${rest}`;
}
