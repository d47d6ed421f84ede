/** One entry of a transcript: speaker and text, with tools and machinery folded away. */
import { Component, html, useState } from "../vendor/preact.js";
import { Icon } from "../icons.js";
import { gateway } from "../gateway.js";
import { Markdown, safeAddress } from "../markdown.js";
import { Button, CopyButton, Fold, Key, Text, When, sessionName, shortKey, visible } from "../parts.js";
import { href } from "../routes.js";
import { waitsForModel } from "./words.js";

/** Markdown is cut late: what comes after the cut is shown as it was written. */
const FIRST_CHARS = 20_000;
const FIRST_PLAIN_CHARS = 4_000;
const MORE_CHARS = 100_000;
const MORE_MARKDOWN_CHARS = 40_000;
/** A little more than that is shown at once. */
const SPARE = 1.2;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const ICONS = { person: "person", agent: "agents", session: "exchanges", tool: "tool", gateway: "gear" };

/** An entry is `{message, reading, results, audience}`; it is made anew only when one of these has changed. */
export class MessageRow extends Component {
  shouldComponentUpdate(next) {
    return ["entry", "showsAll", "isTarget", "run", "agent", "canRetry", "isContinued"].some((name) => next[name] !== this.props[name]);
  }

  render({ entry, showsAll, isTarget, isContinued, run, agent, sessionKey, onRetry, canRetry }) {
    const { message, reading } = entry;
    if (reading.isMachinery && !showsAll) return html`<${MachineryRow} entry=${entry} agent=${agent} isTarget=${isTarget} />`;
    return html`<article id=${`m-${message.id}`} class=${`message who-${reading.who} ${isTarget ? "target" : ""} ${isContinued ? "continued" : ""}`} tabindex=${isTarget ? "-1" : undefined}>
      <${Icon} name=${ICONS[reading.who]} size=${16} class="message-icon" />
      <div class="message-main">
        <${Head} entry=${entry} agent=${agent} sessionKey=${sessionKey} />
        <${Body} entry=${entry} showsAll=${showsAll} />
        ${run && html`<${RunNote} run=${run} onRetry=${onRetry} canRetry=${canRetry} />`}
      </div>
    </article>`;
  }
}

function Head({ entry, agent, sessionKey }) {
  const { message, reading, audience } = entry;
  return html`<header class="message-head">
    <${Speaker} reading=${reading} agent=${agent} />
    ${reading.what && html`<span class="chip">${reading.what}</span>`}
    ${audience?.sessionKey && html`<span class="chip">to <${Key} session=${audience.sessionKey} /></span>`}
    ${audience?.announce && html`<span class="chip">announce</span>`}
    ${message.provenance?.exchangeId && html`<a class="chip" href=${href("exchanges", message.provenance.exchangeId)}>exchange</a>`}
    ${reading.via && html`<span class="muted small"><${Text}>${reading.via}<//></span>`}
    <span class="muted small"><${When} ts=${message.timestamp} /></span>
    <span class="message-actions">
      ${reading.text && html`<${CopyButton} text=${reading.text} label="Copy message" />`}
      <a class="button quiet only-icon" href=${href("sessions", sessionKey, { message: message.id })} aria-label="Link to this message" title="Link to this message"><${Icon} name="link" size=${16} /></a>
      ${message.runId && html`<a class="button quiet only-icon" href=${href("runs", message.runId)} aria-label="Open its run" title="Open its run"><${Icon} name="runs" size=${16} /></a>`}
    </span>
  </header>`;
}

function Speaker({ reading, agent }) {
  if (reading.who === "session") return html`<strong class="speaker"><span class="speaker-kind">session</span> <${Key} session=${reading.sessionKey} /></strong>`;
  if (reading.who === "tool") return html`<strong class="speaker">Result of <code>${visible(reading.name || "a tool")}</code></strong>`;
  const name = reading.who === "agent" ? agent : reading.name;
  return html`<strong class="speaker" title=${reading.id}><${Text}>${name}<//></strong>`;
}

