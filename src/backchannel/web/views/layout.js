/**
 * The layout of the map: sessions in columns from left to right.
 *
 * A session that starts a talk stands before the session that is asked. The same talks always give the same picture, and one
 * more changes as little as can be.
 */

export const BOX = { width: 176, height: 44 };
const GAP = { column: 112, row: 32, tight: 12 };
const MANY = 8;
const ARROW = 7;
const MARGIN = 16;

/**
 * @param {{id: string}[]} nodes
 * @param {{from: string, to: string, weight: number}[]} edges
 * @returns {{width: number, height: number, places: Map<string, {x: number, y: number, column: number}>}}
 */
export function placeNodes(nodes, edges) {
  const columns = order(toColumns(nodes, edges), edges);
  const tallest = Math.max(...columns.map((column) => column.length), 1);
  const gap = tallest > MANY ? GAP.tight : GAP.row;
  const height = tallest * (BOX.height + gap) - gap;
  const places = new Map();
  columns.forEach((column, index) => {
    const top = (height - (column.length * (BOX.height + gap) - gap)) / 2;
    column.forEach((id, row) => places.set(id,
      { x: MARGIN + index * (BOX.width + GAP.column), y: MARGIN + top + row * (BOX.height + gap), column: index }));
  });
  return { width: MARGIN * 2 + columns.length * (BOX.width + GAP.column) - GAP.column, height: height + MARGIN * 2, places };
}

/**
 * In the first column are those whom nobody asked; each other stands one behind the nearest who asks it, so a line never
 * passes over a column. Where all are asked by somebody, who asks most begins.
 */
function toColumns(nodes, edges) {
  const ids = nodes.map((node) => node.id).sort();
  const rank = new Map();
  while (rank.size < ids.length) {
    const open = ids.filter((id) => !rank.has(id));
    const sources = open.filter((id) => !edges.some((edge) => edge.to === id && edge.from !== id));
    const frontier = sources.length ? sources : [boldest(open, edges)];
    frontier.forEach((id) => rank.set(id, 0));
    for (const id of frontier) {
      for (const next of targets(id, edges)) {
        if (rank.has(next)) continue;
        rank.set(next, rank.get(id) + 1);
        frontier.push(next);
      }
    }
  }
  const columns = [];
  for (const id of ids) (columns[rank.get(id)] ??= []).push(id);
  return columns;
}

const targets = (id, edges) => edges.filter((edge) => edge.from === id && edge.to !== id).map((edge) => edge.to).sort();

function boldest(open, edges) {
  const asks = (id) => sumOf(edges.filter((edge) => edge.from === id)) - sumOf(edges.filter((edge) => edge.to === id));
  return [...open].sort((a, b) => asks(b) - asks(a) || (a < b ? -1 : 1))[0];
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
  const rows = edges.filter((edge) => edge.from === id
    || edge.to === id).map((edge) => near.indexOf(edge.from === id ? edge.to : edge.from)).filter((row) => row >= 0);
  return rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : undefined;
}

/**
 * The line of an edge, and where its count stands. Forward lines run from the right side of a box to the left side of the
 * next; lines back, and within a column, bow around, so that two that talk in both directions have two lines.
 * @returns {{d: string, x: number, y: number}}
 */
export function pathOf(from, to) {
  const middle = from.y + BOX.height / 2;
  const aim = to.y + BOX.height / 2;
  if (from === to) return curve([from.x + BOX.width, middle - 9], [from.x + BOX.width + 50, middle - 28], [from.x + BOX.width + 50, middle + 28],
    [from.x + BOX.width + 6, middle + 9]);
  if (to.column > from.column) return sweep([from.x + BOX.width, middle - 8], [to.x - ARROW, aim - 8]);
  if (to.column < from.column) return sweep([from.x, middle + 10], [to.x + BOX.width + ARROW, aim + 10]);
  const right = from.x + BOX.width;
  return curve([right, middle + 7], [right + 60, middle + 7], [right + 60, aim + 7], [right + ARROW, aim + 7]);
}

/** A line that leaves and arrives level. */
function sweep(start, end) {
  const bend = Math.max(-90, Math.min(90, (end[0] - start[0]) / 2));
  return curve(start, [start[0] + bend, start[1]], [end[0] - bend, end[1]], end);
}

const COUNT_AT = 0.4; // nearer to who asks: the counts of two opposite lines stand apart

function curve(...points) {
  const [start, one, two, end] = points;
  const t = COUNT_AT;
  const at = (axis) => (1 - t) ** 3 * start[axis] + 3 * (1 - t) ** 2 * t * one[axis] + 3 * (1 - t) * t ** 2 * two[axis] + t ** 3 * end[axis];
  return { d: `M ${start.join(" ")} C ${[one, two, end].map((point) => point.join(" ")).join(" ")}`, x: at(0), y: at(1) };
}
