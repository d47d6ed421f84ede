/** The channels: their health, their last error, their queue, and strangers who ask. */

import { html } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive } from "../live.js";
import { Age, Button, Empty, ErrorNote, Fold, Skeleton, Status, Table, Text } from "../parts.js";
import { Facts, Heading, Quote, useAct, useScope } from "./pieces.js";
import { counted, pretty } from "./words.js";

export function ChannelsView() {
  const { data, error, reload } = useLive(() => gateway.call("channels.list"), [], { events: ["delivery"], minMs: 2000, everyMs: 15_000 });
  return html`<section class="page" aria-labelledby="channels-title">
    <${Heading} id="channels-title" title="Channels" about="The ways to people: which work, and what waits to be sent over each." />
    <${ErrorNote} error=${error} retry=${reload} />
    <${Strangers} />
    ${!data && !error && html`<${Skeleton} />`}
    ${data?.channels.length === 0 && html`<${Empty} icon="channels"
      title="There are no channels">Add one under <code>channels</code> in the configuration.<//>`}
    <div class="cards">${data?.channels.map((channel) => html`<${Channel} key=${channel.name} channel=${channel} />`)}</div>
  </section>`;
}

function Channel({ channel }) {
  const link = (state, n) => (n ? html`<a class="number" href=${href("deliveries", [], { state })}>${counted(n, "delivery", "deliveries")}</a>`
    : undefined);
  const settings = channel.settings && Object.keys(channel.settings).length ? channel.settings : undefined;
  return html`<article class="card" aria-labelledby=${`channel-${channel.name}`}>
    <header class="row spread"><h2 id=${`channel-${channel.name}`}><${Text}>${channel.name}<//></h2><${Status} status=${channel.status} /></header>
    ${channel.lastError && html`<${Quote} text=${channel.lastError} kind=${channel.status === "down" ? "bad" : "faint"} />`}
    <${Facts} facts=${{
      Adapter: channel.adapter,
      Accounts: channel.accounts?.join(", "),
      Since: channel.since && html`<${Age} ts=${channel.since} suffix=" ago" />`,
      "Last error": channel.lastErrorAt && html`<${Age} ts=${channel.lastErrorAt} suffix=" ago" />`,
      Waiting: link("pending", channel.waiting),
      Failed: link("failed", channel.failed),
      Uncertain: link("uncertain", channel.uncertain),
    }} />
    ${!channel.waiting && !channel.failed && !channel.uncertain && html`<p class="muted small">Nothing waits, nothing failed.</p>`}
    ${settings && html`<${Fold} summary="Settings"><pre class="code" tabindex="0">${pretty(settings)}</pre><//>`}
  </article>`;
}

/** People who were sent a code: each is let in, or ignored from now on. */
function Strangers() {
  const { data, error, reload } = useLive(() => gateway.call("pairing.list", { state: "pending", limit: 200 }), [], { everyMs: 5000 });
  const { act, isBusy } = useAct(reload);
  const held = useScope("operator.admin") ?? (isBusy ? "Wait for the answer" : undefined);
  if (error) return html`<${ErrorNote} error=${error} retry=${reload} />`;
  if (!data?.pairings.length) return null;
  const answer = (method, code, told) => () => act(() => gateway.call(method, { code }), () => told);
  const columns = [
    { name: "who", title: "Who", isMain: true, render: ({ senderName, senderId }) => html`<${Text}>${senderName ?? senderId}<//>
      ${senderName && html` <span class="muted mono">${senderId}</span>`}` },
    { name: "channel", title: "Channel", render: ({ channel }) => html`<${Text}>${channel}<//>` },
    { name: "code", title: "Code", render: ({ code }) => html`<span class="mono">${code}</span>` },
    { name: "asked", title: "Asked", render: ({ createdAt }) => html`<${Age} ts=${createdAt} suffix=" ago" />` },
    { name: "answer", title: "Answer", render: ({ code }) => html`<div class="row">
      <${Button} disabledReason=${held} onClick=${answer("pairing.approve", code, "They may speak now, and were told.")}>Let in<//>
      <${Button} disabledReason=${held} onClick=${answer("pairing.deny", code, "They are ignored from now on.")}>Ignore<//></div>` },
  ];
  return html`<section aria-labelledby="strangers-title"><h2 id="strangers-title">Strangers who ask to be let in</h2>
    <${Table} label="Strangers" columns=${columns} rows=${data.pairings} keyOf=${({ code }) => code} /></section>`;
}
