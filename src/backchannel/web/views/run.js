/** One run: its facts, and its steps on a time axis. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Age, Button, Confirm, CopyButton, Cost, ErrorNote, Key, Skeleton, Status, duration } from "../parts.js";
import { Back, Facts, Quote, useAct, useScope } from "./pieces.js";
import { Timeline } from "./timeline.js";
import { clockTime, counted, failureOf, inWords, isControlWord, isEnded, runKind, runStatus, runWaits, shortId } from "./words.js";

const EVENTS = ["agent", "sessions.changed", "delivery", "approval"];

export function RunView({ runId }) {
  const { data, error, reload } = useLive(() => gateway.call("runs.timeline", { runId }), [runId], {
    events: EVENTS,
    when: (event, payload) => concerns(runId, data?.run, event, payload),
    minMs: 300,
  });
  const shown = data?.run.runId === runId ? data : undefined;
  const isLive = shown !== undefined && !isEnded(shown.run);
  const now = useTicker(isLive ? 500 : 60000);
  return html`<section class="page" aria-labelledby="run-title">
    <${Back} view="runs">Runs<//>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!shown && !error && html`<${Skeleton} />`}
    ${shown && html`
      <${RunHead} run=${shown.run} now=${now} reload=${reload} />
      <${RunFacts} run=${shown.run} entries=${shown.entries} now=${now} />
      <h2 id="timeline-title">What it did</h2>
      <${Timeline} run=${shown.run} entries=${shown.entries} now=${now} />
      ${shown.truncated && html`<p class="note">This run did more than is shown here; its session has all of it.</p>`}
      <${Reply} run=${shown.run} />`}
  </section>`;
}

/** Whether an event may have changed what is shown: words that a model writes have not. */
function concerns(runId, run, event, payload) {
  const isWords = payload.stream === "assistant" || payload.stream === "thinking";
  if (event === "agent") return payload.runId === runId && (!isWords || Boolean(run?.retry)); // the first word ends a retry
  if (event === "delivery") return payload.runId === runId;
  return payload.sessionKey === run?.sessionKey;
}

function RunHead({ run, now, reload }) {
  const waits = runWaits(run, now);
  return html`<header class="page-head">
    <div class="grow">
      <h1 id="run-title">Run <span class="mono" title=${run.runId}>${shortId(run.runId)}</span> <${CopyButton} text=${run.runId} /></h1>
      <p class="headline"><${Status} status=${runStatus(run)} /> <span class="muted">${waits
        || headline(run, now)}</span></p>
    </div>
    <div class="row"><${Actions} run=${run} reload=${reload} /></div>
  </header>`;
}

function headline(run, now) {
  if (run.status === "queued") return "waits until its session has done what came before";
  if (run.status === "running") return `at work for ${duration(Math.max(0, now - run.atWorkSince))}`;
  return run.durationMs === undefined ? "ended before it began" : `after ${duration(run.durationMs)} of work`;
}

function Actions({ run, reload }) {
  const [isAsking, ask] = useState(false);
  const { act, isBusy } = useAct(reload);
  const held = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  const retry = () => act(() => gateway.call("runs.retry", { runId: run.runId }), (answer) => `The run is ${answer.run.status} once more.`);
  const stop = () => act(() => gateway.call("chat.abort", { sessionKey: run.sessionKey, runId: run.runId }),
    (answer) => (answer.aborted ? "The run is stopped." : "The run had ended already."));
  return html`
    <${Button} icon="retry" disabledReason=${held ?? whyNoRetry(run)} onClick=${retry}>${run.resumeAt ? "Try now" : "Retry"}<//>
    <${Button} icon="stop" disabledReason=${held ?? whyNoStop(run)} onClick=${() => ask(true)}>Stop<//>
    ${isAsking && html`<${Confirm} title="Stop this run?" action="Stop it" onConfirm=${stop} onClose=${() => ask(false)}>
      <p>What it has written stays; its sub-agents go on.</p>
    <//>`}`;
}

function whyNoRetry(run) {
  if (run.status === "ok") return "It ended ok: only a run that failed, was stopped or is set aside can be started once more";
  if (run.status === "running") return "It is at work";
  if (run.status === "queued" && !run.resumeAt) return "It is queued already";
  return undefined;
}

function whyNoStop(run) {
  if (isEnded(run)) return `It has ended: ${run.status}`;
  return run.abortRequested ? "It is being stopped" : undefined;
}

function RunFacts({ run, entries, now }) {
  const flows = entries.filter((entry) => entry.childKey);
  const children = [...new Set(flows.map((entry) => entry.childKey))];
  const delivered = entries.find((entry) => entry.kind === "ended")?.deliveryId;
  const usage = run.usage ?? {};
  return html`<${Facts} facts=${{
    Session: html`<${Key} session=${run.sessionKey} /> <a class="small"
      href=${href("sessions", [run.sessionKey], { message: run.messageId, run: run.runId })}>at its message</a>`,
    For: run.exchangeId ? html`${runKind(run.kind)}: <a href=${href("exchanges", [run.exchangeId])}>its exchange</a>` : runKind(run.kind),
    Accepted: html`${clockTime(run.acceptedAt, now)} <span class="muted">(<${Age} ts=${run.acceptedAt} />)</span>`,
    "Waited in line": run.startedAt > run.acceptedAt + 50 ? duration(run.startedAt - run.acceptedAt) : undefined,
    Took: run.durationMs === undefined ? undefined : duration(run.durationMs),
    Steps: run.step,
    Model: run.model,
    Tokens: usage.input === undefined && usage.output === undefined ? undefined
      : `${(usage.input ?? 0).toLocaleString("en")} in, ${(usage.output ?? 0).toLocaleString("en")} out`,
    Cost: usage.cost === undefined ? undefined : html`<${Cost} usd=${usage.cost} />`,
    "Sub-agents": children.length ? html`<span
      class="inline-list">${children.slice(0, 12).map((key) => html`<${Key} key=${key} session=${key} />`)}${children.length > 12
        ? ` and ${children.length - 12} more` : ""}</span>` : undefined,
    Delivery: delivered ? html`<a href=${href("deliveries", [], { id: delivered })}>its receipt</a>` : undefined,
    "Longest time": run.timeoutSeconds ? counted(run.timeoutSeconds, "second") : undefined,
  }} />`;
}

function Reply({ run }) {
  if (failureOf(run)) return html`<h2>Why it failed</h2>
    <${Quote} text=${run.error} kind="bad" />${run.errorCode && html`<p class="muted small">Code <code>${run.errorCode}</code></p>`}`;
  if (!run.reply) return null;
  if (isControlWord(run.reply)) return html`<h2>Reply</h2><p class="muted">${inWords(run.reply)} <code>${run.reply.trim()}</code></p>`;
  return html`<h2>Reply</h2><${Quote} text=${run.reply} isMarkdown />`;
}
