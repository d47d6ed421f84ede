/** The outbox: messages to chats, those that did not arrive, and what to do. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { go, useRoute } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Age, Button, Confirm, Empty, ErrorNote, Key, Segmented, Skeleton, Status, Table, Text, toast } from "../parts.js";
import { More, useRows } from "./rows.js";
import { DeliveryDialog } from "./delivery.js";
import { Heading, SessionFilter, useScope } from "./pieces.js";
import { counted, oneLine, place, progress, until } from "./words.js";

const STATES = [["", "All"], ["failed", "Failed"], ["uncertain", "Uncertain"], ["pending", "Waiting"], ["sent", "Sent"], ["dropped", "Dropped"],
  ["suppressed", "Suppressed"]];
const EVENTS = ["delivery", "sessions.changed"];
const LIVE = { events: EVENTS, when: (event, payload) => event === "delivery" || /^deliver/.test(payload.reason ?? ""), minMs: 500 };

export function DeliveriesView() {
  const { params } = useRoute();
  const { session, state, id } = params;
  const choose = (changed) => go("deliveries", [], { ...params, ...changed });
  return html`<section class="page" aria-labelledby="deliveries-title">
    <${Heading} id="deliveries-title" title="Deliveries" about="Every message to a chat, and what became of it." />
    ${!session && !state && html`<${Troubled} onOpen=${(delivery) => choose({ id: delivery.id })} />`}
    <div class="toolbar">
      <${Segmented} label="State" value=${state ?? ""} options=${STATES} onChange=${(value) => choose({ state: value || undefined })} />
      <${SessionFilter} session=${session} onClear=${() => choose({ session: undefined })} />
    </div>
    <${Outbox} session=${session} state=${state} onOpen=${(delivery) => choose({ id: delivery.id })} />
    ${id && html`<${DeliveryDialog} id=${id} onClose=${() => choose({ id: undefined })} />`}
  </section>`;
}

/** Those that only a person can settle stand first, with all that can be done to them at once. */
function Troubled({ onOpen }) {
  const failed = useRows("deliveries.list", { state: "failed" }, "deliveries", LIVE);
  const uncertain = useRows("deliveries.list", { state: "uncertain" }, "deliveries", LIVE);
  return html`
    <${TroubledState} state="failed" about="did not arrive" listed=${failed} onOpen=${onOpen} />
    <${TroubledState} state="uncertain" about="may or may not have arrived: sent again, some may come twice" listed=${uncertain}
      onOpen=${onOpen} />`;
}

function TroubledState({ state, about, listed, onOpen }) {
  if (!listed.rows?.length) return html`<${ErrorNote} error=${listed.error} retry=${listed.reload} />`;
  const n = `${listed.rows.length}${listed.hasMore ? "+" : ""}`;
  return html`<section class=${`trouble ${state}`} aria-label=${`Deliveries that are ${state}`}>
    <h2><${Status} status=${state} /> <span>${n} ${listed.rows.length === 1 ? "delivery" : "deliveries"} ${about}</span></h2>
    <${Mendable} rows=${listed.rows} state=${state} hasMore=${listed.hasMore} reload=${listed.reload} onOpen=${onOpen} />
    ${listed.hasMore && html`<${More} ...${listed} one="delivery" many="deliveries" />`}
  </section>`;
}

