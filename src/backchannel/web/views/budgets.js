/** Budgets: what may be spent and what is, and on what it was spent. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href, setParams } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Button, Confirm, Empty, ErrorNote, Fold, Key, Segmented, Skeleton, Table, Text, count, money, toast } from "../parts.js";
import { Facts, Heading, useScope } from "./pieces.js";
import { clockTime, counted, until } from "./words.js";

const LIVE = { events: ["agent", "approval"], when: (event, payload) => event !== "agent" || payload.stream === "lifecycle", minMs: 2000, everyMs: 30_000 };
const THEN = { ask: "asks owners", stop: "stops runs", warn: "only warns" };
const WHOSE = { gateway: "the gateway", agent: "each agent", session: "each session", chain: "each chain of messages", sender: "each sender" };
const PER = { hour: "an hour", day: "a day", month: "a month", total: "in all" };
const LONG_MS = 48 * 3_600_000;
const AT_ONCE = 5; // how many subjects are shown before somebody asks for more

const percent = (share) => `${(Math.min(1, Math.max(0, share)) * 100).toFixed(2)}%`;
const whole = (share) => `${Math.floor(share * 100)}%`;
const dollars = (usd) => (usd > 0 && usd < 1 ? `$${usd.toFixed(4).replace(/0{1,2}$/, "")}` : money(usd));
const amount = (value, unit) => (unit === "usd" ? dollars(value) : unit === "runs" ? counted(value, "run") : `${count(value)} tokens`);

export function BudgetsView({ params }) {
  const { data, error, reload } = useLive(() => gateway.call("budgets.list"), [], LIVE);
  return html`<section class="page" aria-labelledby="budgets-title">
    <${Heading} id="budgets-title" title="Budgets" about="What may be spent, how much of it is, and on what." />
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${data?.budgets.length === 0 && html`<${Empty} icon="budgets" title="There are no budgets">Nothing bounds what is spent. Set <code>budgets</code>
      in the configuration.<//>`}
    <div class="cards wide-cards">${data?.budgets.map((budget) => html`<${Budget} key=${budget.name} budget=${budget} reload=${reload} />`)}</div>
    <${Spending} days=${Number(params.days) || 30} unit=${params.unit === "tokens" ? "tokens" : "usd"} />
  </section>`;
}

// Budgets

function Budget({ budget, reload }) {
  const now = useTicker(1000);
  const [isAsking, ask] = useState(false);
  const noAdmin = useScope("operator.admin");
  const { name, limit, unit, opensAt, waiting, subjects } = budget;
  const shown = subjects.length || budget.scope !== "gateway" ? subjects : [{ subject: "", spent: 0, reserved: 0, limit }];
  return html`<article class="card" aria-labelledby=${`budget-${name}`}>
    <header class="row spread"><h2 id=${`budget-${name}`}><${Text}>${name}<//></h2><span class="badge">${THEN[budget.then] ?? budget.then}</span></header>
    <${Facts} facts=${{
      Amount: `${amount(limit, unit)} ${PER[budget.per] ?? budget.per}`,
      For: WHOSE[budget.scope] ?? budget.scope,
      "Begins anew": opensAt && html`${opensAt - now < LONG_MS && html`<span class="number">${until(opensAt, now)}</span> `}<span
        class="muted">${clockTime(opensAt, now)}</span>`,
      Warns: budget.warnAt && `at ${whole(budget.warnAt)}`,
    }} />
    ${waiting > 0 && html`<p class="note tone-wait"><a href=${href("runs", [], { states: "running" })}>${counted(waiting, "run")} ${
      waiting === 1 ? "waits" : "wait"} for it</a></p>`}
    ${shown.length === 0 && html`<p class="muted">Nothing is spent yet.</p>`}
    <${Meters} label=${`Spent of ${name}`} budget=${budget} subjects=${shown.slice(0, AT_ONCE)} />
    ${shown.length > AT_ONCE && html`<${Fold} summary=${`${shown.length - AT_ONCE} more`}>${() => html`<${Meters} label=${`Spent of ${name}, more`}
      budget=${budget} subjects=${shown.slice(AT_ONCE)} />`}<//>`}
    ${budget.hasMore && html`<p class="muted small">Only the fullest ${subjects.length} are shown.</p>`}
    <footer class="row"><${Button} icon="retry" disabledReason=${noAdmin} onClick=${() => ask(true)}>Begin anew…<//></footer>
    ${isAsking && html`<${Confirm} title=${`Begin the budget ${name} anew?`} action="Begin anew" onClose=${() => ask(false)} onConfirm=${async () => {
      await gateway.call("budgets.reset", { name });
      toast(`The budget ${name} begins anew.`, "good");
      reload();
    }}><p>What was spent in its current window is forgotten, for all. So up to ${amount(limit, unit)} more can be spent until it ends. Calls under way
      still count.</p><//>`}
  </article>`;
}

function Meters({ label, budget, subjects }) {
  return html`<ul class="meters" aria-label=${label}>${subjects.map((subject) => html`<${Meter} key=${subject.subject} budget=${budget} subject=${subject} />`)}</ul>`;
}

/** How much of a limit is spent, and held by calls under way: in words too, since colour never says it alone. */
function Meter({ budget: { scope, unit, warnAt }, subject: { subject, spent, reserved, limit, granted, denied } }) {
  const share = spent / limit;
  const tone = share >= 1 || denied ? "bad" : share >= (warnAt ?? 1) ? "warn" : "good";
  const words = [`${whole(share)} spent`, reserved > 0 && `up to ${amount(reserved, unit)} held by calls`, granted > 0 && `granted ${
    counted(granted, "time")}`, denied && "owners denied more"].filter(Boolean).join(", ");
  return html`<li class=${`meter tone-${tone}`}>
    <span class="meter-head"><span class="cut"><${Subject} scope=${scope} subject=${subject} /></span>
      <span class="number nowrap">${amount(spent, unit)} of ${amount(limit, unit)}</span></span>
    <span class="meter-bar" aria-hidden="true"><span class="meter-spent" style=${{ width: percent(share) }} /><span class="meter-held"
      style=${{ width: percent(Math.min(reserved / limit, 1 - Math.min(1, share))) }} /></span>
    <span class="meter-words small">${words}</span>
  </li>`;
}

