/** Small components that the views share. Everything from other people is text: nothing here ever makes HTML of it. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { Icon } from "./icons.js";
import { useTicker } from "./live.js";
import { href } from "./routes.js";

// Text

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f\u0080-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Make control characters and marks that turn the direction of text visible: `␛`, `⟨U+202E⟩`. */
export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n?/g, "\n")
    .replace(CONTROLS, (mark) => {
      const code = mark.charCodeAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
    });
}

/** A text of somebody else, in one line of ours: its direction ends with it. */
export function Text({ children }) {
  return html`<bdi>${visible([children].flat().join(""))}</bdi>`;
}

// Figures

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `12s`, `5m`, `3h`, `2d`: how long ago, in as few characters as tell it. */
export function age(ts, now = Date.now()) {
  const ms = Math.max(0, now - ts);
  if (ms < 5_000) return "now";
  if (ms < MINUTE) return `${Math.floor(ms / 1000)}s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)}h`;
  return ms < 365 * DAY ? `${Math.floor(ms / DAY)}d` : `${Math.floor(ms / (365 * DAY))}y`;
}

/** How long something took: `340ms`, `2.4s`, `5m12s`, `1h2m`. */
export function duration(ms) {
  if (ms === undefined || ms === null) return "–";
  if (ms < 1_000) return `${Math.round(ms)}ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)}s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${seconds % 60}s`;
  return `${Math.floor(seconds / 3600)}h${Math.floor((seconds % 3600) / 60)}m`;
}

const sameDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const otherDay = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** The time of day, with the date where it is not today. */
export function clock(ts) {
  const isToday = new Date(ts).toDateString() === new Date().toDateString();
  return (isToday ? sameDay : otherDay).format(ts);
}

/** How long ago; the whole time as its title. */
export function Age({ ts, suffix = "" }) {
  const now = useTicker(10_000);
  if (!ts) return html`<span class="muted">–</span>`;
  const shown = age(ts, now);
  return html`<time dateTime=${new Date(ts).toISOString()} title=${whole.format(ts)}>${shown}${shown === "now" ? "" : suffix}</time>`;
}

/** A moment, as a clock shows it. */
export function When({ ts }) {
  if (!ts) return html`<span class="muted">–</span>`;
  return html`<time dateTime=${new Date(ts).toISOString()} title=${whole.format(ts)}>${clock(ts)}</time>`;
}

