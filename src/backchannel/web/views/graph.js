/** The answer of `exchanges.map` as boxes and lines, few enough to be seen at once. */

import { counted } from "./words.js";

export const OPERATOR = "operator";
const MOST_DRAWN = 24;
const FEW_CHILDREN = 3;

/**
 * @param {{nodes: object[], edges: object[]}} map the answer of `exchanges.map`
 * @returns {{talks: object[], names: Map<string, object>, boxes: object[], lines: object[], leftOut: number}}
 *   `talks` are all there are, for the table, and `names` who takes part in them; `boxes` and `lines` are what is drawn
 */
export function buildGraph(map) {
  const edges = map.edges.map((edge) => ({ ...edge, from: edge.from ?? OPERATOR }));
  const known = new Map(map.nodes.map((node) => [node.key, node]));
  const ids = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const nodes = new Map([...ids].map((id) => [id, toNode(id, known.get(id))]));
  const groups = groupChildren(nodes, edges);
  const boxes = toBoxes(nodes, groups);
  const talks = toLines(edges, groups);
  return { talks, names: new Map(boxes.map((box) => [box.id, box])), ...keepBusiest(boxes, talks) };
}

function toNode(id, known) {
  if (id === OPERATOR) return { id, name: "the operator", kind: OPERATOR };
  return { id, ...known, kind: id.includes(":subagent:") ? "sub-agent" : (known?.kind ?? "other"), key: id };
}

/** Finds, by id, the group that a sub-agent belongs to: many that nobody but their requester talks to are one box. */
function groupChildren(nodes, edges) {
  const touching = new Map([...nodes.keys()].map((id) => [id, []]));
  for (const edge of edges) for (const id of new Set([edge.from, edge.to])) touching.get(id).push(edge);
  const children = new Map();
  for (const [id, own] of touching) {
    const isLeaf = id.includes(":subagent:") && own.every((edge) => edge.to === id && edge.from === own[0].from);
    if (isLeaf) children.set(own[0].from, children.get(own[0].from) ?? []).get(own[0].from).push(id);
  }
  const groups = new Map();
  for (const [parent, ids] of children) {
    const group = { id: `${parent} sub-agents`, kind: "sub-agents", name: counted(ids.length, "sub-agent"), parent };
    if (ids.length > FEW_CHILDREN) ids.forEach((id) => groups.set(id, group));
  }
  return groups;
}

const toBoxes = (nodes, groups) => [...new Set([...nodes.values()].map((node) => groups.get(node.id) ?? node))];

function toLines(edges, groups) {
  const lines = new Map();
  for (const edge of edges) {
    const [from, to] = [edge.from, edge.to].map((id) => groups.get(id)?.id ?? id);
    const name = JSON.stringify([from, to]);
    lines.set(name, add(lines.get(name) ?? { from, to, sends: 0, replies: 0, spawns: 0, weight: 0, lastAt: 0 }, edge));
  }
  return [...lines.values()];
}

const add = (line, edge) => ({
  ...line,
  sends: line.sends + edge.sends,
  replies: line.replies + edge.replies,
  spawns: line.spawns + edge.spawns,
  weight: line.weight + edge.sends + edge.spawns,
  cost: edge.cost === undefined ? line.cost : (line.cost ?? 0) + edge.cost,
  lastAt: Math.max(line.lastAt, edge.lastAt ?? 0),
});

/** Keeps those between whom most passed where there are too many to be seen; the table has them all. */
function keepBusiest(boxes, lines) {
  const name = (line) => JSON.stringify([line.from, line.to]);
  const kept = new Set();
  for (const line of [...lines].sort((a, b) => b.weight - a.weight || (name(a) < name(b) ? -1 : 1))) {
    const isRoom = new Set([...kept, line.from, line.to]).size <= MOST_DRAWN;
    if (isRoom) kept.add(line.from).add(line.to);
    if (kept.size === MOST_DRAWN) break;
  }
  return {
    boxes: boxes.filter((box) => kept.has(box.id)),
    lines: lines.filter((line) => kept.has(line.from) && kept.has(line.to)),
    leftOut: boxes.length - kept.size,
  };
}
