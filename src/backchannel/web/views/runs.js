/** The runs of all sessions, or of one: live, by state. */

import { html } from "../vendor/preact.js";
import { go, href, useRoute } from "../routes.js";
import { useTicker } from "../live.js";
import { Age, Cost, Empty, ErrorNote, Key, Segmented, Skeleton, Status, Table, Tokens, duration } from "../parts.js";
import { More, useRows } from "./rows.js";
import { Heading, SessionFilter } from "./pieces.js";
import { failureOf, oneLine, runKind, runResult, runStatus, shortId } from "./words.js";

export { RunView } from "./run.js";

const STATES = [["", "All"], ["running", "Running"], ["queued", "Queued"], ["error,timeout", "Failed"], ["ok", "Ok"], ["aborted", "Aborted"]];

const EVENTS = ["sessions.changed", "agent", "approval"];

/** An event that says that a run began or ended, and not that it wrote another word. */
export const movesRuns = (event, payload) => event !== "agent" || payload.stream === "lifecycle" || payload.stream === "retry";

/** Whether the model of a run in the list speaks that was to be asked again. */
const endsRetry = (rows, event, payload) => event === "agent" && rows?.some((run) => run.retry && run.runId === payload.runId);

export function RunsView() {
  const { params } = useRoute();
  const session = params.session;
  const states = params.states ? params.states.split(",") : undefined;
  const listed = useRows("runs.list", { sessionKey: session, states }, "runs",
    { events: EVENTS, when: (event, payload) => movesRuns(event, payload) || endsRetry(listed.rows, event, payload), minMs: 500 });
  const now = useTicker(5000);
  const choose = (changed) => go("runs", [], { ...params, ...changed });
  return html`<section class="page" aria-labelledby="runs-title">
    <${Heading} id="runs-title" title="Runs" about="One turn of work on a session each: a message in, a reply out." />
    <div class="toolbar">
      <${Segmented} label="Status" value=${params.states ?? ""} options=${STATES} onChange=${(value) => choose({ states: value || undefined })} />
      <${SessionFilter} session=${session} onClear=${() => choose({ session: undefined })} />
    </div>
    <${ErrorNote} error=${listed.error} retry=${listed.reload} />
    ${listed.rows === undefined && !listed.error && html`<${Skeleton} />`}
    ${listed.rows?.length === 0 && html`<${NoRuns} isFiltered=${Boolean(session || states)} />`}
    ${listed.rows?.length > 0 && html`
      <${Table} label="Runs" columns=${columns(now)} rows=${listed.rows} keyOf=${(run) => run.runId} hrefOf=${(run) => href("runs", [run.runId])} />
      <${More} ...${listed} one="run" />`}
  </section>`;
}

const columns = (now) => [
  { name: "status", title: "Status", render: (run) => html`<${Status} status=${runStatus(run)} />` },
  { name: "result", title: "Result", isMain: true, render: (run) => html`<${What} run=${run} now=${now} />` },
  { name: "session", title: "Session", align: "name", render: (run) => html`<${Key} session=${run.sessionKey} />` },
  { name: "took", title: "Took", align: "end", render: (run) => tookOf(run, now) },
  { name: "tokens", title: "Tokens", align: "end", render: (run) => tokensOf(run.usage) !== undefined
    && html`<${Tokens} n=${tokensOf(run.usage)} />` },
  { name: "cost", title: "Cost", align: "end", render: (run) => run.usage?.cost !== undefined && html`<${Cost} usd=${run.usage.cost} />` },
  { name: "age", title: "Age", align: "end", render: (run) => html`<${Age} ts=${run.acceptedAt} />` },
];

/** What came of a run, and below it what it was for. */
function What({ run, now }) {
  const result = oneLine(runResult(run, now), 200);
  return html`<span class=${`clip ${failureOf(run) ? "bad-text" : ""}`} dir="auto">${result
    || html`<span class="muted">${run.status === "running" ? "at work" : run.status === "queued" ? "waits in line" : "no text"}</span>`}</span>
    <span class="under">${runKind(run.kind)} · <a class="mono" href=${href("runs", [run.runId])}
      title=${run.runId}>${shortId(run.runId)}</a></span>`;
}

const tokensOf = (usage) => (usage?.input === undefined && usage?.output === undefined ? undefined : (usage.input ?? 0) + (usage.output ?? 0));

function tookOf(run, now) {
  if (run.durationMs !== undefined) return duration(run.durationMs);
  return run.atWorkSince ? `${duration(Math.max(0, now - run.atWorkSince))} so far` : "";
}

function NoRuns({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No run is like that">Choose another status, or look at all sessions.<//>`;
  return html`<${Empty} title="Nothing has run yet">Write to a session: <a
    href=${href("sessions")}>Sessions</a>, or <code>backchannel chat</code> in a terminal.<//>`;
}
