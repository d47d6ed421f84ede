/** Small components that the views share. Everything from other people is text: nothing here ever makes HTML of it. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { Icon } from "./icons.js";
import { Text, visible } from "./figures.js";

export * from "./lists.js";
export * from "./figures.js";

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

/**
 * A search field; `onSearch` hears what is in it once typing rests. `/` anywhere on the page goes there. `onLeave` hears
 * where the keyboard wants to go: "open" the first hit, "first" goes to it, "list" gives the search up.
 */
export function Search({ label = "Search", value = "", onSearch, onLeave, waitMs = 200, isMain = true }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const input = useRef(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onSearch(next), waitMs);
  };
  const search = (next) => {
    clearTimeout(timer.current);
    setText(next);
    onSearch(next);
  };
  const keys = (event) => {
    const where = { Enter: "open", ArrowDown: "first", Escape: "list" }[event.key];
    if (!where || event.isComposing || (where === "first" && !onLeave) || (where === "list" && !onLeave && !text)) return;
    event.preventDefault();
    event.stopPropagation();
    search(where === "list" ? "" : text);
    onLeave?.(where);
  };
  return html`<div class="search" role="search"><${Icon} name="search" size=${16} />
    <input ref=${input} type="search" value=${text} placeholder=${label} aria-label=${label} data-search=${isMain ? "main" : undefined}
      spellcheck=${false} autocomplete="off" onInput=${(event) => change(event.currentTarget.value)} onKeyDown=${keys} />
  </div>`;
}
