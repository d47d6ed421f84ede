/** The agents: their models, their tools and why, and awaited functions of programs. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { useLive } from "../live.js";
import { Button, Confirm, Empty, ErrorNote, Fold, Key, Skeleton, Status, Text, toast } from "../parts.js";
import { SpawnDialog } from "./actions.js";
import { Facts, Heading, Sentence, useScope } from "./pieces.js";
import { counted } from "./words.js";

export function AgentsView() {
  const { data, error, reload } = useLive(() => gateway.call("agents.list"), [], { everyMs: 30_000 });
  const { data: models } = useLive(() => gateway.call("models.list", { view: "all" }), [], { everyMs: 60_000 });
  return html`<section class="page" aria-labelledby="agents-title">
    <${Heading} id="agents-title" title="Agents" about="Who answers: each with its model, its tools and its sessions." />
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    <div class="cards wide-cards">${data?.agents.map((agent) => html`<${Agent} key=${agent.id} agent=${agent}
      isDefault=${agent.id === data.defaultId} mainKey=${data.mainKey} models=${models?.models} reload=${reload} />`)}</div>
    ${models && html`<${Models} models=${models.models} />`}
  </section>`;
}

function Agent({ agent, isDefault, mainKey, models, reload }) {
  const [isSpawning, spawn] = useState(false);
  const more = agent.backchannel ?? {};
  const ref = more.model ?? agent.model?.primary;
  const model = models?.find((each) => each.backchannel.ref === ref);
  const price = model?.backchannel.cost;
  const key = `agent:${agent.id}:${mainKey ?? "main"}`;
  const noWrite = useScope("operator.write");
  return html`<article class="card" aria-labelledby=${`agent-${agent.id}`}>
    <header class="row spread">
      <h2 id=${`agent-${agent.id}`}><${Text}>${agent.name ?? agent.id}<//>${agent.name && agent.name !== agent.id
        && html` <span class="muted small">${agent.id}</span>`}</h2>
      <span class="row">${isDefault && html`<span class="badge">default</span>`}${more.isFunction
        && html`<span class="badge">function</span>`}</span>
    </header>
    ${more.waitsFor && html`<${Waits} agent=${agent} reload=${reload} />`}
    <${Facts} facts=${{
      Model: ref && html`<span class="mono wrap">${ref}</span>${model && !model.available
        ? html` <${Status} status="unavailable" title="Its key or its package is missing" />` : ""}`,
      "Context window": model?.contextWindow && `${model.contextWindow.toLocaleString("en")} tokens`,
      Price: price && `$${price.input} in, $${price.output} out per million tokens`,
      Thinking: agent.thinkingDefault,
      "Main session": html`<${Key} session=${key} />`,
      "Sub-agents": subagents(more),
    }} />
    <${Tools} tools=${more.tools} />
    <footer class="row"><${Button} icon="plus" disabledReason=${noWrite} onClick=${() => spawn(true)}>Spawn a sub-agent…<//></footer>
    ${isSpawning && html`<${SpawnDialog} agentId=${agent.id} onClose=${() => spawn(false)} />`}
  </article>`;
}

function Waits({ agent, reload }) {
  const [isAsking, ask] = useState(false);
  const noAdmin = useScope("operator.admin");
  return html`<div class="note tone-warn">
    <div class="note-text">Its runs wait for the program whose function it is. Start that program, or let its model answer instead.</div>
    <${Button} disabledReason=${noAdmin} onClick=${() => ask(true)}>Let its model answer…<//></div>
    ${isAsking && html`<${Confirm} title=${`Forget the function of ${agent.id}?`} action="Let its model answer" kind="primary"
      onClose=${() => ask(false)} onConfirm=${async () => {
      await gateway.call("agents.forget", { agentId: agent.id });
      toast(`The model of ${agent.id} answers from now on.`, "good");
      reload();
    }}><p>Do this when the program will not come back. What waits is answered by the model.</p><//>`}`;
}

/** Under which agents it may start sub-agents, how many, and with which model if it is another one. */
function subagents({ subagents: known, model }) {
  if (!known) return undefined;
  const where = known.allowAgents.includes("*") ? "under any agent" : known.allowAgents.length ? `under ${known.allowAgents.join(", ")}`
    : "under itself";
  return `${where}, at most ${known.maxChildren} at work${known.model && known.model !== model ? `, with ${known.model}` : ""}`;
}

/** What it may call; what it may not, with the setting that says so. */
function Tools({ tools }) {
  if (!tools?.length) return null;
  const denied = tools.filter((tool) => !tool.allowed);
  const allowed = tools.filter((tool) => tool.allowed);
  return html`<h3>Tools</h3>
    <ul class="tools" aria-label="Tools that it has">${allowed.map((tool) => html`<li key=${tool.name} class="badge">
      <span aria-hidden="true">✓</span> ${tool.name}</li>`)}</ul>
    ${allowed.length === 0 && html`<p class="muted">It has none.</p>`}
    ${denied.length > 0 && html`<${Fold} summary=${`${counted(denied.length, "tool")} it has not, and why`}>
      <ul class="denied">${denied.map((tool) => html`<li key=${tool.name}><code>${tool.name}</code> <span class="muted">
        <${Sentence} text=${tool.because ?? "not allowed"} /></span></li>`)}</ul><//>`}`;
}

function Models({ models }) {
  if (!models.length) return html`<${Empty} title="No model is known by name" />`;
  return html`<${Fold} summary=${`${counted(models.length, "model")} known by name`}>
    <ul class="models">${models.map((model) => html`<li key=${model.backchannel.ref}>
      <span class="mono">${model.backchannel.ref}</span> <${Status} status=${model.available ? "ok" : "unavailable"} /> ${model.contextWindow
        && html`<span class="muted small">${model.contextWindow.toLocaleString("en")} tokens</span>`}</li>`)}</ul><//>`;
}
