/**
 * Spawn, send and patch from the page, and "why not?" when a rule refuses.
 *
 * The operator speaks, or the session shown. Each request has a key of its own, under which the gateway takes it once: after
 * a lost connection it is sent again.
 */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { href } from "../routes.js";
import { useLive } from "../live.js";
import { Button, Dialog, ErrorNote, Key, Status } from "../parts.js";
import { AsChoice, Pick, TextField, newKey } from "./forms.js";
import { Quote, Sentence, useScope } from "./pieces.js";
import { Explained } from "./why.js";
import { inWords, isControlWord, shortId } from "./words.js";

export { PatchDialog } from "./patch.js";
export { WhyNot } from "./why.js";

const keyOf = (session) => (session && typeof session === "object" ? session.key : session);
const filled = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));

/** Calls a session tool once, however often the button is pressed; gives its outcome, and what the gateway refused. */
function useInvoke(tool) {
  const [state, setState] = useState({ isBusy: false });
  const key = useRef(newKey());
  const asked = useRef("");
  const invoke = async (args, caller) => {
    const said = JSON.stringify([args, caller]);
    if (said !== asked.current) key.current = newKey(); // something else is asked now
    asked.current = said;
    setState({ isBusy: true });
    try {
      const { result } = await gateway.call("tools.invoke", { tool, args, sessionKey: caller || undefined, idempotencyKey: key.current });
      key.current = newKey();
      setState({ isBusy: false, result });
    } catch (error) {
      setState({ isBusy: false, error });
    }
  };
  return { ...state, invoke };
}

/** Starts a sub-agent. `session` is the one shown, which may be the requester; `agentId` under which agent. */
export function SpawnDialog({ session, as, agentId = "", onClose }) {
  const [caller, setCaller] = useState(as ?? "");
  const [task, setTask] = useState({ task: "", agentId, label: "", model: "", thinking: "", runTimeoutSeconds: "", cleanup: "keep" });
  const { result, error, isBusy, invoke } = useInvoke("sessions_spawn");
  const { data: agents } = useLive(() => gateway.call("tools.invoke", { tool: "agents_list", args: {}, sessionKey: caller || undefined }),
    [caller]);
  const { data: models } = useLive(() => gateway.call("models.list", { view: "all" }), []);
  const noScope = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  const set = (name) => (value) => setTask((before) => ({ ...before, [name]: value }));
  const start = (event) => {
    event.preventDefault();
    if (noScope) return;
    invoke({ ...filled(task), runTimeoutSeconds: task.runTimeoutSeconds === "" ? undefined : Number(task.runTimeoutSeconds) }, caller);
  };
  const ids = new Set([...(agents?.result.agents?.map((agent) => agent.id) ?? []), agentId].filter(Boolean));
  const choices = [["", "the requester's own"], ...[...ids].map((id) => [id, id])];
  return html`<${Dialog} title="Spawn a sub-agent" onClose=${onClose}><form onSubmit=${start}>
    <${AsChoice} session=${session} value=${caller} onChange=${setCaller} />
    <${TextField} label="Task" hint="In full: the sub-agent sees nothing else" rows=${4} value=${task.task} onInput=${set("task")} required
      autofocus />
    <div class="pair">
      <${Pick} label="Agent" value=${task.agentId} onChange=${set("agentId")} options=${choices} />
      <${TextField} label="Label" hint="A name for it" value=${task.label} onInput=${set("label")} maxlength="64" />
    </div>
    <details class="fold more-options"><summary><span>More</span></summary><div class="stack">
      <${TextField} label="Model" hint="As provider/model; empty is the agent's" value=${task.model} onInput=${set("model")}
        suggestions=${models?.models.map((model) => model.backchannel.ref) ?? []} />
      <${Pick} label="Thinking" value=${task.thinking} onChange=${set("thinking")} options=${[["", "as configured"], ...THINKING]} />
      <${TextField} label="Longest time" hint="In seconds; empty is no limit" value=${task.runTimeoutSeconds} onInput=${set("runTimeoutSeconds")}
        inputmode="decimal" pattern="[0-9.]*" />
      <${Pick} label="Afterwards" value=${task.cleanup} onChange=${set("cleanup")}
        options=${[["keep", "keep it for a while"], ["delete", "archive it as soon as its result has arrived"]]} />
    </div></details>
    <${ErrorNote} error=${error} />
    <${SpawnOutcome} result=${result} />
    <footer><${Button} onClick=${onClose}>${result ? "Close" : "Cancel"}<//>
      <${Button} kind="primary" type="submit" disabledReason=${noScope}>${result?.status === "accepted" ? "Spawn another" : "Spawn"}<//></footer>
  </form><//>`;
}

