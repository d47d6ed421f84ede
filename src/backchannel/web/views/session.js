/** One session: its header, its transcript, live, and the field to write to it. */
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { Icon } from "../icons.js";
import { useGateway, useLive, useStored } from "../live.js";
import { Button, Confirm, Cost, Empty, Key, Menu, Status, Text, Tokens, activity, count, sessionName, toast, visible } from "../parts.js";
import { dropUnsent, onAnswer, sendAgain, sendLater, useOutbox } from "../outbox.js";
import { go, href } from "../routes.js";
import { readMessage } from "../speech.js";
import { Transcript } from "../transcript.js";
import { Composer } from "./composer.js";
import { TranscriptLog } from "./log.js";
import { SearchWithin } from "./search.js";

const ACTIONS = { spawn: "SpawnDialog", send: "SendDialog", patch: "PatchDialog", why: "WhyNot" };

/** What stands beside the list while no session is chosen. */
export function NoSession() {
  useEffect(() => {
    document.title = "Sessions · Backchannel";
  }, []);
  return html`<section class="session no-session" aria-label="No session is open">
    <${Empty} icon="sessions" title="Choose a session, or start a chat">
      <p><kbd>j</kbd> and <kbd>k</kbd> go through the list, <kbd>Enter</kbd> opens, <kbd>/</kbd> searches.</p>
    <//>
  </section>`;
}

function useTranscript(key, pastId) {
  const [, setCount] = useState(0);
  const transcript = useMemo(() => new Transcript(key, () => setCount((n) => n + 1), pastId), [key, pastId]);
  useEffect(() => {
    transcript.start();
    return () => transcript.stop();
  }, [transcript]);
  return transcript;
}

