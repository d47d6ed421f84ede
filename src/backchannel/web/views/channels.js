/** The channels: whether each works, since when, what went wrong last, and what waits. */

import { html } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive } from "../live.js";
import { Age, Empty, ErrorNote, Fold, Skeleton, Status, Text } from "../parts.js";
import { Facts, Heading, Quote } from "./pieces.js";
import { counted, pretty } from "./words.js";

export function ChannelsView() {
  const { data, error, reload } = useLive(() => gateway.call("channels.list"), [], { events: ["delivery"], minMs: 2000, everyMs: 15_000 });
  return html`<section class="page" aria-labelledby="channels-title">
    <${Heading} id="channels-title" title="Channels" about="The ways to people: which work, and what waits to be sent over each." />
    <${ErrorNote} error=${error} retry=${reload} />
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
