/** "Why not?": the rules on one session reaching another, and the setting that decides. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { useLive } from "../live.js";
import { Dialog, ErrorNote, Key, Skeleton } from "../parts.js";
import { AsChoice, Pick, TextField } from "./forms.js";
import { Sentence } from "./pieces.js";

const keyOf = (session) => (session && typeof session === "object" ? session.key : session);
const SENDING = ["sessions_send", "send"];
const WORDS = { sessions_list: "see it in lists", sessions_history: "read it", sessions_search: "find what it says", session_status: "see how it is doing", sessions_send: "send to it",
  send: "deliver to its chat" };

/** Asks who wants to reach whom, and explains it. */
export function WhyNot({ session, as, onClose }) {
  const shown = keyOf(session);
  const [caller, setCaller] = useState(as ?? "");
  const [about, setAbout] = useState({ target: as ? "" : (shown ?? ""), channel: "", chatType: "" });
  const { data: sessions } = useLive(() => gateway.call("sessions.list", { limit: 100 }), []);
  const set = (name) => (value) => setAbout((before) => ({ ...before, [name]: value }));
  return html`<${Dialog} title="Why not?" onClose=${onClose} wide><div class="dialog-body">
    <p class="muted">What the rules allow one session to do with another, and which setting decides. Nothing is done.</p>
    <${AsChoice} session=${session} value=${caller} onChange=${setCaller} />
    <${TextField} label="To" hint="The session that is looked at or sent to" value=${about.target} onInput=${set("target")}
      suggestions=${sessions?.sessions.map((row) => row.key) ?? []} autofocus=${!about.target} />
    <details class="fold more-options"><summary><span>As if it went elsewhere</span></summary><div class="pair">
      <${TextField} label="Channel" hint="Such as telegram" value=${about.channel} onInput=${set("channel")} />
      <${Pick} label="Chat" value=${about.chatType} onChange=${set("chatType")}
        options=${[["", "as it is"], ["direct", "direct"], ["group", "group"], ["channel", "channel"]]} />
    </div></details>
    ${about.target.trim() && html`<${Explained} caller=${caller} ...${about} target=${about.target.trim()} isOpen />`}
  </div><//>`;
}

/**
 * The decisions about one pair, each with its rule: all of them or, where a send was refused, what denies it. What `known`
 * says already is not said again.
 */
export function Explained({ caller, target, channel, chatType, isOpen = false, known }) {
  const asked = JSON.stringify([caller, target, channel, chatType]);
  const { data, error } = useLive(
    async () => ({ asked, ...(await gateway.call("policy.explain",
      { target, caller: caller || undefined, channel: channel || undefined, chatType: chatType || undefined })) }),
    [asked],
    { minMs: 300 },
  );
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Skeleton} rows=${3} height=${28} />`;
  const all = [...data.tools, data.send];
  const decisions = isOpen ? all : all.filter((decision) => !decision.allowed && SENDING.includes(decision.what));
  if (!decisions.length) return null;
  return html`<div class="explained" aria-busy=${data.asked !== asked ? "true" : undefined}>
    <p class="small muted">${isOpen ? "" : "Why not: "}${data.caller === "operator" ? "the operator"
      : html`<${Key} session=${data.caller} />`} → <${Key} session=${data.target} /></p>
    <ul>${decisions.map((decision) => html`<li key=${decision.what}>
      <span class=${`verdict-word ${decision.allowed ? "tone-good" : "tone-bad"}`}>
        <span class="dot" aria-hidden="true" />${decision.allowed ? "allowed" : "denied"}</span>
      <span class="explained-what"><code>${decision.what}</code> <span class="muted">${WORDS[decision.what] ?? ""}</span></span>
      <span class="explained-why">${decision.reason === known ? (decision.rule ? "decided by" : "as said above")
        : html`<${Sentence} text=${decision.reason} />`}${decision.rule && html` <code class="rule">${decision.rule}</code>`}</span>
    </li>`)}</ul>
  </div>`;
}
