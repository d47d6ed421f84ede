/** Fields of forms: a label, a hint below it, and the choice of who speaks. */

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { sessionName } from "../parts.js";

let made = 0;

/** A label, one input, and a hint that describes it. `children` makes the input, of the attributes that tie them together. */
export function Field({ label, hint, children }) {
  const id = useRef(null);
  id.current ??= `field-${++made}`;
  const describedBy = hint ? `${id.current}-hint` : undefined;
  return html`<div class="field">
    <label for=${id.current}>${label}</label>
    ${children({ id: id.current, "aria-describedby": describedBy })}
    ${hint && html`<small id=${describedBy}>${hint}</small>`}
  </div>`;
}

/** One line of text, or several with `rows`; `suggestions` are offered while one writes. */
export function TextField({ label, hint, value, onInput, rows, suggestions, autofocus, ...rest }) {
  const input = useRef(null);
  useLayoutEffect(() => {
    if (autofocus) input.current.focus(); // in a dialog that is about to open the attribute does it
  }, []);
  const change = (event) => onInput(event.currentTarget.value);
  return html`<${Field} label=${label} hint=${hint}>${(tied) => (rows
    ? html`<textarea rows=${rows} value=${value} ref=${input} autofocus=${autofocus} dir="auto" onInput=${change} ...${tied} ...${rest}></textarea>`
    : html`<input type="text" value=${value} ref=${input} autofocus=${autofocus} list=${suggestions ? `${tied.id}-list` : undefined}
      autocomplete="off" spellcheck=${false} onInput=${change} ...${tied} ...${rest} />
        ${suggestions && html`<datalist id=${`${tied.id}-list`}>${suggestions.map((each) => html`<option key=${each}
          value=${each} />`)}</datalist>`}`)}<//>`;
}

/** One of a few words; `options` are `[value, word]`. */
export function Pick({ label, hint, value, options, onChange, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>${(tied) => html`<select value=${value}
    onChange=${(event) => onChange(event.currentTarget.value)} ...${tied} ...${rest}>
    ${options.map(([each, word]) => html`<option key=${each} value=${each} selected=${each === value}>${word}</option>`)}
  </select>`}<//>`;
}

/** Whether the operator speaks, or the session that is shown. */
export function AsChoice({ session, value, onChange }) {
  if (!session) return null;
  const key = typeof session === "string" ? session : session.key;
  const choices = [["", "the operator"], [key, sessionName(session)]];
  return html`<fieldset class="as"><legend>As</legend>
    ${choices.map(([each, word]) => html`<label class="check" key=${each}>
      <input type="radio" name=${`as-${key}`} checked=${value === each} onChange=${() => onChange(each)} /> <bdi>${word}</bdi></label>`)}
  </fieldset>`;
}

/** A key under which the gateway takes a request once, however often it is sent. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