const THINKING = ["off", "minimal", "low", "medium", "high", "xhigh"].map((level) => [level, level]);

function SpawnOutcome({ result }) {
  if (!result) return null;
  if (result.status !== "accepted") return html`<${Outcome} result=${result} />`;
  return html`<${Outcome} result=${result}>
    <p>Started <${Key} session=${result.childSessionKey} /> with ${result.model}; its run is <a class="mono"
      href=${href("runs", [result.runId])}>${shortId(result.runId)}</a>. Its result comes back by itself.</p>
  <//>`;
}

/** Sends a message into a session, as an agent would. */
export function SendDialog({ session, as, onClose }) {
  const shown = keyOf(session);
  const [caller, setCaller] = useState(as ?? "");
  const [message, setMessage] = useState({ to: as ? "" : (shown ?? ""), text: "", wait: "30" });
  const { result, error, isBusy, invoke } = useInvoke("sessions_send");
  const { data: sessions } = useLive(() => gateway.call("sessions.list", { limit: 100 }), []);
  const noScope = useScope("operator.write") ?? (isBusy ? "Wait for the answer" : undefined);
  const set = (name) => (value) => setMessage((before) => ({ ...before, [name]: value }));
  const speakAs = (key) => {
    setCaller(key);
    setMessage((before) => ({ ...before, to: key && before.to === key ? "" : !key && before.to === "" ? (shown ?? "") : before.to }));
  };
  const send = (event) => {
    event.preventDefault();
    if (noScope) return;
    invoke({ sessionKey: message.to.trim(), message: message.text, timeoutSeconds: Number(message.wait || 0) }, caller);
  };
  return html`<${Dialog} title="Send a message" onClose=${onClose}><form onSubmit=${send}>
    <${AsChoice} session=${session} value=${caller} onChange=${speakAs} />
    <${TextField} label="To" hint="A key, main, or a session id" value=${message.to} onInput=${set("to")}
      suggestions=${sessions?.sessions.map((row) => row.key) ?? []} required autofocus=${!message.to} />
    <${TextField} label="Message" hint="The other session sees who asks" rows=${4} value=${message.text} onInput=${set("text")} required
      autofocus=${Boolean(message.to)} />
    <${TextField} label="Wait" hint="Seconds to wait for the reply; 0 does not wait" value=${message.wait} onInput=${set("wait")}
      inputmode="decimal" pattern="[0-9.]*" />
    ${isBusy && html`<p class="muted" role="status">Waiting for the reply; it goes on when this is closed.</p>`}
    <${ErrorNote} error=${error} />
    <${SendOutcome} result=${result} caller=${caller} target=${message.to} />
    <footer><${Button} onClick=${onClose}>${result ? "Close" : "Cancel"}<//>
      <${Button} kind="primary" type="submit" icon="send" disabledReason=${noScope}>Send<//></footer>
  </form><//>`;
}

function SendOutcome({ result, caller, target }) {
  if (!result) return null;
  const isRefused = !result.runId;
  return html`<${Outcome} result=${result}>
    ${result.status === "ok" && (isControlWord(result.reply) || !result.reply ? html`<p class="muted">${inWords(result.reply)}</p>`
      : html`<${Quote} text=${result.reply} isMarkdown />`)}
    ${result.status === "accepted" && html`<p><${Key} session=${result.sessionKey} /> has the message.</p>`}
    ${result.runId && html`<${SendLinks} runId=${result.runId} />`}
    ${isRefused && html`<${Explained} caller=${caller} target=${target} known=${result.error} />`}
  <//>`;
}

function SendLinks({ runId }) {
  const { data } = useLive(() => gateway.call("exchanges.get", { runId }), [runId]);
  return html`<p class="row"><a href=${href("runs", [runId])}>See its run</a>${data
    && html`<a href=${href("exchanges", [data.exchange.id])}>See the exchange</a>`}</p>`;
}

/** What came back: the status word as it is, the reason of a refusal, and what belongs to it. */
function Outcome({ result, children }) {
  const box = useRef(null);
  useEffect(() => box.current?.scrollIntoView({ block: "nearest" }), [result]);
  return html`<div ref=${box} class="outcome" role="status" aria-label="Outcome">
    <p class="row"><${Status} status=${result.status} /></p>
    ${result.error && html`<p class=${result.status === "timeout" ? "" : "bad-text"}><${Sentence} text=${result.error} /></p>`}
    ${children}
  </div>`;
}