export function SessionView({ sessionKey, params }) {
  const { has } = useGateway();
  const transcript = useTranscript(sessionKey, params.transcript);
  useEffect(() => onAnswer(sessionKey, (entry, answer) => {
    if (answer.reply !== undefined) transcript.addNote(answer.runId, answer.reply);
    else transcript.expect(entry);
  }), [sessionKey, transcript]);
  const outbox = useOutbox(sessionKey);
  const [showsAll, setShowsAll] = useStored("machinery", false);
  const [isSearching, setSearching] = useState(false);
  const described = useLive(() => gateway.call("sessions.describe", { key: sessionKey }), [sessionKey], {
    events: ["sessions.changed"],
    when: (event, payload) => payload.sessionKey === sessionKey,
  });
  const session = described.data?.session || { key: sessionKey };
  const node = useNode(sessionKey);
  useEffect(() => {
    // A key as people write it, such as `main`, becomes the whole one, by which events come.
    if (transcript.isLoaded && transcript.key !== sessionKey) location.replace(href("sessions", transcript.key, params));
  }, [transcript.isLoaded]);
  const own = useMemo(() => ownTexts(transcript.messages), [transcript.messages]);
  const active = transcript.activeRun;
  const isRunning = Boolean(active) || transcript.live.size > 0;
  const abort = async () => {
    try {
      const answer = await gateway.call("chat.abort", { sessionKey });
      if (!answer.aborted) toast("Nothing runs here now.");
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  const retry = async (runId) => {
    try {
      await gateway.call("runs.retry", { runId });
      transcript.syncSoon(0);
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return html`<section class="session" aria-label=${`Session ${sessionName(session)}`}>
    <${SessionHead} session=${session} node=${node} transcript=${transcript} showsAll=${showsAll} setShowsAll=${setShowsAll}
      isSearching=${isSearching} setSearching=${setSearching} isRunning=${isRunning} onAbort=${abort} />
    ${isSearching && html`<${SearchWithin} transcript=${transcript} onClose=${() => setSearching(false)} />`}
    <${TranscriptLog} transcript=${transcript} session=${session} showsAll=${showsAll} params=${params} outbox=${outbox} canRetry=${has("operator.write")}
      onRetry=${retry} onAgain=${(id) => sendAgain(sessionKey, id)} onDrop=${(id) => dropUnsent(sessionKey, id)} />
    ${session.archivedAt
      ? html`<p class="note archived-note">This session is archived: a message to its key starts a new one. <a href=${href("sessions")}>All sessions</a></p>`
      : params.transcript && html`<p class="note archived-note">This is an earlier conversation of this session, and it is over. <a href=${href("sessions", sessionKey)}>The present one</a></p>`}
    ${!params.transcript && html`<${Composer} sessionKey=${sessionKey} name=${sessionName(session)} history=${own} isRunning=${isRunning} onSend=${(text) => sendLater(sessionKey, text)} onAbort=${abort} />`}
  </section>`;
}

/** What a session used and spawned, and what became of its task; these are no part of its row. */
function useNode(key) {
  const { data } = useLive(() => gateway.call("sessions.tree", { key, limit: 1 }).catch(() => undefined), [key], {
    events: ["sessions.changed"],
    when: (event, payload) => payload.sessionKey === key,
    minMs: 1_000,
  });
  return data?.nodes.find((node) => node.key === key) || {};
}

/** What a person wrote here from a client such as this page, newest first, each text once. */
function ownTexts(messages) {
  const found = new Set();
  for (let index = messages.length - 1; index >= 0 && found.size < 100; index--) {
    const message = messages[index];
    if (message.role === "user" && message.provenance?.kind === "external_user" && !message.sender) found.add(readMessage(message).text);
  }
  return [...found];
}

/** The part of the last request that was read from the provider's cache; undefined if nothing is known of a cache. */
function cachedShare(messages) {
  const { input = 0, cacheRead = 0, cacheWrite = 0 } = messages.findLast((message) => message.role === "assistant")?.usage || {};
  return cacheRead || cacheWrite ? cacheRead / (input + cacheRead + cacheWrite) : undefined;
}

function SessionHead({ session, node, transcript, showsAll, setShowsAll, isSearching, setSearching, isRunning, onAbort }) {
  const name = sessionName(session);
  const used = session.totalTokens && session.contextTokens ? Math.min(1, session.totalTokens / session.contextTokens) : undefined;
  const cached = useMemo(() => cachedShare(transcript.messages), [transcript.messages]);
  useEffect(() => {
    document.title = `${name} · Backchannel`;
  }, [name]);
  return html`<header class="session-head">
    <a class="button quiet only-icon session-back" href=${href("sessions")} aria-label="Back to the sessions"><${Icon} name="back" /></a>
    <div class="session-title grow">
      <h1 class="cut" title=${session.key}><${Text}>${name}<//></h1>
      <div class="session-facts small muted">
        <${Status} status=${activity(session) || (transcript.isNew ? "new" : "")} />
        ${session.kind && html`<span>${session.spawnedBy ? "sub-agent" : session.classification}${session.channel && session.channel !== "unknown" ? ` · ${visible(session.channel)}` : ""}</span>`}
        ${session.model && html`<span class="cut" title="The model of the next run">${visible(session.model)}</span>`}
        ${session.spawnedBy && html`<span>spawned by <${Key} session=${session.spawnedBy} /></span>`}
        ${used !== undefined && html`<span class="context" title=${`${session.totalTokens.toLocaleString()} of ${session.contextTokens.toLocaleString()} tokens of context`}>
          <meter min="0" max="1" high="0.8" value=${used} aria-label="Context used"></meter>${Math.round(used * 100)}% of ${count(session.contextTokens)}</span>`}
        ${cached !== undefined && html`<span title="Read from the provider's cache, of the last request">${Math.round(cached * 100)}% cached</span>`}
        ${node.tokens !== undefined && html`<span><${Tokens} n=${node.tokens} /> tokens</span>`}
        ${node.cost !== undefined && html`<${Cost} usd=${node.cost} />`}
        ${node.spawned > 0 && html`<a href=${href("sessions", session.key, { tree: "1" })}>${node.spawned} sub-agent${node.spawned === 1 ? "" : "s"}</a>`}
        ${node.receipt && html`<a href=${href("deliveries", [], { id: node.receipt.id })}>receipt: ${node.receipt.state}</a>`}
      </div>
    </div>
    <div class="session-tools">
      <${Button} kind="quiet" icon="gear" label=${showsAll ? "Hide the machinery" : "Show the machinery"} aria-pressed=${showsAll ? "true" : "false"} onClick=${() => setShowsAll(!showsAll)} />
      <${Button} kind="quiet" icon="search" label="Search in this session" aria-pressed=${isSearching ? "true" : "false"} onClick=${() => setSearching(!isSearching)} />
      <${SessionMenu} session=${session} isRunning=${isRunning} onAbort=${onAbort} />
    </div>
  </header>`;
}

function SessionMenu({ session, isRunning, onAbort }) {
  const { has } = useGateway();
  const [dialog, setDialog] = useState(null);
  const needs = (scope) => (has(scope) ? undefined : `This needs the scope ${scope}.`);
  const close = () => setDialog(null);
  const items = [
    { label: "Stop the run", icon: "stop", onClick: onAbort, disabledReason: needs("operator.write") || (isRunning ? undefined : "Nothing runs here now.") },
    { label: "Runs of this session", icon: "runs", onClick: () => go("runs", [], { session: session.key }) },
    { label: "Spawn tree", icon: "tree", onClick: () => go("sessions", session.key, { tree: "1" }) },
    null,
    { label: "Spawn a sub-agent …", icon: "tree", onClick: () => setDialog("spawn"), disabledReason: needs("operator.write") },
    { label: "Send as this session …", icon: "exchanges", onClick: () => setDialog("send"), disabledReason: needs("operator.write") },
    { label: "Why not? …", icon: "health", onClick: () => setDialog("why") },
    { label: "Change settings …", icon: "gear", onClick: () => setDialog("patch"), disabledReason: needs("operator.admin") },
    null,
    { label: "Copy the key", icon: "copy", onClick: () => navigator.clipboard?.writeText(session.key).then(() => toast("Copied."), () => toast("The browser does not let this page copy.", "bad")) },
    { label: "Reset …", icon: "retry", kind: "danger", onClick: () => setDialog("reset"), disabledReason: needs("operator.admin") },
    { label: "Archive …", icon: "close", kind: "danger", onClick: () => setDialog("delete"), disabledReason: needs("operator.admin") },
  ];
  return html`<${Menu} label="Session menu" items=${items} />
    ${dialog in ACTIONS && html`<${ActionDialog} name=${dialog} session=${session} onClose=${close} />`}
    ${dialog === "reset" && html`<${Confirm} title="Reset this session?" action="Reset" onClose=${close} onConfirm=${() => gateway.call("sessions.reset", { key: session.key })}>
      <p><b><${Text}>${sessionName(session)}<//></b> starts a new transcript; the old one is kept as a file. The run at work is stopped, queued ones go on in the new one.</p><//>`}
    ${dialog === "delete" && html`<${Confirm} title="Archive this session?" action="Archive" onClose=${close}
      onConfirm=${async () => { await gateway.call("sessions.delete", { key: session.key }); toast("Archived."); go("sessions"); }}>
      <p><b><${Text}>${sessionName(session)}<//></b> leaves the lists, and nothing is written to its transcript again. A message to its key starts a new one.</p><//>`}`;
}

/** The dialogs to spawn, send, patch and explain are loaded when they are asked for. */
function ActionDialog({ name, session, onClose }) {
  const [module, setModule] = useState(null);
  useEffect(() => {
    import("./actions.js").then(setModule, (error) => {
      toast(error.message, "bad");
      onClose();
    });
  }, []);
  if (!module) return null;
  return html`<${module[ACTIONS[name]]} session=${session} as=${session.key} onClose=${onClose} />`;
}
