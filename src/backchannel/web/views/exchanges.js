/** Exchanges: questions of one session to another by `sessions_send`, and their outcome. */

import { html } from "../vendor/preact.js";
import { go, href, useRoute } from "../routes.js";
import { Age, Button, Cost, Empty, ErrorNote, Key, Segmented, Skeleton, Status, Table } from "../parts.js";
import { More, useRows } from "./rows.js";
import { movesRuns } from "./runs.js";
import { Heading, SessionFilter } from "./pieces.js";
import { inWords, isControlWord, oneLine } from "./words.js";

export { ExchangeView } from "./exchange.js";

const STATES = [["", "All"], ["primary,handover,turn,announce", "Going on"], ["done", "Over"]];

const EVENTS = ["sessions.changed", "agent", "delivery"];

export function ExchangesView() {
  const { params } = useRoute();
  const { session, with: other } = params;
  const states = params.states ? params.states.split(",") : undefined;
  const listed = useRows("exchanges.list", { sessionKey: session, states }, "exchanges", {
    events: EVENTS,
    when: movesRuns,
    minMs: 700,
    keepBy: other,
    keep: other === undefined ? undefined : (exchange) => isBetween(exchange, session, other),
  });
  const choose = (changed) => go("exchanges", [], { ...params, ...changed });
  return html`<section class="page" aria-labelledby="exchanges-title">
    <${Heading} id="exchanges-title" title="Exchanges" about="What one session asked another, their turns, and what was announced.">
      <a class="button" href=${href("map")}>Map</a>
    <//>
    <div class="toolbar">
      <${Segmented} label="State" value=${params.states ?? ""} options=${STATES} onChange=${(value) => choose({ states: value || undefined })} />
      <${PairFilter} session=${session} other=${other} onClear=${() => choose({ session: undefined, with: undefined })} />
    </div>
    <${ErrorNote} error=${listed.error} retry=${listed.reload} />
    ${listed.rows === undefined && !listed.error && html`<${Skeleton} />`}
    ${listed.rows?.length === 0 && !listed.hasMore && html`<${NoExchanges} isFiltered=${Boolean(session || states)} />`}
    ${listed.rows?.length > 0 && html`<${Table} label="Exchanges" columns=${COLUMNS} rows=${listed.rows} keyOf=${(exchange) => exchange.id}
      hrefOf=${(exchange) => href("exchanges", [exchange.id])} />`}
    ${listed.rows && (listed.rows.length > 0 || listed.hasMore) && html`<${More} ...${listed} one="exchange" />`}
  </section>`;
}

/** Whether the two are the sessions of an exchange; "operator" stands for one that no session asked. */
function isBetween(exchange, one, other) {
  const sides = [exchange.requester?.sessionKey ?? "operator", exchange.target.sessionKey].sort();
  return JSON.stringify(sides) === JSON.stringify([one, other].sort());
}

function PairFilter({ session, other, onClear }) {
  if (!session || !other) return html`<${SessionFilter} session=${session} onClear=${onClear} />`;
  return html`<span class="filter-chip">Between <${Key} session=${session} /> and ${other === "operator" ? "the operator"
    : html`<${Key} session=${other} />`}<${Button} kind="quiet" icon="close" label="Show all exchanges" onClick=${onClear} /></span>`;
}

const COLUMNS = [
  { name: "asked", title: "Asked", isMain: true,
    render: (exchange) => html`<a class="clip row-link" dir="auto" href=${href("exchanges", [exchange.id])}>${oneLine(exchange.message, 140)}</a>${said(exchange)
      && html`<span class="under cut-line" dir="auto">${said(exchange)}</span>`}` },
  { name: "from", title: "From", align: "name",
    render: (exchange) => (exchange.requester ? html`<${Key} session=${exchange.requester.sessionKey} />`
      : html`<span class="muted">the operator</span>`) },
  { name: "to", title: "To", align: "name", render: (exchange) => html`<${Key} session=${exchange.target.sessionKey} />` },
  { name: "state", title: "State", render: (exchange) => html`<${Status} status=${stateWord(exchange)} />` },
  { name: "turns", title: "Turns", align: "end", render: (exchange) => html`<span class="number">${exchange.turns ?? exchange.turn}</span>` },
  { name: "receipt", title: "Receipt", render: (exchange) => exchange.receipt && html`<${Status} status=${exchange.receipt.state} />` },
  { name: "cost", title: "Cost", align: "end", render: (exchange) => exchange.cost !== undefined && html`<${Cost} usd=${exchange.cost} />` },
  { name: "age", title: "Age", align: "end", render: (exchange) => html`<${Age} ts=${exchange.createdAt} />` },
];

/** The reply to the message, in one line. */
const said = ({ reply }) => (isControlWord(reply) ? inWords(reply) : oneLine(reply, 140));

/** Where an exchange is; one that is over and failed says so. */
const stateWord = ({ state, outcome }) => (state === "done" && (outcome === "failed" || outcome === "cancelled") ? outcome : state);

function NoExchanges({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No exchange is like that">Choose another state, or look at all sessions.<//>`;
  return html`<${Empty} title="No session has asked another yet">Tell an agent to ask one, or send as a session yourself: <code>backchannel send</code>.<//>`;
}

