/** One exchange as two columns: the requester on the left, the target on the right. */

import { html } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Age, CopyButton, Cost, ErrorNote, Key, Skeleton, Status, Text, duration, sessionName } from "../parts.js";
import { Back, Facts, Quote } from "./pieces.js";
import { clockTime, inWords, isControlWord, place, receiptInWords, sayControls, shortId } from "./words.js";

const EVENTS = ["agent", "delivery", "sessions.changed"];

export function ExchangeView({ id }) {
  const { data, error, reload } = useLive(() => gateway.call("exchanges.get", { id }), [id], {
    events: EVENTS,
    when: (event, payload) => concerns(data?.exchange, event, payload),
    minMs: 300,
  });
  const exchange = data?.exchange.id === id ? data.exchange : undefined;
  const now = useTicker(exchange && exchange.state !== "done" ? 1000 : 30000);
  return html`<section class="page" aria-labelledby="exchange-title">
    <${Back} view="exchanges">Exchanges<//>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!exchange && !error && html`<${Skeleton} />`}
    ${exchange && html`<${Head} exchange=${exchange} now=${now} /><${Course} exchange=${exchange} />
      <${Conversation} exchange=${exchange} now=${now} /><${End} exchange=${exchange} now=${now} />`}
  </section>`;
}

function concerns(exchange, event, payload) {
  if (!exchange) return false;
  if (event === "delivery") return payload.exchangeId === exchange.id;
  if (event === "agent" && payload.stream !== "lifecycle") return false;
  return payload.sessionKey === exchange.target.sessionKey || payload.sessionKey === exchange.requester?.sessionKey;
}

function Head({ exchange, now }) {
  return html`<header class="page-head">
      <div class="grow">
        <h1 id="exchange-title">Exchange <span class="mono" title=${exchange.id}>${shortId(exchange.id)}</span> <${CopyButton}
          text=${exchange.id} /></h1>
        <p class="headline"><${Status} status=${exchange.state} /> <span class="muted">${headline(exchange)}</span></p>
      </div>
    </header>
    <${Facts} facts=${{
      Began: html`${clockTime(exchange.createdAt, now)} <span class="muted">(<${Age} ts=${exchange.createdAt} />)</span>`,
      Took: exchange.state === "done" ? duration(exchange.updatedAt - exchange.createdAt) : undefined,
      Turns: `${exchange.turn} of at most ${exchange.maxTurns}`,
      Tokens: sum(exchange.conversation, (step) => step.tokens).toLocaleString("en"),
      Cost: exchange.cost === undefined ? undefined : html`<${Cost} usd=${exchange.cost} />`,
      Path: exchange.path?.length > 2 ? html`<span
        class="inline-list">${exchange.path.map((key, index) => html`<span key=${index}>${index > 0 ? "→ " : ""}
          <${Key} session=${key} /></span>`)}</span>` : undefined,
    }} />`;
}

const sum = (steps, value) => (steps ?? []).reduce((total, step) => total + (value(step) ?? 0), 0);

function headline(exchange) {
  switch (exchange.state) {
    case "primary":
      return "the target works on the message";
    case "handover":
      return "the reply is there, and the one who waits is about to have it";
    case "turn":
      return `turn ${exchange.turn} of at most ${exchange.maxTurns}`;
    case "announce":
      return "the target says what its own chat shall be told";
    default:
      return howItEnded(exchange);
  }
}

function howItEnded({ outcome, reason, receipt }) {
  if (outcome === "announced" && receipt && receipt.state !== "sent") return `announced; the announce ${receiptInWords(receipt)}`;
  return outcome ? `${outcome.replace("_", " ")}${reason ? `: ${reason}` : ""}` : "over";
}

/** The way an exchange goes, and where on it this one is. */
function Course({ exchange }) {
  const order = ["primary", "turn", "announce", "done"];
  const at = order.indexOf(exchange.state === "handover" ? "primary" : exchange.state);
  const steps = [
    { name: "Message and reply", note: "" },
    { name: "Turns", note: exchange.turn === 0 && at > 1 ? "none" : String(exchange.turn) },
    { name: "Announce", note: at > 2 && exchange.outcome !== "announced" ? (exchange.outcome ?? "").replace("_", " ") : "" },
    { name: "Receipt", note: exchange.receipt && html`<${Status} status=${exchange.receipt.state} />` },
  ];
  return html`<ol class="course" aria-label="Where it is">
    ${steps.map((step, index) => html`<li key=${step.name} class=${index < at ? "past" : index === at ? "here" : "ahead"}
      aria-current=${index === at ? "step" : undefined}>
      <span class="course-dot" aria-hidden="true" /><span>${step.name}</span>${step.note && html`<span class="muted small">${step.note}</span>`}
    </li>`)}
  </ol>`;
}

