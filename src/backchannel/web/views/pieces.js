/** Small parts that several of these views share. */

import { html, useState } from "../vendor/preact.js";
import { href } from "../routes.js";
import { Icon } from "../icons.js";
import { Button, Key, toast, visible } from "../parts.js";
import { useGateway } from "../live.js";
import { LongText } from "./message.js";

/** The head of a view: what it is, one line about it, what can be done. */
export function Heading({ id, title, about, children }) {
  return html`<header class="page-head">
    <div class="grow">
      <h1 id=${id}>${title}</h1>
      ${about && html`<p class="muted">${about}</p>`}
    </div>
    ${children && html`<div class="row">${children}</div>`}
  </header>`;
}

/** Says that a list shows one session only, and takes that away. */
export function SessionFilter({ session, onClear }) {
  if (!session) return null;
  return html`<span class="filter-chip">Only <${Key} session=${session} />
    <${Button} kind="quiet" icon="close" label="Show all sessions" onClick=${onClear} /></span>`;
}

/** Names and values; what is not known is left out. */
export function Facts({ facts }) {
  const known = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return html`<dl class="strip">${known.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A text of somebody else: as it is or, of an agent, as Markdown; long ones within bounds. */
export function Quote({ text, kind = "", isMarkdown = false }) {
  return html`<div class=${`quote ${kind}`} dir="auto" tabindex=${text?.length > 600 ? 0 : undefined}>
    <${LongText} text=${text ?? ""} isMarkdown=${isMarkdown} /></div>`;
}

/** Commands between backticks as such, in a sentence of the gateway. */
export function Sentence({ text }) {
  return visible(text).split(/(`[^`]+`)/).map((piece) => (piece.startsWith("`") && piece.length > 2 ? html`<code>${piece.slice(1, -1)}</code>`
    : piece));
}

/** A way back to the list that a thing is in. */
export function Back({ view, children }) {
  return html`<a class="back-link" href=${href(view)}><${Icon} name="back" size=${16} />${children}</a>`;
}

/** Why this token may not do something; undefined when it may. */
export function useScope(scope) {
  const { has } = useGateway();
  return has(scope) ? undefined : `This token has not the scope ${scope}`;
}

/**
 * Does one thing at a time and says what came of it. `act(call, told)` awaits the call, shows what `told` makes of its
 * answer, or the refusal, and reads the rows again.
 */
export function useAct(reload) {
  const [isBusy, setBusy] = useState(false);
  const act = async (call, told) => {
    setBusy(true);
    try {
      toast(told(await call()), "good");
    } catch (refused) {
      toast(refused.message, "bad");
    } finally {
      setBusy(false);
      reload?.();
    }
  };
  return { act, isBusy };
}