function Subject({ scope, subject }) {
  if (scope === "gateway") return "The gateway";
  if (scope === "session") return html`<${Key} session=${subject} />`;
  if (scope === "chain") return html`<a class="mono" href=${href("runs", [subject])}>${subject}</a>`;
  return html`<${Text}>${subject}<//>`;
}

// What was spent

function Spending({ days, unit }) {
  const { data, error, reload } = useLive(() => gateway.call("budgets.spending", { days }), [days], { ...LIVE, minMs: 10_000 });
  return html`<section class="stack" aria-labelledby="spending-title">
    <header class="row spread"><h2 id="spending-title">Spent</h2>
      <span class="row"><${Segmented} label="Unit" value=${unit} options=${[["usd", "Dollars"], ["tokens", "Tokens"]]} onChange=${(to) => setParams({ unit: to })} />
        <${Segmented} label="Time" value=${days} options=${[[7, "7 days"], [30, "30 days"], [90, "90 days"]]} onChange=${(to) => setParams({ days: to })} /></span>
    </header>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${data && html`
      <p><strong class="number">${amount(data.total[unit], unit)}</strong> in ${counted(days, "day")}, by ${counted(data.total.runs, "run")}.${unit === "usd"
        && data.total.unpriced > 0 && ` The price of ${counted(data.total.unpriced, "run")} is not known.`}${data.partial && " The oldest runs are left out."}</p>
      <${Columns} days=${data.days} unit=${unit} />
      <div class="cards wide-cards">
        <${Shares} id="by-agent" title="By agent" unit=${unit} left=${data.agentsLeftOut} rows=${data.agents.map((each) => ({ key: each.agentId, sum: each,
          name: html`<${Text}>${each.agentId}<//>` }))} />
        <${Shares} id="by-tree" title="By session, with its sub-agents" unit=${unit} left=${data.treesLeftOut} rows=${data.trees.map((each) => ({
          key: each.sessionKey, sum: each, name: html`<${Key} session=${{ key: each.sessionKey, label: each.name }} />` }))} />
      </div>`}
  </section>`;
}

const PLOT = { height: 168, top: 16, bottom: 24, left: 56 };