export function money(usd) {
  if (usd === undefined || usd === null) return "";
  if (usd > 0 && usd < 0.0001) return "<$0.0001";
  return usd > 0 && usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

/** A price; a dash where none is known. */
export function Cost({ usd }) {
  if (usd === undefined || usd === null) return html`<span class="muted" title="no price is known">–</span>`;
  return html`<span class="number">${money(usd)}</span>`;
}

export function count(n) {
  if (n < 1_000) return String(n);
  if (n < 999_950) return `${(n / 1_000).toFixed(n < 9_950 ? 1 : 0)}k`;
  return `${(n / 1_000_000).toFixed(1)}m`;
}

/** A number of tokens. */
export function Tokens({ n }) {
  if (n === undefined || n === null) return html`<span class="muted">–</span>`;
  return html`<span class="number" title=${`${n.toLocaleString()} tokens`}>${count(n)}</span>`;
}

// States

const TONES = {
  running: "busy", sending: "busy", started: "busy", primary: "busy", handover: "busy", turn: "busy", announce: "busy",
  queued: "wait", pending: "wait", waiting: "wait", scheduled: "wait", setAside: "wait", interrupted: "wait",
  ok: "good", sent: "good", done: "good", success: "good", resumed: "good", accepted: "good", announced: "good",
  forbidden: "bad", error: "bad", failed: "bad", timeout: "bad", down: "bad", unavailable: "bad",
  uncertain: "warn", degraded: "warn",
};
const WORDS = { no_channel: "no channel", setAside: "set aside" };

/** A state: a dot and its word, so that colour never says it alone. */
export function Status({ status, title }) {
  if (!status) return html`<span class="muted">–</span>`;
  return html`<span class=${`status tone-${TONES[status] || "quiet"}`} title=${title}><span class="dot" aria-hidden="true"></span>${WORDS[status] || status}</span>`;
}

// Sessions

/** How people call a session: its name, else its key without what every key begins with. */
export function sessionName(session) {
  const { key, label, displayName, name } = typeof session === "string" ? { key: session } : session;
  return visible(label || displayName || name || shortKey(key));
}

const UUID = /([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/gi;

/** A key without `agent:`, with the beginning of each id in it and, for main sessions, only the agent's id. */
export function shortKey(key = "") {
  const [first, agent, ...rest] = key.replace(UUID, "$1…").split(":");
  if (first !== "agent" || !agent || !rest.length) return key;
  return rest.length === 1 && rest[0] === "main" ? agent : `${agent}:${rest.join(":")}`;
}

/** A session's name, linked; its whole key as the title. `session` is a row or a key. */
export function Key({ session, params }) {
  if (!session) return html`<span class="muted">operator</span>`;
  const key = typeof session === "string" ? session : session.key;
  return html`<a class="key" href=${href("sessions", key, params)} title=${key}><bdi>${sessionName(session)}</bdi></a>`;
}

// Notes

/** What is shown where nothing is: what it is, and the next step. */
export function Empty({ title, children, icon }) {
  return html`<div class="empty">
    ${icon && html`<${Icon} name=${icon} size=${28} />`}
    <p class="empty-title">${title}</p>
    ${children && html`<div class="empty-text">${children}</div>`}
  </div>`;
}

/** Something failed: in the words of the gateway, with a way to try again. */
export function ErrorNote({ error, retry }) {
  if (!error) return null;
  return html`<div class="note tone-bad" role="alert">
    <${Icon} name="warning" />
    <div class="note-text"><${Text}>${error.message || String(error)}<//>
      ${error.code && html` <code class="muted">${visible(error.code)}</code>`}</div>
    ${retry && html`<${Button} onClick=${retry}>Try again<//>`}
  </div>`;
}

/** Lines that stand for rows which are being read for the first time. */
export function Skeleton({ rows = 6, height = 44 }) {
  return html`<div class="skeletons" aria-hidden="true">
    ${Array.from({ length: rows }, (_, index) => html`<div key=${index} class="skeleton" style=${{ height: `${height - 12}px` }}></div>`)}
  </div>`;
}

let showToast = null;

/** Say something for a few seconds, at the edge of the page; kind is "good", "bad" or nothing. */
export function toast(text, kind = "") {
  showToast?.({ id: Date.now() + Math.random(), text, kind });
}

export function Toasts() {
  const [shown, setShown] = useState([]);
  useEffect(() => {
    showToast = (one) => {
      setShown((before) => [...before.slice(-2), one]);
      setTimeout(() => setShown((before) => before.filter((each) => each.id !== one.id)), one.kind === "bad" ? 9_000 : 4_000);
    };
    return () => (showToast = null);
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map((one) => html`<div key=${one.id} class=${`toast ${one.kind && `tone-${one.kind}`}`}><${Text}>${one.text}<//></div>`)}
  </div>`;
}

// Things to press

/** A button; `kind` is "primary", "danger", "quiet" or nothing. One with a `disabledReason` does nothing but say why. */
export function Button({ kind = "", disabledReason, disabled, onClick, children, icon, label, type = "button", class: className = "", ...rest }) {
  const isOff = Boolean(disabledReason);
  return html`<button type=${type} class=${`button ${kind} ${icon && !children ? "only-icon" : ""} ${className}`} disabled=${disabled}
    aria-disabled=${isOff ? "true" : undefined} aria-label=${label} title=${disabledReason || rest.title || label}
    onClick=${isOff ? (event) => { event.preventDefault(); toast(disabledReason); } : onClick} ...${without(rest, "title")}>
    ${icon && html`<${Icon} name=${icon} size=${16} />`}${children}
  </button>`;
}

function without({ ...rest }, name) {
  delete rest[name];
  return rest;
}

/** Copies a text, and says so. */
export function CopyButton({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      setDone(true);
      setTimeout(() => setDone(false), 1_500);
    } catch {
      toast("The browser does not let this page copy: it needs https or localhost.", "bad");
    }
  };
  return html`<${Button} kind="quiet" icon=${isDone ? "check" : "copy"} label=${isDone ? "Copied" : label} onClick=${copy} />`;
}

/** Content that is folded away until it is asked for; it is not even made before. */
export function Fold({ summary, open = false, children, class: className = "" }) {
  const [isOpen, setOpen] = useState(open);
  useEffect(() => setOpen(open), [open]);
  return html`<details class=${`fold ${className}`} open=${isOpen} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><${Icon} name="chevron" size=${14} /><span class="fold-summary">${summary}</span></summary>
    ${isOpen && html`<div class="fold-body">${typeof children === "function" ? children() : children}</div>`}
  </details>`;
}

/** A dialog over the page; Escape closes it, and focus goes back to where it was. */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(null);
  const before = useRef(document.activeElement);
  useLayoutEffect(() => {
    const element = dialog.current;
    element.showModal();
    return () => {
      element.close(); // while it is open, nothing behind it takes the focus
      if (before.current?.isConnected) before.current.focus();
    };
  }, []);
  const outside = (event) => event.target === dialog.current && onClose();
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onClick=${outside}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <div class="dialog-box">
      <header><h2 id="dialog-title">${title}</h2><${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} /></header>
      ${children}
    </div>
  </dialog>`;
}

/** Asks before something that cannot be undone. `onConfirm` may be async: the dialog stays until it is done. */
export function Confirm({ title, children, action, kind = "danger", onConfirm, onClose }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
      onClose();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div class="dialog-body">${children}<${ErrorNote} error=${error} /></div>
    <footer><${Button} onClick=${onClose}>Cancel<//><${Button} kind=${kind} disabled=${isBusy} onClick=${confirm}>${action}<//></footer>
  <//>`;
}

/**
 * A button that opens a list of things to do: `items` are `{label, icon?, onClick, disabledReason?, kind?}`, null for a line.
 * Arrows move, Escape closes.
 */
export function Menu({ label, icon = "more", items }) {
  const [isOpen, setOpen] = useState(false);
  const root = useRef(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    root.current.querySelector("[role=menuitem]")?.focus();
    const outside = (event) => root.current && !root.current.contains(event.target) && setOpen(false);
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [isOpen]);
  const close = () => {
    setOpen(false);
    root.current.querySelector("button").focus();
  };
  const keys = (event) => {
    if (!isOpen) return;
    const all = [...root.current.querySelectorAll("[role=menuitem]")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
    else if (event.key === "Escape") close();
    else if (event.key === "Tab") setOpen(false);
    if (step || event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  return html`<div class="menu" ref=${root} onKeyDown=${keys}>
    <${Button} kind="quiet" icon=${icon} label=${label} aria-haspopup="menu" aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)} />
    ${isOpen && html`<div class="menu-list" role="menu" aria-label=${label}>
      ${items.map((item, index) => item === null
        ? html`<hr key=${index} />`
        : html`<button key=${index} type="button" role="menuitem" tabindex="-1" class=${item.kind || ""} title=${item.disabledReason}
            aria-disabled=${item.disabledReason ? "true" : undefined}
            onClick=${() => { if (item.disabledReason) return; close(); item.onClick(); }}>
            ${item.icon && html`<${Icon} name=${item.icon} size=${16} />`}${item.label}</button>`)}
    </div>`}
  </div>`;
}

/** One of several: `options` are `[value, word]`. */
export function Segmented({ label, value, options, onChange }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(([each, word]) => html`<button key=${each} type="button" aria-pressed=${each === value ? "true" : "false"} onClick=${() => onChange(each)}>${word}</button>`)}
  </div>`;
}

/** A list to choose from: `options` are `[value, word]`. */
export function Select({ label, value, options, onChange }) {
  return html`<label class="select"><span class="visually-hidden">${label}</span>
    <select value=${value} aria-label=${label} onChange=${(event) => onChange(event.currentTarget.value)}>
      ${options.map(([each, word]) => html`<option key=${each} value=${each} selected=${each === value}>${word}</option>`)}
    </select></label>`;
}

/** A search field; `onSearch` hears what is in it once typing rests. `/` anywhere on the page goes there. */
export function Search({ label = "Search", value = "", onSearch, waitMs = 200, isMain = true }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const input = useRef(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (next, wait = waitMs) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onSearch(next), wait);
  };
  const keys = (event) => {
    if (event.key === "Enter") change(text, 0);
    if (event.key === "Escape" && text) {
      event.preventDefault();
      event.stopPropagation();
      change("", 0);
    }
  };
  return html`<div class="search" role="search"><${Icon} name="search" size=${16} />
    <input ref=${input} type="search" value=${text} placeholder=${label} aria-label=${label} data-search=${isMain ? "main" : undefined}
      spellcheck=${false} autocomplete="off" onInput=${(event) => change(event.currentTarget.value)} onKeyDown=${keys} />
  </div>`;
}

// Many rows

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
