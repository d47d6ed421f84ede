/** The map of sessions that talked to each other: a picture and a table. */

import { html, useMemo, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { go, href, useRoute } from "../routes.js";
import { useLive } from "../live.js";
import { Age, Button, Cost, Empty, ErrorNote, Key, Segmented, Skeleton, money, sessionName, visible } from "../parts.js";
import { Heading } from "./pieces.js";
import { OPERATOR, buildGraph } from "./graph.js";
import { BOX, pathOf, placeNodes } from "./layout.js";
import { counted } from "./words.js";

const ALL = "all";
const WINDOWS = [["60", "Hour"], ["1440", "Day"], ["10080", "Week"], [ALL, "All"]];

export function MapView() {
  const { params } = useRoute();
  const minutes = params.minutes ?? "1440";
  const { data, error, reload } = useLive(
    () => gateway.call("exchanges.map", { activeMinutes: minutes === ALL ? undefined : Number(minutes) }),
    [minutes],
    { events: ["sessions.changed"], minMs: 3000 },
  );
  const graph = useMemo(() => data && buildGraph(data), [data]);
  return html`<section class="page" aria-labelledby="map-title">
    <${Heading} id="map-title" title="Map" about="Who sent to whom, and who started whom." />
    <div class="toolbar">
      <${Segmented} label="Time" value=${minutes} options=${WINDOWS} onChange=${(value) => go("map", [], { minutes: value })} />
    </div>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${graph && graph.talks.length === 0 && html`<${Empty} icon="map"
      title="Nobody talked to anybody in this time">Choose a longer time, or tell an agent to ask another session.<//>`}
    ${graph && graph.talks.length > 0 && html`<${Picture} graph=${graph} /><${Lines} graph=${graph} />`}
    ${data?.truncated && html`<p class="muted small">Only the newest talks of this time are counted.</p>`}
  </section>`;
}

function Picture({ graph }) {
  const [near, setNear] = useState();
  const { width, height, places } = useMemo(() => placeNodes(graph.boxes, graph.lines), [graph]);
  const isNear = (line) => near === undefined || near === line.from || near === line.to;
  return html`<figure class="map-picture">
    <div class="map-scroll" tabindex="0" role="group" aria-label="Picture of who talked to whom; the table below says the same">
      <svg viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} class=${near ? "has-near" : ""}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
          <path d="M0 0 L8 4 L0 8 z" /></marker></defs>
        ${graph.lines.map((line) => html`<${Line} key=${`${line.from} ${line.to}`} line=${line} graph=${graph} places=${places}
          isNear=${isNear(line)} />`)}
        ${graph.boxes.map((box) => html`<${Box} key=${box.id} box=${box} place=${places.get(box.id)} onNear=${setNear} />`)}
      </svg>
    </div>
    <figcaption class="muted small">${graph.leftOut > 0
      ? `${counted(graph.leftOut, "session")} that talked least ${graph.leftOut === 1 ? "is" : "are"} not drawn; the table has them. `
        : ""}Solid lines are messages, broken ones sub-agents that were started. A line leads to the exchanges of the two.</figcaption>
  </figure>`;
}

function Line({ line, graph, places, isNear }) {
  const from = places.get(line.from);
  const to = places.get(line.to);
  const path = pathOf(from, to);
  const title = `${line.weight} · ${nameOf(graph, line.from)} to ${nameOf(graph, line.to)}: ${inWords(line)}`;
  const wide = 18 + 8 * String(line.weight).length;
  const thick = 1.25 + Math.min(3.5, Math.log2(1 + line.weight) / 1.6);
  return html`<a href=${pairHref(line)} class=${`map-line ${line.sends ? "" : "spawns"} ${isNear ? "" : "far"}`} aria-label=${title}>
    <title>${title}</title>
    <path class="map-hit" d=${path.d} />
    <path class="map-stroke" d=${path.d} stroke-width=${thick.toFixed(2)} marker-end="url(#arrow)" />
    <g class="map-count"><rect x=${path.x - wide / 2} y=${path.y - 9} width=${wide} height="18" rx="9" />
      <text x=${path.x} y=${path.y + 4}>${line.weight}</text></g>
  </a>`;
}

const KINDS = { [OPERATOR]: "a person or program", "sub-agents": "started for one task each" };

function Box({ box, place, onNear }) {
  const name = box.name ?? sessionName(box.key);
  const cut = name.length > 21 ? `${name.slice(0, 20)}…` : name;
  const link = box.key ? href("sessions", [box.key]) : box.parent ? href("sessions", [box.parent], { tree: "1" }) : undefined;
  const kind = KINDS[box.kind] ?? [box.kind, box.agentId].filter(Boolean).join(" · ");
  const title = visible([cut, kind, box.key].filter(Boolean).join(" "));
  const body = html`<title>${title}</title>
    <rect x=${place.x} y=${place.y} width=${BOX.width} height=${BOX.height} rx="10" />
    <text class="map-name" x=${place.x + 14} y=${place.y + 19}>${visible(cut)}</text>
    <text class="map-kind" x=${place.x + 14} y=${place.y + 34}>${visible(kind)}</text>`;
  const near = { onMouseEnter: () => onNear(box.id), onMouseLeave: () => onNear(undefined), onFocus: () => onNear(box.id),
    onBlur: () => onNear(undefined) };
  if (!link) return html`<g class="map-box" ...${near}>${body}</g>`;
  return html`<a class="map-box" href=${link} ...${near}>${body}</a>`;
}

const nameOf = (graph, id) => {
  const box = graph.names.get(id);
  return box?.name ?? (box?.key ? sessionName(box.key) : id);
};

const inWords = (line) =>
  [line.sends && `${counted(line.sends, "message")}, ${counted(line.replies, "reply", "replies")}`, line.spawns
    && `${counted(line.spawns, "sub-agent")} started`, line.cost !== undefined && money(line.cost)].filter(Boolean).join(", ");

/** Where a line leads: to the exchanges of the two, or to the sub-agent that was only started. */
function pairHref({ from, to, sends }) {
  if (sends === 0) return to.endsWith(" sub-agents") ? href("sessions", [from], { tree: "1" }) : href("sessions", [to]);
  return from === OPERATOR ? href("exchanges", [], { session: to, with: OPERATOR }) : href("exchanges", [], { session: from, with: to });
}

const BY = {
  from: (edge) => edge.from,
  to: (edge) => edge.to,
  sends: (edge) => -edge.sends,
  replies: (edge) => -edge.replies,
  spawns: (edge) => -edge.spawns,
  cost: (edge) => -(edge.cost ?? 0),
  last: (edge) => -(edge.lastAt ?? 0),
};
const HEADS = [["from", "From"], ["to", "To"], ["sends", "Messages"], ["replies", "Replies"], ["spawns", "Started"], ["cost", "Cost"],
  ["last", "Last"]];

/** The same as a table, by any of its columns. */
function Lines({ graph }) {
  const [sort, setSort] = useState({ by: "sends", isUp: true });
  const [shown, setShown] = useState(100);
  const rows = useMemo(() => {
    const value = BY[sort.by];
    const sorted = [...graph.talks].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.to < b.to ? -1 : 1));
    return sort.isUp ? sorted : sorted.reverse();
  }, [graph, sort]);
  const press = (by) => setSort((before) => ({ by, isUp: before.by === by ? !before.isUp : true }));
  const aria = (by) => (sort.by !== by ? undefined : (by === "from" || by === "to") === sort.isUp ? "ascending" : "descending");
  return html`<table class="table map-table" aria-label="Who talked to whom">
    <thead><tr>${HEADS.map(([by, title], index) => html`<th key=${by} scope="col" class=${index > 1 ? "end" : ""} aria-sort=${aria(by)}>
      <button type="button" class="sort" onClick=${() => press(by)}>${title}
        <span aria-hidden="true">${sort.by === by ? (aria(by) === "ascending" ? " ↑" : " ↓") : ""}</span></button></th>`)}</tr></thead>
    <tbody>${rows.slice(0, shown).map((edge) => html`<tr key=${`${edge.from} ${edge.to}`}>
      <td data-title="From"><${Who} box=${graph.names.get(edge.from)} /></td>
      <td data-title="To"><${Who} box=${graph.names.get(edge.to)} /></td>
      <td class="end number" data-title="Messages">${edge.sends
        ? html`<a href=${pairHref(edge)} aria-label=${`${counted(edge.sends, "message")}: see the exchanges`}>${edge.sends}</a>`
          : html`<span class="muted">0</span>`}</td>
      <td class="end number" data-title="Replies">${edge.replies}</td>
      <td class="end number" data-title="Started">${edge.spawns}</td>
      <td class="end" data-title="Cost"><${Cost} usd=${edge.cost} /></td>
      <td class="end" data-title="Last"><${Age} ts=${edge.lastAt} /></td>
    </tr>`)}</tbody>
  </table>
  ${rows.length > shown && html`<div class="more"><span class="muted">${shown} of ${rows.length}</span>
    <${Button} onClick=${() => setShown(shown + 400)}>Show more<//></div>`}`;
}

function Who({ box }) {
  if (box.key) return html`<${Key} session=${{ key: box.key, name: box.name }} />`;
  return box.parent ? html`<a href=${href("sessions", [box.parent], { tree: "1" })}>${box.name}</a>` : box.name;
}