function Conversation({ exchange, now }) {
  const requester = exchange.requester?.sessionKey;
  return html`<div class="talk">
    <div class="talk-heads" aria-hidden="true">
      <div><span class="muted small">Requester</span> <strong>${requester ? sessionName(requester) : "the operator"}</strong></div>
      <div><span class="muted small">Target</span> <strong>${sessionName(exchange.target.sessionKey)}</strong></div>
    </div>
    <ol aria-label="Conversation">
      <${Said} side="left" who=${requester} step="message" at=${exchange.createdAt} text=${exchange.message} isMarkdown=${Boolean(requester)}
        now=${now} />
      ${sides(exchange).map(({ side, step, name }) => html`<${Step} key=${step.runId} side=${side} step=${step} name=${name} now=${now} />`)}
      <${Receipt} exchange=${exchange} now=${now} />
    </ol>
  </div>`;
}

const STEPS = { primary: "reply", announce: "announce to its own chat" };

/** Tells for each run on which side it speaks: turns change sides, beginning with the requester; all else is the target's. */
function sides(exchange) {
  let turns = 0;
  return (exchange.conversation ?? []).map((step) => {
    if (step.kind !== "turn") return { step, side: "right", name: STEPS[step.kind] ?? step.kind };
    turns += 1;
    return { step, side: turns % 2 ? "left" : "right", name: `turn ${turns}` };
  });
}

function Step({ side, step, name, now }) {
  const isWord = step.isControl || isControlWord(step.reply);
  const said = isWord ? inWords(step.control ?? step.reply) : step.reply;
  const isWhole = step.status === "ok" && step.reply;
  return html`<${Said} side=${side} who=${step.sessionKey} step=${name} at=${step.endedAt ?? step.at} now=${now}
      text=${isWhole && !isWord ? said : undefined} remark=${isWord ? controlRemark(step) : isWhole ? undefined : notSaid(step)}
        isBad=${step.status === "error" || step.status === "timeout"}>
    <p class="said-foot">
      <a href=${href("runs", [step.runId])}>Run</a>
      ${step.endedAt && html`<span>${duration(step.endedAt - step.at)}</span>`}
      ${step.tokens !== undefined && html`<span>${step.tokens.toLocaleString("en")} tokens</span>`}
      ${step.cost !== undefined && html`<${Cost} usd=${step.cost} />`}
    </p>
  <//>`;
}

const CONTROLS = {
  REPLY_SKIP: "said that there is nothing more to say",
  ANNOUNCE_SKIP: "skipped the announce",
  NO_REPLY: "said that there is nothing to answer",
};

const controlRemark = (step) => CONTROLS[(step.control ?? step.reply ?? "").trim()] ?? "said nothing";

function notSaid(step) {
  if (step.status === "queued") return "has it in line";
  if (step.status === "running") return "is answering";
  if (step.status === "ok") return "ended without a text";
  return step.status === "aborted" ? "was stopped" : `did not answer: the run ended as ${step.status}${step.error ? `: ${step.error}` : ""}`;
}

/** One thing said, on its side. */
function Said({ side, who, step, at, text, isMarkdown = true, remark, isBad, now, children }) {
  return html`<li class=${`said ${side} ${remark ? "remark" : ""}`}>
    <p class="said-head">
      <span class="said-side">${side === "left" ? "Requester" : "Target"}</span>
      ${who ? html`<${Key} session=${who} />` : html`<span>the operator</span>`}
      <span class="muted small">${step}</span>
      <span class="muted small number" title=${new Date(at).toLocaleString()}>${clockTime(at, now)}</span>
    </p>
    ${text !== undefined && html`<div class="bubble"><${Quote} text=${text} isMarkdown=${isMarkdown} /></div>`}
    ${remark && html`<p class=${`said-remark ${isBad ? "bad-text" : ""}`}>${side === "left" ? "The requester" : "The target"} ${remark}.</p>`}
    ${children}
  </li>`;
}

const BAD = ["failed", "uncertain"];

function Receipt({ exchange, now }) {
  const receipt = exchange.receipt;
  if (!receipt) return null;
  return html`<li class="receipt-line">
    <${Status} status=${receipt.state} />
    <span>The announce ${receiptInWords(receipt, now)}${receipt.state === "sent" || receipt.channel
      ? html` <span class="muted">(${place(receipt)})</span>` : ""}.</span>
    ${receipt.error && receipt.state !== "no_channel"
      && html`<span class=${BAD.includes(receipt.state) ? "bad-text" : "muted"}><${Text}>${receipt.error}<//></span>`}
    <a href=${href("deliveries", [], { id: receipt.id })}>Receipt</a>
  </li>`;
}

/** Why it took this way. */
function End({ exchange }) {
  const lines = [];
  if (exchange.loopEnd) lines.push(["No more turns", sayControls(exchange.loopEnd)]);
  if (exchange.outcome) lines.push(["Announce",
    `${exchange.outcome.replace("_", " ")}${exchange.reason ? `: ${sayControls(exchange.reason)}` : ""}`]);
  if (!lines.length) return null;
  return html`<h2>Why it ended</h2><${Facts} facts=${Object.fromEntries(lines)} />`;
}