/** Rows that can be chosen, and sent again or given up together. */
function Mendable({ rows, state, hasMore, reload, onOpen }) {
  const [chosen, setChosen] = useState(() => new Set());
  const [isAsking, ask] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [told, tell] = useState();
  const now = useTicker(5000);
  const ids = rows.map((row) => row.id).filter((id) => chosen.has(id));
  const noScope = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  const isOne = ids.length === 0 && rows.length === 1;
  const which = isOne ? "it" : ids.length ? `${ids.length} chosen` : `all ${hasMore ? "" : `${rows.length} `}${state}`;
  const mend = async (method) => {
    setBusy(true);
    try {
      const mended = sayMended(method, ids.length ? await gateway.call(method, { ids }) : await mendAll(method, state));
      tell(mended.refused.length ? mended : undefined);
      if (!mended.refused.length) toast(mended.text, "good"); // nothing may be left here to say it in
      setChosen(new Set());
    } catch (refused) {
      toast(refused.message, "bad");
    } finally {
      setBusy(false);
      reload();
    }
  };
  const toggle = (id) => setChosen((before) => (before.has(id) ? new Set([...before].filter((each) => each !== id)) : new Set([...before, id])));
  const columns = [{ name: "choose", title: "Choose",
    render: (row) => html`<input type="checkbox" checked=${chosen.has(row.id)} onChange=${() => toggle(row.id)}
      aria-label=${`Choose the delivery to ${place(row)}`} />` },
        ...COLUMNS(now).filter((column) => column.name !== "state" && column.name !== "next")];
  return html`
    <div class="toolbar">
      <${Button} icon="retry" kind=${state === "failed" ? "primary" : ""} disabledReason=${noScope}
        onClick=${() => mend("deliveries.retry")}>Send ${which} again<//>
      <${Button} disabledReason=${noScope} onClick=${() => ask(true)}>Drop ${which}<//>
      ${ids.length > 0 && html`<${Button} kind="quiet" onClick=${() => setChosen(new Set())}>Choose none<//>`}
    </div>
    <${Mended} told=${told} />
    <${Table} label=${`Deliveries that are ${state}`} columns=${columns} rows=${rows} keyOf=${(row) => row.id} onOpen=${onOpen} />
    ${isAsking && html`<${Confirm} title=${`Drop ${which}?`} action="Drop" onConfirm=${() => mend("deliveries.drop")} onClose=${() => ask(false)}>
      <p>What is dropped is given up for good. Its text stays in the transcript of its session.</p><//>`}`;
}

/** Goes through all deliveries of a state, a page at a time. */
async function mendAll(method, state) {
  const whole = { count: 0, refused: [] };
  let cursor;
  do {
    const page = await gateway.call(method, { state, cursor });
    whole.count += page.count;
    whole.refused.push(...page.refused);
    cursor = page.nextCursor;
  } while (cursor);
  return whole;
}

const sayMended = (method, { count, refused }) => ({ text: `${count} ${method === "deliveries.retry" ? "in line to be sent again"
  : "given up"}${refused.length ? `, ${refused.length} refused:` : "."}`, refused });

/** What came of it, refusals with their reasons. */
function Mended({ told }) {
  return html`<div role="status" class="told">${told && html`<div class="note"><div class="note-text">${told.text}
    ${told.refused.length > 0 && html`<ul>${told.refused.map((each) => html`<li key=${each.id}>
      <${Text}>${each.error}<//></li>`)}</ul>`}</div></div>`}</div>`;
}

function Outbox({ session, state, onOpen }) {
  const listed = useRows("deliveries.list", { sessionKey: session, state }, "deliveries", LIVE);
  const now = useTicker(5000);
  const isMendable = state === "failed" || state === "uncertain";
  return html`
    <${ErrorNote} error=${listed.error} retry=${listed.reload} />
    ${listed.rows === undefined && !listed.error && html`<${Skeleton} />`}
    ${listed.rows?.length === 0 && html`<${NoDeliveries} isFiltered=${Boolean(session || state)} />`}
    ${listed.rows?.length > 0 && isMendable && !session
      && html`<${Mendable} rows=${listed.rows} state=${state} hasMore=${listed.hasMore} reload=${listed.reload} onOpen=${onOpen} />`}
    ${listed.rows?.length > 0 && !(isMendable && !session)
      && html`<${Table} label="Deliveries" columns=${COLUMNS(now)} rows=${listed.rows} keyOf=${(row) => row.id} onOpen=${onOpen} />`}
    ${listed.rows?.length > 0 && html`<${More} ...${listed} one="delivery" many="deliveries" />`}`;
}

const COLUMNS = (now) => [
  { name: "state", title: "State", render: (row) => html`<${Status} status=${row.state} />` },
  { name: "text", title: "Error or text", isMain: true, render: (row) => html`<${What} row=${row} />` },
  { name: "to", title: "To", align: "name", render: (row) => place(row) && html`<${Text}>${place(row)}<//>` },
  { name: "session", title: "Session", align: "name", render: (row) => html`<${Key} session=${row.sessionKey} />` },
  { name: "parts", title: "Parts", align: "end", render: (row) => progress(row) },
  { name: "next", title: "Next try", align: "end", render: (row) => row.dueAt && row.state === "pending" && until(row.dueAt, now) },
  { name: "age", title: "Age", align: "end", render: (row) => html`<${Age} ts=${row.createdAt} />` },
];

/** What went wrong, and below it what was to be said. */
function What({ row }) {
  const isBad = row.state === "failed" || row.state === "uncertain";
  return html`${row.error && html`<span class=${`clip ${isBad ? "bad-text" : "muted"}`} dir="auto">${oneLine(row.error, 160)}</span>`}
    ${row.text && html`<span class=${row.error ? "under clip" : "clip"} dir="auto">${oneLine(row.text, 160)}</span>`}
    ${!row.text && !row.error && html`<span class="muted">its text is not written yet</span>`}`;
}

function NoDeliveries({ isFiltered }) {
  if (isFiltered) return html`<${Empty} icon="deliveries" title="No delivery is like that">Choose another state, or look at all sessions.<//>`;
  return html`<${Empty} icon="deliveries"
    title="Nothing was sent to a chat yet">Replies that go to a chat outside, announces and posts of sub-agents are listed here.<//>`;
}