/** The spend of each day as columns. Widths are parts of the whole, so that letters stay as large on a phone. */
function Columns({ days, unit }) {
  const top = roundUp(Math.max(...days.map((day) => day[unit]), 0)) || 1;
  const tall = PLOT.height - PLOT.top - PLOT.bottom;
  const y = (value) => PLOT.top + tall * (1 - value / top);
  const wide = 100 / days.length;
  const every = Math.ceil(days.length / 5);
  const dearest = days.reduce((most, day) => (day[unit] > most[unit] ? day : most), days[0]);
  const told = dearest[unit] ? `The most was ${amount(dearest[unit], unit)} on ${dearest.date}.` : "Nothing was spent.";
  return html`<figure class="card plot">
    <div class="plot-picture" role="img" aria-label=${`Spent by day, ${days[0].date} to ${days.at(-1).date}. ${told}`}>
      <svg class="plot-axis" width=${PLOT.left} height=${PLOT.height} aria-hidden="true">${[top, top / 2, 0].map((value) => html`<text key=${value}
        x=${PLOT.left - 8} y=${y(value) + 4} text-anchor="end">${unit === "usd" ? dollars(value) : count(Math.round(value))}</text>`)}</svg>
      <svg class="plot-days" width="100%" height=${PLOT.height} aria-hidden="true">
        ${[top, top / 2, 0].map((value) => html`<line key=${value} x1="0" x2="100%" y1=${y(value)} y2=${y(value)} />`)}
        ${days.map((day, index) => html`<g key=${day.date}><title>${`${day.date}: ${amount(day[unit], unit)}, ${counted(day.runs, "run")}`}</title>
          <rect class="plot-hit" x=${`${index * wide}%`} width=${`${wide}%`} y=${PLOT.top} height=${tall} />
          ${day[unit] > 0 && html`<rect class="plot-column" x=${`${(index + 0.15) * wide}%`} width=${`${wide * 0.7}%`} y=${Math.min(y(day[unit]), y(0) - 1)}
            height=${Math.max(1, y(0) - y(day[unit]))} rx="2" />`}
          ${(days.length - 1 - index) % every === 0 && html`<text x=${`${(index + 0.5) * wide}%`} y=${PLOT.height - 6} text-anchor=${
            index === days.length - 1 ? "end" : "middle"} dx=${index === days.length - 1 ? 8 : 0}>${day.date.slice(5)}</text>`}</g>`)}
      </svg>
    </div>
    <figcaption><${Fold} summary="By day, in numbers (days of UTC)">${() => html`<${Table} label="Spent by day" columns=${COLUMNS}
      rows=${[...days].reverse().filter((day) => day.runs)} keyOf=${(day) => day.date} />`}<//></figcaption>
  </figure>`;
}

const COLUMNS = [
  { name: "date", title: "Day", isMain: true, render: (day) => day.date },
  { name: "usd", title: "Dollars", render: (day) => html`<span class="number">${money(day.usd)}</span>` },
  { name: "tokens", title: "Tokens", render: (day) => html`<span class="number">${day.tokens.toLocaleString("en")}</span>` },
  { name: "runs", title: "Runs", render: (day) => html`<span class="number">${day.runs}</span>` },
];

/** Round up to a number that reads well on an axis: 1, 2, 4, 5 or 8 of a power of ten. */
export function roundUp(value) {
  if (value <= 0) return 0;
  const ten = 10 ** Math.floor(Math.log10(value));
  return ten * ([1, 2, 4, 5, 8].find((step) => value <= step * ten * 1.0000001) ?? 10);
}

function Shares({ id, title, unit, rows, left }) {
  const most = Math.max(...rows.map((row) => row.sum[unit]), 0) || 1;
  return html`<article class="card" aria-labelledby=${id}><h3 id=${id}>${title}</h3>
    ${rows.length === 0 && html`<p class="muted">No runs.</p>`}
    <ul class="meters" aria-labelledby=${id}>${rows.map(({ key, name, sum }) => html`<li class="meter tone-busy" key=${key}>
      <span class="meter-head"><span class="cut">${name}</span><span class="number nowrap">${amount(sum[unit], unit)} <span
        class="muted">${counted(sum.runs, "run")}</span></span></span>
      <svg class="meter-bar" width="100%" height="8" aria-hidden="true"><rect class="meter-spent" width=${percent(sum[unit] / most)} height="8" rx="3" /></svg>
    </li>`)}</ul>
    ${left > 0 && html`<p class="muted small">And ${left} that cost less.</p>`}
  </article>`;
}