function Body({ entry, showsAll }) {
  const { message, reading, results } = entry;
  const blocks = message.content || [];
  const text = showsAll && reading.machinery ? wholeText(reading) : reading.text;
  return html`<div class="message-body">
    ${blocks.filter((block) => block.type === "thinking" && block.thinking).map((block, index) => html`<${Fold} key=${`thinking-${index}`} class="quiet-fold" summary="thinking"><${PlainText} text=${block.thinking} /><//>`)}
    ${text && html`<${LongText} text=${text} isMarkdown=${isByAgent(reading) && text === reading.text} isCode=${reading.who === "tool"} />`}
    ${blocks.filter((block) => block.type === "image" && !block.file).map((block, index) => html`<${Picture} key=${`image-${index}`} block=${block} />`)}
    ${blocks.filter((block) => block.type === "toolCall").map((call) => html`<${ToolCall} key=${call.id} call=${call} result=${results?.get(call.id)} />`)}
    ${reading.machinery && reading.text && !showsAll && html`<${Fold} class="quiet-fold" summary=${reading.what?.startsWith("result") ? "the whole report" : "what the model was told"}><${PlainText} text=${reading.machinery} /><//>`}
    ${message.stopReason === "aborted" && html`<p class="muted small">stopped here</p>`}
  </div>`;
}

/** Whether an agent wrote the text: that of this session, or of another one. */
const isByAgent = ({ who, what }) => who === "agent" || who === "session" || what === "results of sub-agents";

/** The context of a request stands beside its text; everything else holds the text itself. */
function wholeText(reading) {
  return reading.what === "asks" ? `${reading.text}\n\n${reading.machinery}` : reading.machinery;
}

/** A row that says nothing to people: one line, and one click from being seen. */
function MachineryRow({ entry, agent, isTarget }) {
  const { message, reading } = entry;
  const who = reading.who === "agent" ? agent : reading.who === "session" ? sessionName(reading.sessionKey) : reading.name;
  return html`<div id=${`m-${message.id}`} class=${`machinery ${isTarget ? "target" : ""}`}>
    <${Fold} class="quiet-fold" summary=${html`<${Text}>${who}<//>: ${reading.what || "nothing said"}${entry.isUndone ? ", taken back" : ""} <span class="machinery-time"><${When} ts=${message.timestamp} /></span>`}>
      <${PlainText} text=${reading.machinery || "(empty)"} />
    <//>
  </div>`;
}

/** Text of any length: the beginning at once, the rest in steps. */
export function LongText({ text, isMarkdown, isCode }) {
  const [steps, setSteps] = useState(0);
  const first = isMarkdown ? FIRST_CHARS : FIRST_PLAIN_CHARS;
  if (text.length <= first * SPARE) return html`<${Piece} text=${text} isMarkdown=${isMarkdown} isCode=${isCode} />`;
  const pieces = isMarkdown ? cut(text, steps, first, MORE_MARKDOWN_CHARS, ["\n\n", "\n"]) : cut(text, steps, first, MORE_CHARS, ["\n"]);
  const left = text.length - pieces.reduce((sum, piece) => sum + piece.length, 0);
  return html`<div class="long-text">
    ${(isMarkdown ? reopened(pieces) : pieces).map((piece, index) => html`<${Piece} key=${index} text=${piece} isMarkdown=${isMarkdown} isCode=${isCode} />`)}
    ${left > 0 && html`<div class="row"><${Button} onClick=${() => setSteps(steps + 1)}>Show more<//><span class="muted small">${size(left)} of ${size(text.length)} are left</span></div>`}
  </div>`;
}

/** The beginning of a text, and the pieces that were asked for since, each up to one of the `ends` where there is one. */
function cut(text, steps, first, more, ends) {
  const pieces = [];
  let from = 0;
  for (let step = 0; step <= steps && from < text.length; step++) {
    const limit = from + (step ? more : first);
    const end = ends.map((mark) => text.lastIndexOf(mark, limit - mark.length) + mark.length).find((at) => at > from + first / 2);
    const to = limit >= text.length ? text.length : end ?? limit;
    pieces.push(text.slice(from, to));
    from = to;
  }
  return pieces;
}

/** Pieces of Markdown of which each can be read by itself: a block of code that is cut through is opened again. */
function reopened(pieces) {
  let opening = "";
  return pieces.map((piece) => {
    const text = opening + piece;
    opening = openingOf(text);
    return text;
  });
}

/** The line that opens the block of code in which a text ends; empty where it ends in none. */
function openingOf(text) {
  let open;
  for (const line of text.split("\n")) {
    const [, mark, rest] = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    if (mark && !open) open = { line, mark };
    else if (mark?.startsWith(open?.mark) && !rest.trim()) open = undefined;
  }
  return open ? `${open.line}\n` : "";
}

function size(chars) {
  return chars < 1_000_000 ? `${Math.ceil(chars / 1000)} kB` : `${(chars / 1_000_000).toFixed(1)} MB`;
}

function Piece({ text, isMarkdown, isCode }) {
  if (isMarkdown) return html`<${Markdown} text=${text} />`;
  return html`<${PlainText} text=${text} isCode=${isCode} />`;
}

/** What people and programs wrote, as they wrote it. */
export class PlainText extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text;
  }

  render({ text, isCode }) {
    return html`<div class=${`plain ${isCode ? "mono" : ""}`} dir="auto">${visible(text)}</div>`;
  }
}

function Picture({ block }) {
  const isShown = block.data && PICTURES.includes(block.mimeType);
  if (isShown) return html`<img class="picture" alt="A picture of this message" src=${`data:${block.mimeType};base64,${block.data}`} />`;
  const safe = block.url && safeAddress(block.url);
  if (safe) return html`<p><a href=${safe} target="_blank" rel="noopener noreferrer">picture: ${visible(safe)}</a></p>`;
  return html`<p class="muted">a picture (${visible(block.mimeType)}) that this page does not show</p>`;
}

// Tools

export function ToolCall({ call, result, isRunning }) {
  const failed = result?.isError;
  const state = failed ? "failed" : result ? "" : isRunning ? "running" : "no result yet";
  const summary = html`<span class="tool-line"><${Icon} name="tool" size=${14} /><code class="tool-name">${visible(call.name)}</code>
    <span class="cut muted"><${Text}>${summaryOf(call)}<//></span>${state && html`<span class=${`badge tone-${failed ? "bad" : "busy"}`}>${state}</span>`}</span>`;
  return html`<${Fold} class="tool" summary=${summary}>${() => html`<${ToolDetails} call=${call} result=${result} />`}<//>
    ${result?.attached && html`<${Attached} copy=${result.attached} />`}`;
}

