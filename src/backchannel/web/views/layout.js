/**
 * Where the sessions of the map stand: columns from left to right, who starts a talk before who is asked. The same talks
 * always give the same picture, and one more changes as little as can be.
 */

export const BOX = { width: 184, height: 44 };
const GAP = { column: 116, row: 20 };
const MARGIN = 16;

/**
 * @param {{id: string}[]} nodes
 * @param {{from: string, to: string, weight: number}[]} edges
 * @returns {{width: number, height: number, places: Map<string, {x: number, y: number, column: number}>}}
 */
export function placeNodes(nodes, edges) {
  const columns = order(toColumns(nodes, edges), edges);
  const tallest = Math.max(...columns.map((column) => column.length), 1);
  const height = tallest * (BOX.height + GAP.row) - GAP.row;
  const places = new Map();
  columns.forEach((column, index) => {
    const top = (height - (column.length * (BOX.height + GAP.row) - GAP.row)) / 2;
    column.forEach((id, row) => places.set(id, { x: MARGIN + index * (BOX.width + GAP.column), y: MARGIN + top + row * (BOX.height + GAP.row), column: index }));
  });
  return { width: MARGIN * 2 + columns.length * (BOX.width + GAP.column) - GAP.column, height: height + MARGIN * 2, places };
}

/** The first column are those whom nobody asked, else who asks most; each other stands one behind the first who asks it. */
function toColumns(nodes, edges) {
  const rank = new Map();
  const left = nodes.map((node) => node.id).sort();
  while (rank.size < nodes.length) {
    const open = left.filter((id) => !rank.has(id));
    const frontier = [best(open, edges, rank)];
    rank.set(frontier[0], 0);
    for (const id of frontier) {
      for (const next of targets(id, edges)) {
        if (rank.has(next)) continue;
        rank.set(next, rank.get(id) + 1);
        frontier.push(next);
      }
    }
  }
  const columns = [];
  for (const id of left) (columns[rank.get(id)] ??= []).push(id);
  return columns;
}

const targets = (id, edges) => edges.filter((edge) => edge.from === id && edge.to !== id).map((edge) => edge.to).sort();

function best(open, edges, rank) {
  const score = (id) => {
    const asked = edges.filter((edge) => edge.to === id && edge.from !== id && !rank.has(edge.from));
    const asks = edges.filter((edge) => edge.from === id && edge.to !== id);
    return [asked.length === 0 ? 1 : 0, sumOf(asks) - sumOf(asked)];
  };
  return open.map((id) => ({ id, score: score(id) })).sort((a, b) => b.score[0] - a.score[0] || b.score[1] - a.score[1] || (a.id < b.id ? -1 : 1))[0].id;
}

const sumOf = (edges) => edges.reduce((sum, edge) => sum + edge.weight, 0);

/** Puts those of a column beside whom they talk with, so that few lines cross. */
function order(columns, edges) {
  for (let sweep = 0; sweep < 4; sweep++) {
    const isBack = sweep % 2 === 1;
    for (let index = isBack ? columns.length - 2 : 1; isBack ? index >= 0 : index < columns.length; index += isBack ? -1 : 1) {
      const near = columns[index + (isBack ? 1 : -1)];
      const middle = new Map(columns[index].map((id, row) => [id, mean(id, near, edges) ?? row]));
      columns[index].sort((a, b) => middle.get(a) - middle.get(b) || (a < b ? -1 : 1));
    }
  }
  return columns;
}

function mean(id, near, edges) {
  const rows = edges.filter((edge) => edge.from === id || edge.to === id).map((edge) => near.indexOf(edge.from === id ? edge.to : edge.from)).filter((row) => row >= 0);
  return rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : undefined;
}

/**
 * The line of an edge. Forward lines run from the right side of a box to the left side of the next; lines back, and within a
 * column, bow around, so that two that talk in both directions have two lines.
 */
export function pathOf(from, to) {
  const half = BOX.height / 2;
  if (from === to) {
    const x = from.x + BOX.width;
    const y = from.y + half;
    return { d: `M ${x} ${y - 8} c 44 -18 44 34 0 16`, x: x + 34, y };
  }
  if (to.column > from.column) {
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + half - 5, to.x - 7, to.y + half - 5];
    const bend = Math.min((x2 - x1) / 2, 90);
    return { d: `M ${x1} ${y1} C ${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
  }
  if (to.column === from.column) {
    const [x, y1, y2] = [from.x + BOX.width, from.y + half + 7, to.y + half + 7];
    return { d: `M ${x} ${y1} C ${x + 60} ${y1} ${x + 60} ${y2} ${x + 7} ${y2}`, x: x + 46, y: (y1 + y2) / 2 };
  }
  const [x1, y1, x2, y2] = [from.x, from.y + half + 9, to.x + BOX.width + 7, to.y + half + 9];
  const bend = Math.min((x1 - x2) / 2, 90);
  return { d: `M ${x1} ${y1} C ${x1 - bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}`, x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
}
