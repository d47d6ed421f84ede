/** Cron jobs: messages that come by the clock. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive, useTicker } from "../live.js";
import { Age, Button, Confirm, Dialog, Empty, ErrorNote, Key, Skeleton, Status, Text, toast } from "../parts.js";
import { TextField } from "./forms.js";
import { Facts, Heading, Quote, useAct, useScope } from "./pieces.js";
import { clockTime, counted, oneLine, place, until } from "./words.js";

const isJobs = (event, payload) => (payload.sessionKey ?? "").includes(":cron:");

/** Read all jobs: a page is as many as fit into a frame. */
async function allJobs() {
  const jobs = [];
  for (let offset = 0; offset != null; ) {
    const page = await gateway.call("cron.list", { offset });
    jobs.push(...page.jobs);
    offset = page.nextOffset;
  }
  return { jobs };
}

export function JobsView() {
  const [isAdding, add] = useState(false);
  const { data, error, reload } = useLive(allJobs, [], { events: ["sessions.changed"], when: isJobs, everyMs: 30_000 });
  const noAdmin = useScope("operator.admin");
  return html`<section class="page" aria-labelledby="jobs-title">
    <${Heading} id="jobs-title" title="Jobs" about="Messages that come by the clock, each as a run of its own session.">
      <${Button} kind="primary" icon="plus" disabledReason=${noAdmin} onClick=${() => add(true)}>Add a job<//>
    <//>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Skeleton} />`}
    ${data?.jobs.length === 0 && html`<${Empty} icon="jobs"
      title="There are no jobs">Add one here, with <code>backchannel cron add</code>, or under <code>cron.jobs</code> in the configuration.<//>`}
    <div class="cards">${data?.jobs.map((job) => html`<${Job} key=${job.id} job=${job.backchannel} message=${job.payload.message} reload=${reload} />`)}</div>
    ${isAdding && html`<${AddJob} onClose=${() => add(false)} onAdded=${reload} />`}
  </section>`;
}

function Job({ job, message, reload }) {
  const now = useTicker(1000);
  const [isAsking, ask] = useState(false);
  const { act, isBusy } = useAct(reload);
  const [fired, setFired] = useState();
  const noWrite = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  const noAdmin = useScope("operator.admin") ?? (job.source === "config" ? "It is in the configuration: take it out there" : undefined);
  const run = () => act(async () => {
    const { runId } = await gateway.call("cron.run", { id: job.id });
    setFired(runId);
    return runId;
  }, (runId) => runId ? `Job ${job.id} runs.` : `Job ${job.id} has nothing to do: its command said no.`);
  return html`<article class="card job" aria-labelledby=${`job-${job.id}`}>
    <header class="row spread"><h2 id=${`job-${job.id}`}><${Text}>${job.id}<//></h2><${Status} status=${job.status} /></header>
    <p class="job-next">${job.nextAt ? html`<strong class="number">${until(job.nextAt, now)}</strong> <span
      class="muted">${clockTime(job.nextAt, now)}</span>` : html`<span class="muted">Comes no more: ${job.status}</span>`}</p>
    <${Quote} text=${oneLine(message, 240)} />
    <${Facts} facts=${{
      Schedule: html`<code><${Text}>${job.schedule}<//></code>${job.tz ? html` <span class="muted">${job.tz}</span>` : ""}`,
      Session: html`<${Key} session=${job.sessionKey} />`,
      "Goes to": job.deliver && html`<${Text}>${place(job.deliver)}<//>`,
      Model: job.model,
      "Last run": job.lastRun && html`<a href=${href("runs", [job.lastRun.runId])}>
        <${Status} status=${job.lastRun.status} /></a> <span class="muted"><${Age} ts=${job.lastRun.acceptedAt} suffix=" ago" /></span>`,
      Only: job.when && html`if <code><${Text}>${oneLine(job.when.command, 160)}<//></code> has output`,
      Now: job.checkingSince && html`its command runs, since <${Age} ts=${job.checkingSince} />`,
      Skipped: job.skipped ? html`<${Skips} job=${job} />` : undefined,
      From: job.source === "config" ? "the configuration" : undefined,
    }} />
    ${job.lastError && html`<${Quote} text=${job.lastError} kind="bad" />`}
    <footer class="row">
      <${Button} icon="retry" disabledReason=${noWrite} onClick=${run}>Run now<//>
      <${Button} kind="quiet" disabledReason=${noAdmin} onClick=${() => ask(true)}>Remove<//>
      ${fired && html`<a href=${href("runs", [fired])}>See its run</a>`}
    </footer>
    ${isAsking && html`<${Confirm} title=${`Remove the job ${job.id}?`} action="Remove" onClose=${() => ask(false)} onConfirm=${async () => {
      await gateway.call("cron.remove", { id: job.id });
      toast(`Job ${job.id} is removed. Its session and its runs stay.`, "good");
      reload();
    }}><p>Its session and its runs stay; a run at work goes on.</p><//>`}
  </article>`;
}

const SKIPS = { busy: "was still at work", full: "had a full queue", when: "its command said no" };

/** Say how often a job was skipped, why, and what its command last said. */
function Skips({ job }) {
  const skips = Object.entries(job.skips ?? {});
  if (skips.length === 0) return counted(job.skipped, "time");
  return html`${skips.map(([reason, each]) => html`<div key=${reason}>${counted(each.count, "time")}: ${SKIPS[reason] ?? reason}
    <span class="muted"><${Age} ts=${each.lastAt} suffix=" ago" />${each.why && html`, <${Text}>${oneLine(each.why, 160)}<//>`}</span></div>`)}`;
}

const FIELDS = { id: "", schedule: "", message: "", tz: "", agentId: "", channel: "", to: "", model: "", timeoutSeconds: "", command: "" };

function AddJob({ onClose, onAdded }) {
  const [job, setJob] = useState({ ...FIELDS, tz: Intl.DateTimeFormat().resolvedOptions().timeZone });
  const [error, setError] = useState();
  const { data: agents } = useLive(() => gateway.call("agents.list"), []);
  const set = (name) => (value) => setJob((before) => ({ ...before, [name]: value }));
  const add = async (event) => {
    event.preventDefault();
    try {
      const { backchannel: added } = await gateway.call("cron.add", toParams(job));
      toast(`Job ${job.id} is added and comes ${added.nextAt ? until(added.nextAt, Date.now()) : added.status}.`, "good");
      onAdded();
      onClose();
    } catch (refused) {
      setError(refused);
    }
  };
  return html`<${Dialog} title="Add a job" onClose=${onClose}><form onSubmit=${add}>
    <${TextField} label="Name" hint="Its session is cron:<name>" value=${job.id} onInput=${set("id")} required autofocus />
    <${TextField} label="When" hint='A crontab line such as 0 9 * * MON-FRI, an interval such as every 10m, or an ISO time' value=${job.schedule}
      onInput=${set("schedule")} required />
    <${TextField} label="Time zone" hint="Of the schedule; empty is UTC" value=${job.tz} onInput=${set("tz")}
      suggestions=${["UTC", Intl.DateTimeFormat().resolvedOptions().timeZone]} />
    <${TextField} label="Message" hint="What the agent is told" value=${job.message} onInput=${set("message")} rows=${3} required />
    <${TextField} label="Only if" hint="A shell command in the agent's workspace: with output the job runs, and {output} in the message stands for it"
      value=${job.command} onInput=${set("command")} />
    <${TextField} label="Agent" hint="Empty is the default agent" value=${job.agentId} onInput=${set("agentId")}
      suggestions=${agents?.agents.map((agent) => agent.id) ?? []} />
    <div class="pair">
      <${TextField} label="Channel" hint="Where the reply goes; needs a chat" value=${job.channel} onInput=${set("channel")}
        required=${Boolean(job.to)} />
      <${TextField} label="Chat" hint="As the channel writes it" value=${job.to} onInput=${set("to")} required=${Boolean(job.channel)} />
    </div>
    <${TextField} label="Model" hint="As provider/model; empty is the agent's own" value=${job.model} onInput=${set("model")} />
    <${TextField} label="Longest time" hint="In seconds; empty is no limit of its own" value=${job.timeoutSeconds} onInput=${set("timeoutSeconds")}
      inputmode="decimal" pattern="[0-9.]*" />
    <${ErrorNote} error=${error} />
    <footer><${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" type="submit">Add it<//></footer>
  </form><//>`;
}

function toParams({ channel, to, timeoutSeconds, command, ...rest }) {
  const params = Object.fromEntries(Object.entries(rest).filter(([, value]) => value.trim() !== ""));
  if (channel.trim()) params.deliver = { channel: channel.trim(), to: to.trim() };
  if (command.trim()) params.when = { command: command.trim() };
  if (timeoutSeconds.trim()) params.timeoutSeconds = Number(timeoutSeconds);
  return params;
}
