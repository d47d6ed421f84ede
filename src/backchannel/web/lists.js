/** Long lists: a table, and a list that makes only the rows on the screen. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/**
 * A table of rows; on a narrow screen each row is a card. `columns` are `{name, title, render(row), align?, isMain?, hide?}`;
 * `onOpen(row)`, or `hrefOf(row)`, opens one: by click, by Enter, and j/k and the arrows go from row to row.
 */
export function Table({ columns, rows, keyOf, onOpen, hrefOf, label, selected }) {
  const open = (row) => (hrefOf ? (location.hash = hrefOf(row)) : onOpen?.(row));
  const opens = Boolean(onOpen || hrefOf);
  const click = (event, row) => {
    if (!event.target.closest("a, button, input, select, summary, label") && !String(getSelection())) open(row);
  };
  const keys = (event, row) => {
    if (event.target !== event.currentTarget) return;
    const next = { ArrowDown: "nextElementSibling", j: "nextElementSibling", ArrowUp: "previousElementSibling", k: "previousElementSibling" }[event.key];
    if (event.key === "Enter") open(row);
    else if (next) event.currentTarget[next]?.focus();
    else return;
    event.preventDefault();
  };
  return html`<table class="table" aria-label=${label}>
    <thead><tr>${columns.map((column) => html`<th key=${column.name} scope="col" class=${column.align || ""}>${column.title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)} tabindex=${opens ? "0" : undefined} class=${opens ? "opens" : ""}
      aria-selected=${selected !== undefined && keyOf(row) === selected ? "true" : undefined}
      onClick=${opens ? (event) => click(event, row) : undefined} onKeyDown=${opens ? (event) => keys(event, row) : undefined}>
      ${columns.map((column) => html`<td key=${column.name} class=${`${column.align || ""} ${column.isMain ? "main" : ""}`} data-title=${column.title}>${column.render(row)}</td>`)}
    </tr>`)}</tbody>
  </table>`;
}

/**
 * A list of which only what is on the screen is made: 10,000 rows cost as much as 30. All rows are `rowHeight` high.
 * `total` is how many there are where not all are loaded (-1: nobody knows); `onEnd` loads more. The element that
 * `render(item, index)` gives is put into a list item; the first link or button in it takes part in the arrow keys.
 */
export function VirtualList({ items, rowHeight = 56, keyOf, render, label, onEnd, total, header, footer, role = "list", itemRole = "listitem", itemProps }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const look = () => {
    const element = box.current;
    if (!element) return;
    const next = { top: Math.max(0, element.scrollTop - (element.firstElementChild?.dataset.header ? element.firstElementChild.offsetHeight : 0)), height: element.clientHeight };
    setView((before) => (before.top === next.top && before.height === next.height ? before : next));
  };
  useLayoutEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const over = 8;
  const first = Math.max(0, Math.floor(view.top / rowHeight) - over);
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / rowHeight) + over);
  const isNearEnd = last >= items.length - 10;
  useEffect(() => {
    if (isNearEnd && items.length) onEnd?.();
  }, [isNearEnd, items.length]);

  const goal = useRef(null); // the row that keys pressed in quick succession have reached
  const focusRow = (index) => {
    const to = Math.max(0, Math.min(items.length - 1, index));
    const element = box.current;
    const top = to * rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
    look();
    goal.current = to;
    const focus = () => {
      const row = goal.current === to && element.querySelector(`[data-index="${to}"] :is(a, button:not([tabindex="-1"]))`);
      if (!row) return false;
      goal.current = null;
      row.focus({ preventScroll: true });
      return true;
    };
    if (!focus()) requestAnimationFrame(focus); // a row that was off the screen is there in a moment
  };
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const row = event.target.closest("[data-index]");
    const at = goal.current ?? (row ? Number(row.dataset.index) : -1);
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    focusRow(to);
  };
  const setSize = total ?? items.length;
  return html`<div class="virtual" ref=${box} onScroll=${look} onKeyDown=${keys}>
    ${header && html`<div data-header="yes">${header}</div>`}
    <div class="virtual-rows" role=${role} aria-label=${label} style=${{ height: `${items.length * rowHeight}px` }}>
      ${items.slice(first, last).map((item, offset) => html`<div key=${keyOf(item)} class="virtual-row" role=${itemRole} data-index=${first + offset}
        aria-setsize=${setSize} aria-posinset=${first + offset + 1} ...${itemProps?.(item)} style=${{ height: `${rowHeight}px`, transform: `translateY(${(first + offset) * rowHeight}px)` }}>
        ${render(item, first + offset)}
      </div>`)}
    </div>
    ${footer}
  </div>`;
}
