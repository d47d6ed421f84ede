/** Fields of forms: a label that says what is asked, a hint below it, and the choice of who speaks. */

import { html } from "../vendor/preact.js";
import { sessionName } from "../parts.js";

/** A label around one input, with a hint. */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

/** One line of text, or several with `rows`; `suggestions` are offered while one writes. */
export function TextField({ label, hint, value, onInput, rows, suggestions, autofocus, ...rest }) {
  const list = suggestions ? `suggestions-${label.replace(/\W/g, "")}` : undefined;
  const focus = autofocus ? (element) => element && !element.dataset.seen && ((element.dataset.seen = "yes"), element.focus()) : undefined;
  const change = (event) => onInput(event.currentTarget.value);
  const input = rows
    ? html`<textarea rows=${rows} value=${value} ref=${focus} dir="auto" onInput=${change} ...${rest}></textarea>`
    : html`<input type="text" value=${value} ref=${focus} list=${list} autocomplete="off" spellcheck=${false} onInput=${change} ...${rest} />`;
  return html`<${Field} label=${label} hint=${hint}>${input}${list && html`<datalist id=${list}>${suggestions.map((each) => html`<option key=${each} value=${each} />`)}</datalist>`}<//>`;
}

/** One of a few words; `options` are `[value, word]`. */
export function Pick({ label, hint, value, options, onChange }) {
  return html`<${Field} label=${label} hint=${hint}><select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
    ${options.map(([each, word]) => html`<option key=${each} value=${each} selected=${each === value}>${word}</option>`)}
  </select><//>`;
}

/** Whether the operator speaks, or the session that is shown. */
export function AsChoice({ session, value, onChange }) {
  if (!session) return null;
  const key = typeof session === "string" ? session : session.key;
  const choices = [["", "the operator"], [key, sessionName(session)]];
  const name = `as-${key}`;
  return html`<fieldset class="as"><legend>As</legend>
    ${choices.map(([each, word]) => html`<label class="check" key=${each}><input type="radio" name=${name} checked=${value === each} onChange=${() => onChange(each)} /> <bdi>${word}</bdi></label>`)}
  </fieldset>`;
}

/** A key under which the gateway takes a request once, however often it is sent. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
