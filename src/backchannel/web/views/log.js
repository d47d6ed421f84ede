/** The transcript on the screen, in groups that are drawn only when seen. Below it is what happens now. */
import { Component, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Icon } from "../icons.js";
import { Markdown } from "../markdown.js";
import { Button, Empty, ErrorNote, Fold, Skeleton, Text, When, toast, visible } from "../parts.js";
import { href } from "../routes.js";
import { readMessage } from "../speech.js";
import { useGroups } from "./entries.js";
import { LongText, MessageRow, PlainText, RunNote, ToolCall } from "./message.js";
import { askedAgain, clockTime } from "./words.js";

const ROW_PX = 80;
/** A transcript of more rows is only rendered around the place that one looks at. */
const LONG = 600;
const NEAR = "2400px 0px";
const NEAR_END_PX = 80;
const OLDER_PAGE = 500;
const MOST_PAGES = 100;

export function TranscriptLog({ transcript, session, showsAll, params, outbox, onRetry, canRetry, onAgain, onDrop }) {
  const box = useRef(null);
  const groups = useGroups(transcript);
  const agent = speakerOf(session, transcript.key);
  const near = useNear(box);
  const isLong = transcript.messages.length > LONG;
  const scroll = useScroll(box, transcript);
  const target = useTarget(transcript, params.message, box);
  useLayoutEffect(() => {
    if (outbox.length) scroll.toEnd(); // whoever writes wants to see what comes of it
  }, [outbox.at(-1)?.id]);
  const unsent = [...transcript.expected, ...outbox].filter((entry) => !transcript.knowsRun(entry.id));
  if (transcript.error && !transcript.messages.length) return html`<div class="log"><${ErrorNote} error=${transcript.error} retry=${() => transcript.syncSoon(0)} /></div>`;
  if (!transcript.isLoaded) return html`<div class="log"><${Skeleton} rows=${5} height=${72} /></div>`;
  const isEmpty = !transcript.messages.length && !transcript.pending.length && !unsent.length && !transcript.live.size && !transcript.notes.length;
  return html`<div class="log-frame">
    <div class="log" ref=${box} onScroll=${scroll.look} tabindex="0" role="region" aria-label="Transcript">
      <div class="log-inner">
        ${transcript.hasOlder && html`<${Older} load=${scroll.loadOlder} />`}
        ${!transcript.hasOlder && transcript.follows && html`<${BegunAnew} follows=${transcript.follows} sessionKey=${transcript.key} />`}
        <div role="log" aria-live=${isLong && !scroll.isAtEnd ? "off" : "polite"} aria-relevant="additions" aria-label="Messages">
          ${groups.map((group, index) => html`<${Group} key=${group.id} near=${near} isLong=${isLong} isLast=${index >= groups.length - 2} before=${groups[index - 1]?.entries.at(-1)} entries=${group.entries} showsAll=${showsAll} target=${target} runs=${transcript.runs} agent=${agent} sessionKey=${transcript.key} onRetry=${onRetry} canRetry=${canRetry} />`)}
        </div>
        ${isEmpty && html`<${Empty} icon="sessions" title=${transcript.isNew ? "A new session" : "Nothing was said here yet"}><p>Write below; the agent answers here.</p><//>`}
        <${LiveRuns} transcript=${transcript} agent=${agent} />
        <${Pending} transcript=${transcript} />
        ${unsent.map((entry) => html`<${Unsent} key=${entry.id} entry=${entry} onAgain=${onAgain} onDrop=${onDrop} />`)}
      </div>
    </div>
    ${!scroll.isAtEnd && html`<${Button} class="to-end" icon="down" onClick=${scroll.toEnd}>${scroll.isNew ? "New messages" : "To the end"}<//>`}
  </div>`;
}

const BEGUN = { daily: "for a new day", idle: "after a pause" };

/** Why the transcript begins here: an earlier one ended. */
function BegunAnew({ follows, sessionKey }) {
  return html`<p class="muted small begun-anew">${"This conversation began anew "}
    ${clockTime(follows.endedAt, Date.now())}, ${BEGUN[follows.reason] ?? "by a reset"}. <a href=${href("sessions", sessionKey, { transcript: follows.sessionId })}>The earlier one</a></p>`;
}

/** How the agent of a session is called: a sub-agent often has the same agent as the one who started it. */
function speakerOf({ agentId, spawnedBy }, key) {
  const agent = agentId || key.split(":")[1] || "agent";
  return spawnedBy || key.includes(":subagent:") ? `${agent}, sub-agent` : agent;
}

// Groups

/** Rows that are rendered together. In a long transcript those far from the screen are only as much space as they took. */
class Group extends Component {
  state = { isNear: false };

  componentDidMount() {
    this.unwatch = this.props.near.watch(this.base, (isNear) => {
      if (!isNear) this.height = this.base.offsetHeight;
      if (isNear !== this.state.isNear) this.setState({ isNear });
    });
  }

  componentWillUnmount() {
    this.unwatch();
  }

  isShown({ isLong, isLast, entries, target }, { isNear }) {
    return !isLong || isLast || isNear || Boolean(target && entries.some((entry) => entry.id === target));
  }

  shouldComponentUpdate(next, state) {
    const isShown = this.isShown(next, state);
    if (isShown !== this.isShown(this.props, this.state)) return true;
    if (!isShown) return next.entries !== this.props.entries;
    if (["entries", "before", "showsAll", "target", "agent", "canRetry"].some((name) => next[name] !== this.props[name])) return true;
    return next.runs !== this.props.runs && next.entries.some(({ message }) => message?.runId && next.runs.get(message.runId)?.status !== this.props.runs.get(message.runId)?.status);
  }

  render(props, state) {
    const { entries, showsAll, target, runs, agent, sessionKey, onRetry, canRetry } = props;
    if (!this.isShown(props, state)) return html`<div class="group" style=${{ height: `${this.height || entries.length * ROW_PX}px` }}></div>`;
    const last = lastOfRun(entries);
    return html`<div class="group" style=${{ height: "" }}>${entries.map((entry, index) => {
      if (entry.note) return html`<${Note} key=${entry.id} note=${entry.note} />`;
      const { message } = entry;
      const run = message.runId && last.get(message.runId) === entry ? endedBadly(runs.get(message.runId)) : undefined;
      return html`<${MessageRow} key=${entry.id} entry=${entry} showsAll=${showsAll} isTarget=${target === entry.id} isContinued=${continues(index ? entries[index - 1] : props.before, entry)} run=${run} agent=${agent} sessionKey=${sessionKey} onRetry=${onRetry} canRetry=${canRetry} />`;
    })}</div>`;
  }
}

/** Tells groups when they come near the screen, and when they leave. */
function useNear(box) {
  return useMemo(() => {
    const listeners = new Map();
    let observer = null;
    const heard = (seen) => seen.forEach(({ target, isIntersecting }) => listeners.get(target)?.(isIntersecting));
    const watch = (element, listener) => {
      observer ||= new IntersectionObserver(heard, { root: element.closest(".log"), rootMargin: NEAR });
      listeners.set(element, listener);
      observer.observe(element);
      return () => {
        observer.unobserve(element);
        listeners.delete(element);
      };
    };
    return { watch };
  }, [box]);
}

/** Whether the agent goes on in the same run: it need not be named again. */
function continues(before, { message, reading }) {
  return Boolean(message.runId && reading.who === "agent" && before?.message?.runId === message.runId && before.reading.who === "agent" && !before.reading.isMachinery);
}

function lastOfRun(entries) {
  return new Map(entries.filter(({ message }) => message?.runId).map((entry) => [entry.message.runId, entry]));
}

function endedBadly(run) {
  return run && (["error", "timeout", "aborted"].includes(run.status) || run.resumeAt || run.waitsFor || run.waitingFor) ? run : undefined;
}

/** An answer that is in no transcript, such as that to a command. */
function Note({ note }) {
  return html`<div class="message who-gateway said-note"><${Icon} name="gear" size=${16} class="message-icon" /><div class="message-main">
    <header class="message-head"><strong class="speaker">Gateway</strong><span class="chip">not part of the conversation</span><span class="muted small"><${When} ts=${note.timestamp} /></span></header>
    <div class="message-body"><${LongText} text=${note.text} isMarkdown=${true} /></div></div></div>`;
}

// What happens now

function LiveRuns({ transcript, agent }) {
  const shown = [...transcript.live].filter(([runId, live]) => live.text || live.thinking || live.tools.length || transcript.runs.get(runId)?.status !== "ok");
  return shown.map(([runId, live]) => html`<${LiveRun} key=${runId} live=${live} isSaid=${transcript.isSaid(runId, live.text)} agent=${agent} tools=${live.tools.filter((tool) => !transcript.hasCall(tool.callId))} />`);
}

/** A reply as it grows. It is not announced word by word: its row will be. `tools` are the calls that no row shows yet. */
function LiveRun({ live, isSaid, agent, tools }) {
  return html`<div class="message who-agent live" aria-busy="true"><${Icon} name="agents" size=${16} class="message-icon" /><div class="message-main">
    <header class="message-head"><strong class="speaker"><${Text}>${agent}<//></strong><span class="status tone-busy"><span class="dot" aria-hidden="true"></span>${doing(live)}</span></header>
    <div class="message-body">
      ${live.thinking && !live.text && html`<${Fold} class="quiet-fold" summary="thinking"><${PlainText} text=${live.thinking} /><//>`}
      ${live.text && !isSaid && html`<${Markdown} text=${tail(live.text)} isLive=${true} />`}
      ${tools.map((tool) => html`<${ToolCall} key=${tool.callId} call=${{ id: tool.callId, name: tool.name, arguments: tool.args }} isRunning=${true} />`)}
    </div></div></div>`;
}

function doing(live) {
  if (live.retry) return askedAgain(live.retry);
  if (live.tools.length) return `using ${visible(live.tools.at(-1).name)}`;
  if (live.text) return "writing";
  return live.thinking ? "thinking" : "working";
}

/** The end of a reply that has become very long: the whole is shown once it is a row. */
function tail(text) {
  return text.length <= 20_000 ? text : `…${text.slice(-20_000)}`;
}

/** What was accepted and waits for its turn. */
function Pending({ transcript }) {
  const { pending, pendingLeftOut, runs } = transcript;
  if (!pending.length) return null;
  return html`<section class="inbox" aria-label="Inbox">
    <h2 class="small muted">In the inbox: ${pending.length + pendingLeftOut} waiting</h2>
    ${pending.map((message) => html`<${PendingRow} key=${message.id} message=${message} run=${runs.get(message.runId)} />`)}
    ${pendingLeftOut > 0 && html`<p class="muted small">and ${pendingLeftOut} more <${Button} onClick=${() => transcript.readMorePending().catch((error) => toast(error.message, "bad"))}>Show more<//></p>`}
  </section>`;
}

function PendingRow({ message, run }) {
  const { text, machinery, name, sessionKey, what } = readMessage(message);
  return html`<div class="pending-row"><span class="status tone-wait"><span class="dot" aria-hidden="true"></span>waits</span>
    <strong><${Text}>${name || sessionKey || ""}<//></strong><span class="grow wrap" dir="auto">${visible((text || what || machinery || "").slice(0, 400))}</span>
    ${run?.waitingFor && html`<${RunNote} run=${run} />`}</div>`;
}

/** What the gateway has not confirmed yet, or has refused. */
function Unsent({ entry, onAgain, onDrop }) {
  return html`<article class="message who-person unsent"><${Icon} name="person" size=${16} class="message-icon" /><div class="message-main">
    <header class="message-head"><strong class="speaker">Operator</strong>${entry.error ? null : html`<span class="status tone-wait"><span class="dot" aria-hidden="true"></span>sending</span>`}</header>
    <div class="message-body"><${LongText} text=${entry.text} />
      ${entry.error && html`<div class="run-note tone-bad" role="alert"><span class="wrap">Not sent: <${Text}>${entry.error}<//></span>
        <${Button} icon="retry" onClick=${() => onAgain(entry.id)}>Send again<//><${Button} onClick=${() => onDrop(entry.id)}>Discard<//></div>`}
    </div></div></article>`;
}

// Where one is in it

function Older({ load }) {
  const here = useRef(null);
  const observer = useRef(null);
  const [isBusy, setBusy] = useState(false);
  const go = async () => {
    if (isBusy) return;
    setBusy(true);
    await load();
    setBusy(false);
    if (!here.current) return;
    observer.current.unobserve(here.current); // one who is still at the top gets the next page
    observer.current.observe(here.current);
  };
  const latest = useRef(go);
  latest.current = go;
  useEffect(() => {
    observer.current = new IntersectionObserver(([seen]) => seen.isIntersecting && latest.current(), { rootMargin: "400px 0px 0px 0px", root: here.current.closest(".log") });
    observer.current.observe(here.current);
    return () => observer.current.disconnect();
  }, []);
  return html`<div class="older" ref=${here}><${Button} onClick=${go} disabled=${isBusy}>${isBusy ? "Loading …" : "Load older messages"}<//></div>`;
}

