/** The field in which one writes to a session. A draft is kept at every keystroke, for all tabs. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { useGateway, useStored } from "../live.js";
import { Button } from "../parts.js";

export function Composer({ sessionKey, onSend, onAbort, isRunning, history, name }) {
  const { has, state } = useGateway();
  const [draft, setDraft] = useStored(`draft.${sessionKey}`, "");
  const field = useRef(null);
  const recall = useRef(-1);
  const completion = useCompletion(draft);
  const mayWrite = has("operator.write");

  useEffect(() => {
    if (matchMedia("(min-width: 761px)").matches) field.current?.focus({ preventScroll: true });
  }, [sessionKey]);

  const change = (text) => {
    recall.current = -1;
    setDraft(text || undefined);
  };
  const send = () => {
    const text = draft?.trim() ? draft : "";
    if (!text || !mayWrite) return;
    onSend(text.trim());
    change("");
    completion.close();
    field.current?.focus();
  };
  const put = (text) => {
    setDraft(text || undefined);
    requestAnimationFrame(() => field.current?.setSelectionRange(text.length, text.length));
  };
  const recallBy = (step) => {
    const next = Math.max(-1, Math.min(history.length - 1, recall.current + step));
    if (next === recall.current) return;
    recall.current = next;
    put(next < 0 ? "" : history[next]);
  };
  const keys = (event) => {
    if (event.isComposing) return;
    if (completion.keys(event, put)) return;
    const isRecalling = !draft || recall.current >= 0;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey && !isTouch()) send();
    else if (event.key === "ArrowUp" && isRecalling && history.length) recallBy(1);
    else if (event.key === "ArrowDown" && recall.current >= 0) recallBy(-1);
    else if (event.key === "Escape" && isRunning) onAbort();
    else if (event.key === "Escape") (document.querySelector(".session-row[aria-current]") || document.querySelector(".session-row"))?.focus(); // back to the list
    else return;
    event.preventDefault();
  };

  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${completion.list}
    <div class="composer-box">
      <textarea ref=${field} rows="1" value=${draft || ""} disabled=${!mayWrite} aria-label=${`Message to ${name}`} placeholder=${mayWrite ? `Message ${name}` : "This token may only read."}
        dir="auto" enterkeyhint="enter" ...${completion.props} onInput=${(event) => change(event.currentTarget.value)} onKeyDown=${keys}></textarea>
      ${isRunning && html`<${Button} icon="stop" label="Stop the run (Esc)" disabledReason=${mayWrite ? undefined : "This token may only read."} onClick=${onAbort} />`}
      <${Button} type="submit" kind="primary" icon="send" label="Send" disabled=${!draft?.trim() || !mayWrite} />
    </div>
    <p class="composer-hint muted">${!mayWrite ? "" : state === "open"
      ? html`<kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> is a new line, <kbd>/</kbd> lists commands, <kbd>↑</kbd> brings back${isRunning ? html`, <kbd>Esc</kbd> stops` : ""}`
      : "Not connected: what you write is kept, and sent as soon as the gateway is back."}</p>
  </form>`;
}

const isTouch = () => matchMedia("(pointer: coarse) and (max-width: 760px)").matches;

let commands = null;

/** The chat commands that begin as the draft does. */
function useCompletion(draft) {
  const [all, setAll] = useState(commands || []);
  const [chosen, setChosen] = useState(0);
  const [closedFor, setClosedFor] = useState(null);
  const isCommand = /^\/\S*$/.test(draft || "");
  useEffect(() => {
    if (isCommand && !commands) {
      gateway.call("commands.list").then((answer) => setAll((commands = answer.commands)), () => {});
    }
  }, [isCommand]);
  const found = useMemo(() => (isCommand ? all.filter((each) => `/${each.name}`.startsWith(draft.toLowerCase())) : []), [draft, all]);
  useEffect(() => setChosen(0), [found.length]);
  useEffect(() => document.getElementById(`command-${chosen}`)?.scrollIntoView({ block: "nearest" }), [chosen]);
  const isExact = found.some((each) => `/${each.name}` === draft);
  const isOpen = found.length > 0 && closedFor !== draft && !isExact;

  const take = (command, put) => put(`/${command.name}${command.acceptsArgs ? " " : ""}`);
  const keys = (event, put) => {
    if (!isOpen) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setChosen((chosen + step + found.length) % found.length);
    else if (event.key === "Tab" || event.key === "Enter") take(found[chosen], put);
    else if (event.key === "Escape") setClosedFor(draft);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  const props = {
    "aria-autocomplete": "list",
    "aria-controls": isOpen ? "commands" : undefined,
    "aria-activedescendant": isOpen ? `command-${chosen}` : undefined,
  };
  const field = () => document.querySelector(".composer textarea");
  const pick = (command) => (event) => {
    event.preventDefault();
    field().value = "";
    take(command, (text) => {
      field().value = text;
      field().dispatchEvent(new Event("input", { bubbles: true }));
      field().focus();
    });
  };
  const list = isOpen && html`<ul id="commands" class="completion" role="listbox" aria-label="Commands">
    ${found.map((command, index) => html`<li key=${command.name} id=${`command-${index}`} role="option" aria-selected=${index === chosen ? "true" : "false"} onMouseDown=${pick(command)}>
      <code>${command.backchannel.usage}</code><span class="muted">${command.description}</span></li>`)}
  </ul>`;
  return { list, keys, props, close: () => setClosedFor(null) };
}
