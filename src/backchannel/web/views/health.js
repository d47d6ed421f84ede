/** Health: present problems, what to do about them, and the load. */

import { html } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Button, ErrorNote, Key, Skeleton, Status, Table, duration } from "../parts.js";
import { Facts, Heading, Sentence, useAct, useScope } from "./pieces.js";
import { clockTime, counted, shortId, until } from "./words.js";

/** Where on this page something can be done about a problem. */
const PLACES = {
  channel_down: ["channels", {}, "See the channels"],
  channel_unusable: ["channels", {}, "See the channels"],
  deliveries_failed: ["deliveries", { state: "failed" }, "See those that failed"],
  deliveries_uncertain: ["deliveries", { state: "uncertain" }, "See those that are uncertain"],
  runs_failed: ["runs", { states: "error,timeout" }, "See the runs"],
  function_missing: ["agents", {}, "See the agents"],
  model_unusable: ["agents", {}, "See the agents"],
  demo_model: ["agents", {}, "See the agents"],
  budget_used_up: ["budgets", {}, "See the budgets"],
  budget_low: ["budgets", {}, "See the budgets"],
  runs_waiting_for_budget: ["runs", { states: "running" }, "See the runs"],
  cron_stopped: ["jobs", {}, "See the jobs"],
};

const LIVE = { events: ["delivery", "agent", "approval"], when: (event, payload) => event !== "agent" || payload.stream === "lifecycle", minMs: 2000,
  everyMs: 15_000 };

export function HealthView() {
  const { data, error, reload } = useLive(() => gateway.call("status"), [], LIVE);
  const now = useTicker(1000);
  return html`<section class="page" aria-labelledby="health-title">
    <${Heading} id="health-title" title="Health" about="What is wrong right now, and what to do about it." />
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${data && html`
      <${Verdict} status=${data.status} problems=${data.problems} asked=${data.approvals.pending} />
      <ul class="problems" aria-label="Problems">${data.problems.map((problem) => html`<${Problem} key=${problem.code + problem.message}
        problem=${problem} />`)}</ul>
      <${SetAside} count=${data.runs.setAside} now=${now} />
      <${Counts} status=${data} />
      <${Slots} now=${now} />
      <h2>The gateway</h2>
      <${Facts} facts=${{
        Version: data.version,
        "Up for": duration(data.uptimeMs + Math.max(0, now - data.ts)),
        Since: clockTime(data.ts - data.uptimeMs, now),
        "Default agent": data.defaultAgentId,
        Model: html`<span class="mono">${data.model}</span>`,
        Connections: data.connections,
        Commits: data.commits.toLocaleString("en"),
      }} />`}
  </section>`;
}

const VERDICTS = {
  ok: ["good", "All is well", "Nothing needs you."],
  degraded: ["warn", "It works, and something is wrong", ""],
  unavailable: ["bad", "Nothing can be accepted", ""],
};

function Verdict({ status, problems, asked }) {
  const [tone, words, nothing] = VERDICTS[status] ?? ["warn", status, ""];
  const more = nothing && asked ? `${counted(asked, "call")} ${asked === 1 ? "waits" : "wait"} for your word.` : nothing;
  return html`<div class=${`verdict tone-${tone}`} role="status"><${Status} status=${status} /><strong>${words}</strong>
    <span class="muted">${more || counted(problems.length, "problem")}</span></div>`;
}

function Problem({ problem }) {
  const place = PLACES[problem.code];
  return html`<li class=${`problem tone-${problem.code === "storage" ? "bad" : "warn"}`}>
    <p class="problem-text"><strong><${Sentence} text=${problem.message} /></strong></p>
    <p class="problem-hint"><${Sentence} text=${problem.hint} /></p>
    <p class="row"><code class="muted small">${problem.code}</code>${place
      && html`<a class="button" href=${href(place[0], [], place[1])}>${place[2]}</a>`}</p>
  </li>`;
}