/** A file that is sent with the reply. */
function Attached({ copy }) {
  const [error, setError] = useState("");
  const save = () => gateway.save(copy.file, copy.name).then(() => setError(""), (failed) => setError(failed.message));
  return html`<p class="row"><${Button} onClick=${save}>${visible(copy.name)} (${Math.ceil(copy.size / 1024)} KB)<//>
    ${copy.caption && html`<span>${visible(copy.caption)}</span>`}${error && html`<span class="bad">${error}</span>`}</p>`;
}

function ToolDetails({ call, result }) {
  const text = result ? resultText(result) : "";
  const found = result ? linksOf(text) : [];
  return html`<div class="tool-details">
    <h4>Arguments</h4><${LongText} text=${pretty(call.arguments)} isCode=${true} />
    ${result && html`<h4>Result</h4><${LongText} text=${prettyText(text)} isCode=${true} />`}
    ${result && (result.content || []).filter((block) => block.type === "image").map((block, index) => html`<${Picture} key=${index} block=${block} />`)}
    ${found.length > 0 && html`<div class="row">${found.map((link) => html`<a key=${link.href} class="button" href=${link.href}>${link.word}</a>`)}</div>`}
  </div>`;
}

function summaryOf({ name, arguments: given }) {
  if (given && typeof given === "object") {
    if (name === "sessions_send") return `→ ${shortKey(given.sessionKey || given.label || "")}: ${given.message || ""}`.slice(0, 200);
    if (name === "sessions_spawn") return `${given.agentId ? `${given.agentId}: ` : ""}${given.task || ""}`.slice(0, 200);
  }
  const text = typeof given === "string" ? given : JSON.stringify(given ?? {});
  return text === "{}" ? "" : text.slice(0, 200);
}

function resultText(result) {
  return (result.content || []).filter((block) => block.type === "text").map((block) => block.text).join("\n");
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value ?? {}, null, 2);
}

function prettyText(text) {
  if (text.length > 200_000 || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Where a result of a session tool leads: the session that was asked or started, and the exchange. */
function linksOf(text) {
  if (text.length > 100_000) return [];
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    return [];
  }
  const links = [];
  const key = given?.childSessionKey || given?.sessionKey;
  if (typeof key === "string" && key.startsWith("agent:")) links.push({ href: href("sessions", key), word: `Open ${shortKey(key)}` });
  const exchange = typeof given?.runId === "string" && /^(.+)\/primary$/.exec(given.runId);
  if (exchange) links.push({ href: href("exchanges", exchange[1]), word: "Open the exchange" });
  return links;
}

/** How a run ended that gave no whole answer, or why it has not begun. */
export function RunNote({ run, onRetry, canRetry }) {
  const what = wordsOf(run);
  if (!what) return null;
  return html`<div class=${`run-note tone-${what.tone}`}>
    <span class="wrap"><${Text}>${what.text}<//></span>
    <a href=${href("runs", run.runId)}>what it did</a>
    ${what.canRetry && html`<${Button} icon="retry" onClick=${() => onRetry(run.runId)} disabledReason=${canRetry ? undefined : "This token may only read."}>Retry<//>`}
  </div>`;
}

function wordsOf(run) {
  if (run.status === "error" || run.status === "timeout") return { tone: "bad", canRetry: true, text: `The run ended as ${run.status}: ${run.error || "no reason was given"}` };
  if (run.status === "aborted") return { tone: "quiet", canRetry: true, text: "The run was stopped." };
  if (run.waitsFor?.kind === "budget") return { tone: "wait", text: `Waits for the budget ${run.waitsFor.budget}: too little is left for the next call.` };
  if (run.waitingFor === "function") return { tone: "wait", text: "Queued: the program whose function answers is not running." };
  if (run.waitingFor === "agent") return { tone: "wait", text: "Waits: no gateway at work has this agent." };
  if (run.waitingFor === "gateway") return { tone: "wait", text: "Queued: another gateway has this agent." };
  if (run.waitingFor === "approval") return { tone: "wait", text: "Waits for an owner to allow a call." };
  if (run.waitsFor) return { tone: "wait", canRetry: true, text: `It ${waitsForModel(run)}` };
  if (run.resumeAt) return { tone: "wait", canRetry: true, text: `Set aside after crashes: it is tried again at ${new Date(run.resumeAt).toLocaleTimeString()}.` };
  return null;
}
