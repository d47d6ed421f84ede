/** The tree of spawns: each session with its state, its cost, and its result. */
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { Icon } from "../icons.js";
import { useLive, useStored } from "../live.js";
import { Age, Empty, ErrorNote, Skeleton, Status, VirtualList, count, money, sessionName, visible } from "../parts.js";
import { href } from "../routes.js";

const LIMIT = 1000;
const ROW = 60;

/** The tree of all sessions, or of `root` and all below it. */
export function SpawnTree({ selected, root }) {
  const [isOnlyParents, setOnlyParents] = useStored("tree.parents", true);
  const { data, error, reload } = useLive(() => gateway.call("sessions.tree", { limit: LIMIT, ...(root && { key: root }) }), [root], { events: ["sessions.changed", "delivery"], minMs: 1_000 });
  const [closed, setClosed] = useState(new Set());
  const nodes = useMemo(() => new Map((data?.nodes || []).map((node) => [node.key, node])), [data]);
  const lines = useMemo(() => flatten(data?.roots || [], nodes, closed, isOnlyParents && !root), [data, closed, isOnlyParents, root]);
  const toggle = (key) => {
    const next = new Set(closed);
    if (!next.delete(key)) next.add(key);
    setClosed(next);
  };
  if (error && !data) return html`<div class="pane-note"><${ErrorNote} error=${error} retry=${reload} /></div>`;
  if (!data) return html`<${Skeleton} rows=${8} height=${ROW} />`;
  const keys = (event) => {
    const line = lines[Number(event.target.closest("[data-index]")?.dataset.index)];
    if (!line?.node.children.length) return;
    const isOpen = !closed.has(line.node.key);
    if ((event.key === "ArrowRight" && !isOpen) || (event.key === "ArrowLeft" && isOpen)) {
      event.preventDefault();
      toggle(line.node.key);
    }
  };
  return html`<div class="tree" onKeyDown=${keys}>
    <div class="tree-head">${root ? html`<a href=${href("sessions", selected || [])}>Show all trees</a>` : html`<label class="check"><input type="checkbox" checked=${isOnlyParents} onChange=${(event) => setOnlyParents(event.currentTarget.checked)} />only those with sub-agents</label>`}</div>
    ${lines.length
      ? html`<${VirtualList} label="Spawn tree" role="tree" itemRole="treeitem" items=${lines} rowHeight=${ROW} keyOf=${(line) => line.node.key}
          itemProps=${({ node, depth }) => ({ "aria-level": depth + 1, "aria-expanded": node.children.length ? (closed.has(node.key) ? "false" : "true") : undefined, "aria-selected": node.key === selected ? "true" : "false" })}
          render=${(line) => html`<${TreeRow} line=${line} isOpen=${!closed.has(line.node.key)} isSelected=${line.node.key === selected} onToggle=${toggle} />`}
          footer=${data.truncated && html`<p class="muted small pane-note">Only the newest ${LIMIT} are shown.</p>`} />`
      : html`<${Empty} icon="tree" title="No sub-agents yet"><p>An agent starts one with sessions_spawn; you start one from the menu of a session.</p><//>`}
  </div>`;
}

/** The lines that are visible, each with its depth. A session that a broken row makes its own ancestor is shown once. */
function flatten(roots, nodes, closed, isOnlyParents) {
  const lines = [];
  const seen = new Set();
  const walk = (key, depth) => {
    const node = nodes.get(key);
    if (!node || seen.has(key)) return;
    seen.add(key);
    lines.push({ node, depth });
    if (!closed.has(key)) node.children.forEach((child) => walk(child, depth + 1));
  };
  roots.filter((key) => !isOnlyParents || nodes.get(key)?.children.length).forEach((key) => walk(key, 0));
  return lines;
}

function TreeRow({ line: { node, depth }, isOpen, isSelected, onToggle }) {
  const hasChildren = node.children.length > 0;
  return html`<div class=${`tree-row ${isSelected ? "chosen" : ""}`} style=${{ paddingLeft: `${8 + Math.min(depth, 8) * 20}px` }}>
    ${hasChildren
      ? html`<button type="button" tabindex="-1" class=${`tree-toggle ${isOpen ? "open" : ""}`} aria-label=${isOpen ? "Fold" : "Unfold"} onClick=${() => onToggle(node.key)}><${Icon} name="chevron" size=${14} /></button>`
      : html`<span class="tree-toggle" aria-hidden="true"></span>`}
    <a href=${href("sessions", node.key)} class="tree-link" title=${node.task ? visible(node.task) : node.key}>
      <span class="session-line"><span class="session-name cut"><bdi>${titleOf(node)}</bdi></span><span class="muted small"><${Age} ts=${node.endedAt || node.startedAt || node.updatedAt} /></span></span>
      <span class="session-line small"><${Status} status=${node.runStatus || node.status} />
        ${node.receipt && html`<span class="muted nowrap" title="What became of its result">receipt: ${node.receipt.state}</span>`}
        ${node.archived && html`<span class="muted">archived</span>`}
        <${Used} node=${node} /></span>
    </a>
  </div>`;
}

/** A sub-agent is known by its task, where nobody gave it a name. */
function titleOf({ key, label, displayName, task }) {
  return label || displayName ? sessionName({ key, label, displayName }) : task ? visible(task) : sessionName(key);
}

/** What a session used, with all that it spawned. */
function Used({ node }) {
  const all = node.treeUsage || {};
  const tokens = (all.input || 0) + (all.output || 0);
  const own = node.spawned ? ` (${count(node.tokens || 0)} of its own)` : "";
  return html`<span class="session-used muted number">${tokens ? html`<span title=${`Tokens, with all below it${own}`}>${count(tokens)}</span>` : null}
    ${all.cost ? html`<span title="Estimated cost, with all below it">${money(all.cost)}</span>` : null}</span>`;
}