function Counts({ status: { runs, deliveries, approvals, pairings } }) {
  const tiles = [
    ["running", "Running", runs.running, href("runs", [], { states: "running" })],
    ["queued", "Queued", runs.queued, href("runs", [], { states: "queued" })],
    ["asked", "Calls that wait for your word", approvals.pending, href("runs", [], { states: "running" })],
    ["strangers", "Strangers who ask to be let in", pairings.pending, href("channels")],
    ["error", "Failed in 24 hours", runs.failed, href("runs", [], { states: "error,timeout" })],
    ["waiting", "Deliveries waiting", deliveries.waiting, href("deliveries", [], { state: "pending" })],
    ["failed", "Deliveries failed", deliveries.failed, href("deliveries", [], { state: "failed" })],
    ["uncertain", "Deliveries uncertain", deliveries.uncertain, href("deliveries", [], { state: "uncertain" })],
  ];
  return html`<ul class="tiles" aria-label="How much there is">${tiles.map(([key, word, n, link]) => html`<li key=${key}>
    <a href=${link} class=${n ? "" : "none"}><span class="tile-n number">${n === undefined ? "–" : n.toLocaleString("en")}</span>
      <span class="tile-word">${word}</span></a></li>`)}</ul>`;
}

/** Runs in which the process died again and again, and when each is tried again. */
function SetAside({ count, now }) {
  const { data, error, reload } = useLive(async () => (count
    ? (await gateway.call("runs.list", { states: ["queued"], limit: 500 })).runs.filter((run) => run.resumeAt && !run.waitsFor) : []), [count]);
  const { act, isBusy } = useAct(reload);
  const held = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  if (!count) return null;
  const columns = [
    { name: "run", title: "Run", isMain: true, render: (run) => html`<span class="mono">${shortId(run.runId)}</span>` },
    { name: "session", title: "Session", render: (run) => html`<${Key} session=${run.sessionKey} />` },
    { name: "again", title: "Tried again",
      render: (run) => html`<span class="number">${until(run.resumeAt, now)}</span> <span class="muted">${clockTime(run.resumeAt, now)}</span>` },
    { name: "now", title: "Now", render: (run) => html`<${Button} icon="retry" disabledReason=${held}
      onClick=${() => act(() => gateway.call("runs.retry", { runId: run.runId }), () => "It is tried now.")}>Try now<//>` },
  ];
  return html`<section aria-labelledby="aside-title"><h2 id="aside-title">Set aside after crashes</h2>
    <${ErrorNote} error=${error} retry=${reload} />
    ${data?.length > 0 && html`<${Table} label="Runs that are set aside" columns=${columns} rows=${data} keyOf=${(run) => run.runId}
      hrefOf=${(run) => href("runs", [run.runId])} />`}
  </section>`;
}

/** What works and what waits for its turn, the longest first; the operator can end it. */
function Slots({ now }) {
  const { data, error, reload } = useLive(() => gateway.call("slots.list"), [], LIVE);
  const { act, isBusy } = useAct(reload);
  const held = useScope("operator.admin") ?? (isBusy ? "Wait for the answer" : undefined);
  const columns = [
    { name: "what", title: "What", isMain: true, render: (slot) => html`<span class="mono">${slot.what}</span>` },
    { name: "kind", title: "Kind", render: (slot) => slot.kind },
    { name: "state", title: "State", render: (slot) => (slot.isWaiting ? "waits" : "works") },
    { name: "for", title: "For", render: (slot) => slot.since && html`<span class="number">${duration(Math.max(0, now - slot.since))}</span>` },
    { name: "session", title: "Session", render: (slot) => html`<${Key} session=${slot.sessionKey} />` },
    { name: "end", title: "End", render: (slot) => slot.id && html`<${Button} icon="stop" disabledReason=${held}
      onClick=${() => act(() => gateway.call("slots.end", { id: slot.id }), () => "It was ended.")}>End<//>` },
  ];
  const used = data?.kinds.filter((kind) => kind.used || kind.waiting) ?? [];
  return html`<section aria-labelledby="slots-title"><h2 id="slots-title">At work</h2>
    <${ErrorNote} error=${error} retry=${reload} />
    ${data && html`<p class="muted">${used.length ? used.map((kind) => `${kind.kind} ${kind.used} of ${kind.limit}${
      kind.waiting ? `, ${kind.waiting} waiting` : ""}`).join(" · ") : "Nothing is at work."}</p>`}
    ${data?.slots.length > 0 && html`<${Table} label="What works and what waits" columns=${columns} rows=${data.slots}
      keyOf=${(slot) => slot.id || slot.sessionKey} hrefOf=${(slot) => (slot.runId ? href("runs", [slot.runId]) : href("sessions", slot.sessionKey))} />`}
  </section>`;
}
