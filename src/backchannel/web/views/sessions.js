/** The sessions: a live list with filters and search, and the tree of spawns. */
import { Component, html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { useQuestions } from "../approvals.js";
import { gateway } from "../gateway.js";
import { useGateway, useLive, useStored } from "../live.js";
import { Age, Button, Dialog, Empty, ErrorNote, Search, Segmented, Select, Skeleton, Status, VirtualList, activity, count, money, preview, sessionName, visible } from "../parts.js";
import { go, href } from "../routes.js";
import { SessionRows } from "../session_rows.js";
import { FoundMessages } from "./search.js";
import { SpawnTree } from "./tree.js";

const KINDS = [["", "All kinds"], ["main", "Main"], ["group", "Groups"], ["cron", "Cron"], ["hook", "Hooks"], ["node", "Nodes"], ["other", "Other"]];
const TIMES = [["", "Any time"], ["60", "Last hour"], ["1440", "Last day"], ["10080", "Last week"], ["archived", "Archived"]];
const NO_FILTER = { kind: "", agent: "", time: "" };

export function SessionsView({ selected, params = {} }) {
  const [mode, setMode] = useStored("sessions.mode", "list");
  const [filter, setFilter] = useStored("sessions.filter", NO_FILTER);
  const [search, setSearch] = useState("");
  const [leaving, setLeaving] = useState("");
  const [isNew, setNew] = useState(false);
  const agents = useLive(() => gateway.call("agents.list"), []);
  const agentIds = (agents.data?.agents || []).map((agent) => agent.id);
  useEffect(() => {
    if (params.tree) setMode("tree");
  }, [params.tree]);
  return html`<section class="sessions" aria-label="Sessions">
    <header class="sessions-head">
      <div class="row"><h1 class="grow">Sessions</h1>
        <${Segmented} label="How the sessions are shown" value=${mode} options=${[["list", "List"], ["tree", "Tree"]]} onChange=${setMode} />
        <${Button} icon="plus" onClick=${() => setNew(true)}>New chat<//></div>
      ${mode === "list" && html`<${Search} label="Search sessions" value=${search} onSearch=${setSearch} onLeave=${setLeaving} />
        <div class="filters"><${Select} label="Kind" value=${filter.kind} options=${KINDS} onChange=${(kind) => setFilter({ ...filter, kind })} />
          <${Select} label="Agent" value=${filter.agent} options=${[["", "All agents"], ...agentIds.map((id) => [id, id])]} onChange=${(agent) => setFilter({ ...filter, agent })} />
          <${Select} label="Activity" value=${filter.time} options=${TIMES} onChange=${(time) => setFilter({ ...filter, time })} />
          ${(filter.kind || filter.agent || filter.time) && html`<${Button} kind="quiet" icon="close" label="Clear the filters" onClick=${() => setFilter(NO_FILTER)} />`}</div>
        <${FoundMessages} query=${search} />`}
    </header>
    ${mode === "tree" ? html`<${SpawnTree} selected=${selected} root=${params.tree ? selected : undefined} />` : html`<${List} selected=${selected} filter=${filter} search=${search} leaving=${leaving} onLeft=${() => setLeaving("")} onClear=${() => { setFilter(NO_FILTER); setSearch(""); }} onNew=${() => setNew(true)} />`}
    ${isNew && html`<${NewChat} agentIds=${agentIds} onClose=${() => setNew(false)} />`}
  </section>`;
}

function paramsOf({ kind, agent, time }, search) {
  return {
    ...(kind && { kinds: [kind] }),
    ...(agent && { agentId: agent }),
    ...(search.trim() && { search: search.trim() }),
    ...(time === "archived" ? { archived: true } : time && { activeMinutes: Number(time) }),
  };
}

function useRows(filter) {
  const [, setCount] = useState(0);
  const last = useRef(null);
  const rows = useMemo(() => new SessionRows(filter, () => setCount((n) => n + 1)), [JSON.stringify(filter)]);
  useEffect(() => {
    rows.start();
    return () => rows.stop();
  }, [rows]);
  if (rows.isLoaded) last.current = rows;
  const isThere = Boolean(rows.isLoaded || rows.error);
  return { rows: isThere ? rows : last.current || rows, isThere }; // the rows before stay until the new ones are there
}

/** Takes the keyboard from the search field to the list, once what was searched for is there. */
function leaveSearch(where, rows) {
  const list = document.querySelector(".sessions .virtual");
  if (where === "list") (list?.querySelector(".session-row[aria-current]") || list?.querySelector(".session-row") || document.getElementById("main"))?.focus();
  else if (where === "open" && rows.length) go("sessions", rows[0].key);
  else if (list) {
    list.scrollTop = 0;
    requestAnimationFrame(() => list.querySelector('[data-index="0"] a')?.focus());
  }
}

function List({ selected, filter, search, leaving, onLeft, onClear, onNew }) {
  const { rows, isThere } = useRows(paramsOf(filter, search));
  useEffect(() => {
    if (!leaving || !isThere) return;
    leaveSearch(leaving, rows.rows);
    onLeft();
  }, [leaving, isThere]);
  const isFiltered = Boolean(filter.kind || filter.agent || filter.time || search);
  const asking = new Set(useQuestions().data?.approvals.map((approval) => approval.sessionKey));
  if (rows.error && !rows.rows.length) return html`<div class="pane-note"><${ErrorNote} error=${rows.error} retry=${() => rows.reload()} /></div>`;
  if (!rows.isLoaded) return html`<${Skeleton} rows=${8} height=${80} />`;
  if (!rows.rows.length && isFiltered) return html`<${Empty} icon="search" title="No session matches"><${Button} onClick=${onClear}>Clear the filters<//><//>`;
  if (!rows.rows.length) return html`<${Empty} icon="sessions" title="No sessions yet"><p>Every chat, group, job and sub-agent gets its own.</p><${Button} kind="primary" icon="plus" onClick=${onNew}>Start a chat<//><//>`;
  return html`<${VirtualList} label="Sessions" items=${rows.rows} rowHeight=${84} total=${rows.hasMore ? -1 : rows.rows.length} keyOf=${(row) => row.key} onEnd=${() => rows.more()}
    render=${(row) => html`<${SessionRow} row=${row} isSelected=${row.key === selected} isAsking=${asking.has(row.key)} />`} />`;
}

class SessionRow extends Component {
  shouldComponentUpdate(next) {
    return next.row !== this.props.row || next.isSelected !== this.props.isSelected || next.isAsking !== this.props.isAsking;
  }

  render({ row, isSelected, isAsking }) {
    const tokens = row.inputTokens === undefined && row.outputTokens === undefined ? row.totalTokens : (row.inputTokens || 0) + (row.outputTokens || 0);
    const place = [row.spawnedBy ? "sub-agent" : row.classification, row.channel !== "unknown" && row.channel !== row.classification && visible(row.channel)].filter(Boolean).join(" · ");
    return html`<a class="session-row" href=${href("sessions", row.key)} aria-current=${isSelected ? "true" : undefined} title=${row.key}>
      <span class="session-line"><span class="session-name cut"><bdi>${sessionName(row)}</bdi></span><span class="muted small"><${Age} ts=${row.updatedAt} /></span></span>
      <span class="session-preview cut" dir="auto">${preview(row.lastMessagePreview || "") || html`<span class="muted">nothing said yet</span>`}</span>
      <span class="session-line small"><${Status} status=${isAsking ? "waiting" : activity(row)} title=${isAsking ? "for an owner to allow a call" : undefined} /><span class="muted cut">${place}</span>
        <span class="session-used muted number">${tokens ? html`<span title="Tokens in all">${count(tokens)}</span>` : null}${row.estimatedCostUsd ? html`<span title="Estimated cost">${money(row.estimatedCostUsd)}</span>` : null}</span></span>
    </a>`;
  }
}

/** Chooses a session to write to: the main one of an agent, or any key. */
function NewChat({ agentIds, onClose }) {
  const { hello } = useGateway();
  const defaults = hello?.snapshot?.sessionDefaults || {};
  const mainKey = defaults.mainKey || "main";
  const [agent, setAgent] = useState(defaults.defaultAgentId || agentIds[0] || "main");
  const [name, setName] = useState("");
  const open = (key) => {
    onClose();
    go("sessions", key);
  };
  const submit = (event) => {
    event.preventDefault();
    const text = name.trim();
    if (text) open(text.startsWith("agent:") ? text : `agent:${agent}:${text === "main" ? mainKey : text}`);
  };
  return html`<${Dialog} title="New chat" onClose=${onClose}>
    <form onSubmit=${submit}>
      <div class="field"><span>Talk to the main session of</span>
        <div class="row">${agentIds.map((id) => html`<${Button} key=${id} onClick=${() => open(id === defaults.defaultAgentId ? defaults.mainSessionKey || `agent:${id}:${mainKey}` : `agent:${id}:${mainKey}`)}>${id}<//>`)}</div></div>
      <label class="field"><span>Or to a session of its own</span>
        <input type="text" value=${name} placeholder="such as project-x, or agent:writer:drafts" spellcheck=${false} autocapitalize="off" onInput=${(event) => setName(event.currentTarget.value)} />
        <small>One that does not exist is made by the first message.</small></label>
      ${!name.trim().startsWith("agent:") && html`<label class="field"><span>Of the agent</span>
        <select value=${agent} onChange=${(event) => setAgent(event.currentTarget.value)}>${agentIds.map((id) => html`<option key=${id} value=${id} selected=${id === agent}>${id}</option>`)}</select></label>`}
      <footer><${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" type="submit" disabled=${!name.trim()}>Open<//></footer>
    </form>
  <//>`;
}
