/** One delivery: its text, the outcome of each part, and what a person can do. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Button, CopyButton, Dialog, ErrorNote, Key, Skeleton, Status, Text } from "../parts.js";
import { Facts, Quote, useAct, useScope } from "./pieces.js";
import { Pick, TextField } from "./forms.js";
import { clockTime, place, receiptInWords, shortId, until } from "./words.js";

const MENDABLE = ["failed", "uncertain"];

export function DeliveryDialog({ id, onClose }) {
  const { data, error, reload } = useLive(() => gateway.call("deliveries.get", { id }), [id],
    { events: ["delivery"], when: (event, payload) => payload.id === id });
  const [isRerouting, reroute] = useState(false);
  const now = useTicker(5000);
  return html`<${Dialog} title="Delivery" onClose=${onClose} wide>
    <div class="dialog-body">
      <${ErrorNote} error=${error} retry=${reload} />
      ${!data && !error && html`<${Skeleton} rows=${4} />`}
      ${data && html`<${Shown} delivery=${data} now=${now} />`}
      ${data && isRerouting && html`<${Reroute} delivery=${data} onDone=${() => reroute(false)} reload=${reload} />`}
    </div>
    ${data && !isRerouting && html`<footer><${Mend} delivery=${data} reload=${reload} onReroute=${() => reroute(true)} /></footer>`}
  <//>`;
}

function Shown({ delivery, now }) {
  return html`
    <p class="headline"><${Status} status=${delivery.state} /> <span class="muted">It ${receiptInWords(delivery, now)}.</span></p>
    ${delivery.error && html`<${Quote} text=${delivery.error} kind="bad" />`}
    <${Facts} facts=${{
      To: html`<${Text}>${place(delivery) || "–"}<//>`,
      Session: html`<${Key} session=${delivery.sessionKey} />`,
      Run: delivery.runId && html`<a class="mono" href=${href("runs", [delivery.runId])}>${shortId(delivery.runId)}</a>`,
      Exchange: delivery.exchangeId && html`<a class="mono" href=${href("exchanges", [delivery.exchangeId])}>${shortId(delivery.exchangeId)}</a>`,
      Made: clockTime(delivery.createdAt, now),
      Changed: clockTime(delivery.updatedAt, now),
      "Next try": delivery.dueAt && delivery.state === "pending" ? `${until(delivery.dueAt, now)} (${clockTime(delivery.dueAt, now)})` : undefined,
      Attempts: delivery.attempts,
      Id: html`<span class="mono wrap">${delivery.id}</span> <${CopyButton} text=${delivery.id} label="Copy the id" />`,
    }} />
    <${Parts} parts=${delivery.parts} />
    ${delivery.text !== undefined ? html`<h3>Text</h3><${Quote} text=${delivery.text} isMarkdown />`
      : html`<p class="muted">Its text is not written yet.</p>`}`;
}

function Parts({ parts }) {
  if (!parts?.length) return null;
  return html`<h3>Parts</h3><ol class="parts">${parts.map((part) => html`<li key=${part.n}>
    <span class="number">${part.n}</span> <${Status} status=${part.state} />
    ${part.messageId && html`<span class="muted">as <${Text}>${part.messageId}<//></span>`}
    ${part.error && html`<span class="bad-text"><${Text}>${part.error}<//></span>`}
  </li>`)}</ol>`;
}

function Mend({ delivery, reload, onReroute }) {
  const { act, isBusy } = useAct(reload);
  const held = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined) ?? whyNot(delivery);
  const retry = () => act(() => gateway.call("deliveries.retry", { id: delivery.id }), () => "It is in line to be sent again.");
  const drop = () => act(() => gateway.call("deliveries.drop", { id: delivery.id }), () => "It is given up.");
  const confirm = () => act(() => gateway.call("deliveries.confirm", { id: delivery.id }), () => "It counts as sent; what is left of it follows.");
  return html`
    ${delivery.state === "uncertain" && html`<${Button} disabledReason=${held} onClick=${confirm}>Confirm that it arrived<//>`}
    <${Button} disabledReason=${held} onClick=${drop}>Drop<//>
    <${Button} disabledReason=${held} onClick=${onReroute}>Re-route…<//>
    <${Button} kind="primary" icon="retry" disabledReason=${held} onClick=${retry}>Send again<//>`;
}

const whyNot = (delivery) => (MENDABLE.includes(delivery.state) ? undefined
  : `It is ${delivery.state}: only what failed or is uncertain can be sent again, re-routed or dropped`);

/** Asks where the whole text shall go instead. */
function Reroute({ delivery, onDone, reload }) {
  const [to, setTo] = useState({ channel: delivery.channel ?? "", to: "", accountId: "", threadId: "" });
  const { data: channels } = useLive(() => gateway.call("channels.list"), []);
  const [error, setError] = useState();
  const names = (channels?.channels ?? []).map((channel) => channel.name).filter((name) => name !== "webchat");
  const send = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(Object.entries(to).filter(([, value]) => value !== ""));
    try {
      await gateway.call("deliveries.reroute", { id: delivery.id, ...given });
      onDone();
      reload();
    } catch (refused) {
      setError(refused);
    }
  };
  const set = (name) => (value) => setTo({ ...to, [name]: value });
  return html`<form class="form" onSubmit=${send} aria-label="Re-route">
    <h3>Send the whole text to another chat</h3>
    <${Pick} label="Channel" hint="The channel that it shall go over" value=${to.channel} onChange=${set("channel")} required
      options=${[...new Set([to.channel, ...names])].filter(Boolean).map((name) => [name, name])} />
    <${TextField} label="To" hint="The chat, as the channel writes it" value=${to.to} onInput=${set("to")} required autofocus />
    <${TextField} label="Account" hint="On that channel; may be left out" value=${to.accountId} onInput=${set("accountId")} />
    <${TextField} label="Thread" hint="In that chat; may be left out" value=${to.threadId} onInput=${set("threadId")} />
    <${ErrorNote} error=${error} />
    <div class="form-foot"><${Button} onClick=${onDone}>Cancel<//><${Button} kind="primary" type="submit">Send it there<//></div>
  </form>`;
}
