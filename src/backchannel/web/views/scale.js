/**
 * The time axis of a run.
 *
 * Work is drawn to scale. A long stretch in which nothing happened (a night in which the gateway was down, an hour set
 * aside) is cut out, as a fold in the axis with its length written.
 */

const FOLD = 0.05; // how much of the axis a fold takes
const LONG = 0.3; // idle time is folded when it is longer than this part of all the work

/**
 * @param {{from: number, to: number}[]} spans when something was at work, in any order
 * @param {number} start where the axis begins
 * @param {number} end where it ends
 * @returns {{at: (ms: number) => number, folds: {left: number, width: number, ms: number}[], ticks: {left: number, ms: number}[]}}
 *   `at` gives a place between 0 and 1
 */
export function buildScale(spans, start, end) {
  const last = Math.max(end, start + 1);
  const busy = merge(spans, start, last);
  const work = busy.reduce((sum, span) => sum + span.to - span.from, 0);
  const pieces = cut(busy, start, last, Math.max(work * LONG, 250));
  const folded = pieces.filter((piece) => piece.isFold).length;
  const share = Math.min(FOLD, 0.4 / Math.max(folded, 1));
  const drawn = pieces.reduce((sum, piece) => sum + (piece.isFold ? 0 : piece.to - piece.from), 0) || 1;
  let left = 0;
  for (const piece of pieces) {
    piece.left = left;
    piece.width = piece.isFold ? share : ((piece.to - piece.from) / drawn) * (1 - folded * share);
    left += piece.width;
  }
  return {
    at: (ms) => place(pieces, Math.min(Math.max(ms, start), last)),
    folds: pieces.filter((piece) => piece.isFold).map((piece) => ({ left: piece.left, width: piece.width, ms: piece.to - piece.from })),
    ticks: ticks(pieces, start, drawn).filter((tick) => !pieces.some((piece) => isLabelled(piece) && tick.left > piece.left - 0.09
      && tick.left < piece.left + piece.width + 0.03)),
  };
}

/** Whether the length of a fold is written on the axis, where a tick would be in its way. */
const isLabelled = (piece) => piece.isFold && piece.width >= FOLD;

function merge(spans, start, end) {
  const inside = spans
    .map(({ from, to }) => ({ from: Math.max(from, start), to: Math.min(Math.max(to, from), end) }))
    .filter((span) => span.to >= span.from)
    .sort((a, b) => a.from - b.from);
  const merged = [];
  for (const span of inside) {
    const previous = merged.at(-1);
    if (previous && span.from <= previous.to) previous.to = Math.max(previous.to, span.to);
    else merged.push({ ...span });
  }
  return merged;
}

function cut(busy, start, end, longest) {
  const pieces = [];
  let from = start;
  const idle = (to) => {
    if (to > from) pieces.push({ from, to, isFold: to - from > longest });
  };
  for (const span of busy) {
    idle(span.from);
    if (span.to > span.from) pieces.push({ from: span.from, to: span.to, isFold: false });
    from = Math.max(from, span.to);
  }
  idle(end);
  if (pieces.every((piece) => piece.isFold)) pieces.forEach((piece) => (piece.isFold = false)); // nothing but waiting
  return pieces;
}

function place(pieces, ms) {
  const piece = pieces.find((candidate) => ms <= candidate.to) ?? pieces.at(-1);
  if (!piece) return 0;
  return piece.left + (piece.width * Math.max(0, ms - piece.from)) / (piece.to - piece.from);
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 864e5, 6048e5, 2592e6, 7776e6];

function ticks(pieces, start, drawn) {
  const step = STEPS.find((candidate) => drawn / candidate <= 5) ?? 7776e6;
  const found = [];
  for (const piece of pieces) {
    if (piece.isFold) continue;
    const first = Math.ceil((piece.from - start) / step) * step;
    for (let ms = first; ms <= piece.to - start && found.length < 40; ms += step) {
      const left = place(pieces, start + ms);
      if (left <= 0.94 && left - (found.at(-1)?.left ?? -1) > 0.12) found.push({ left, ms });
    }
  }
  return found;
}