/** Stays at the end while one is there, and otherwise where one reads, whatever comes above or below. */
function useScroll(box, transcript) {
  const isStuck = useRef(true);
  const lastTop = useRef(0);
  const anchor = useRef(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const [isNew, setNew] = useState(false);
  const newest = transcript.messages.at(-1)?.id;

  const look = () => {
    const element = box.current;
    if (!element) return;
    const isNear = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    // Only going up leaves the end: when rows turn out higher than estimated, the end moves away by itself.
    if (isNear) isStuck.current = true;
    else if (element.scrollTop < lastTop.current) isStuck.current = false;
    lastTop.current = element.scrollTop;
    setAtEnd(isStuck.current);
    if (isStuck.current) setNew(false);
  };
  const toEnd = () => {
    if (!box.current) return;
    box.current.scrollTop = box.current.scrollHeight;
    lastTop.current = box.current.scrollTop;
    isStuck.current = true;
    setAtEnd(true);
  };
  useLayoutEffect(() => {
    const held = anchor.current;
    if (held?.element.isConnected) box.current.scrollTop += held.element.getBoundingClientRect().top - held.top;
    else if (isStuck.current) toEnd();
    anchor.current = null;
  });
  useEffect(() => {
    if (!isStuck.current) setNew(true);
  }, [newest]);
  useEffect(() => {
    const inner = box.current?.firstElementChild;
    if (!inner) return undefined;
    const observer = new ResizeObserver(() => isStuck.current && toEnd());
    observer.observe(inner);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [transcript.isLoaded]);

  const loadOlder = async (limit) => {
    const element = box.current;
    const first = element?.querySelector(".message, .machinery");
    const log = element?.querySelector("[role=log]");
    try {
      const hold = () => {
        element.style.overflowAnchor = "none"; // or the browser would move it too
        log?.setAttribute("aria-live", "off"); // what is older is no news
        if (first) anchor.current = { element: first, top: first.getBoundingClientRect().top };
      };
      await transcript.loadOlder(limit, hold);
      requestAnimationFrame(() => requestAnimationFrame(() => {
        element.style.overflowAnchor = "";
        log?.setAttribute("aria-live", "polite");
      }));
    } catch (error) {
      if (error.code !== "disconnected") toast(error.message, "bad");
    }
  };
  return { look, toEnd, loadOlder, isAtEnd, isNew, isStuck };
}

/** Goes to the message that the address names, loading older ones until it is there. */
function useTarget(transcript, messageId, box) {
  const done = useRef(null);
  useEffect(() => {
    if (!messageId || !transcript.isLoaded || done.current === messageId) return undefined;
    let isOver = false;
    const find = async () => {
      for (let page = 0; page < MOST_PAGES && !isOver && !transcript.has(messageId) && transcript.hasOlder; page++) await transcript.loadOlder(OLDER_PAGE);
      if (isOver) return;
      done.current = messageId;
      if (transcript.has(messageId)) show(box, messageId);
      else toast("That message is not in this transcript.", "bad");
    };
    find().catch((error) => error.code !== "disconnected" && toast(error.message, "bad"));
    return () => (isOver = true);
  }, [messageId, transcript.isLoaded]);
  return messageId;
}

/** Scroll to a row; rows that were never drawn have estimated heights, so it is looked at again once they are. */
function show(box, messageId, tries = 4) {
  requestAnimationFrame(() => {
    const row = document.getElementById(`m-${messageId}`);
    row?.scrollIntoView({ block: "center" });
    if (tries > 0) setTimeout(() => show(box, messageId, tries - 1), 60);
    else row?.focus({ preventScroll: true });
  });
}
