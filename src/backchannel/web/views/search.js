/** Search for messages: in one session, or in all. The gateway may not be able to search. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { Button, ErrorNote, Search, Text, When } from "../parts.js";
import { go, href, route } from "../routes.js";
import { readMessage } from "../speech.js";

const SPEAKERS = { user: "asked", assistant: "agent", toolResult: "tool", system: "gateway" };
const MOST = 200;
/** One call of the gateway looks at a bounded part of the transcript: it is asked on until this many are found. */
const ENOUGH = 30;
const MOST_CALLS = 50;

export function SearchWithin({ transcript, onClose }) {
  const [query, setQuery] = useState("");
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const turn = useRef(0);
  const root = useRef(null);
  useLayoutEffect(() => root.current.querySelector("input").focus(), []);

  const look = async (before) => {
    const mine = ++turn.current;
    setBusy(true);
    try {
      let page = { hasMore: true, nextBefore: before };
      let matches = before ? found.matches : [];
      const enough = matches.length + ENOUGH;
      for (let calls = 0; page.hasMore && matches.length < enough && calls < MOST_CALLS; calls++) {
        page = await searchPage(transcript, query, page.nextBefore);
        if (mine !== turn.current) return;
        matches = [...matches, ...page.matches];
        setFound({ ...page, matches });
      }
      setError(null);
    } catch (failed) {
      if (mine === turn.current) setError(failed);
    }
    if (mine === turn.current) setBusy(false);
  };
  useEffect(() => {
    turn.current++;
    if (query.trim()) look();
    else setFound(null);
  }, [query]);
  const open = (message) => {
    if (route().params.message === message) document.getElementById(`m-${message}`)?.scrollIntoView({ block: "center" });
    else go("sessions", transcript.key, { transcript: transcript.pastId, message });
  };
  const keys = (event) => event.key === "Escape" && !query && onClose();
  return html`<div class="search-within" ref=${root} onKeyDown=${keys}>
    <div class="row"><${Search} label="Search in this session" value=${query} onSearch=${setQuery} isMain=${false} /><${Button} kind="quiet" icon="close" label="Close the search" onClick=${onClose} /></div>
    <${ErrorNote} error=${error} />
    ${found && html`<ol class="matches" aria-label="Matches">
      ${found.matches.map((match) => html`<li key=${match.messageId}><a href="#" onClick=${(event) => { event.preventDefault(); open(match.messageId); }}>
        <span class="muted small">${SPEAKERS[match.role] || match.role} · <${When} ts=${match.timestamp} /></span><span class="cut"><${Text}>${match.excerpt}<//></span></a></li>`)}
    </ol>
    <div class="row small muted" role="status">${isBusy ? "Searching …" : found.matches.length ? `${found.matches.length} found` : "Nothing found."}
      ${found.hasMore && !isBusy && html`<${Button} onClick=${() => look(found.nextBefore)}>Search further back<//>`}</div>`}
  </div>`;
}

/** The messages of all sessions that have the words searched for, best first; each opens in its transcript, past ones too. */
export function FoundMessages({ query }) {
  const wanted = query.trim();
  const [found, setFound] = useState(null);
  const turn = useRef(0);
  useEffect(() => {
    const mine = ++turn.current;
    if (!wanted || !gateway.knows("sessions.search")) return setFound(null);
    gateway.call("sessions.search", { query: wanted, scope: { archived: "all" } }).then(
      (answer) => mine === turn.current && setFound(answer),
      () => mine === turn.current && setFound(null), // such as signs alone: no word to search for
    );
  }, [wanted]);
  if (!wanted || !found?.results.length) return null;
  const present = new Set(found.sessions.filter((row) => !row.archivedAt).map((row) => row.sessionId));
  const past = (hit) => !present.has(hit.sessionId);
  return html`<details class="fold found-messages" open><summary><span>Messages</span> <span class="muted small">${found.results.length}${found.truncated ? " and more" : ""}</span></summary>
    <ol class="matches" aria-label="Messages found">
      ${found.results.map((hit) => html`<li key=${hit.messageId}><a href=${href("sessions", hit.sessionKey, { transcript: past(hit) && hit.sessionId, message: hit.messageId })}>
        <span class="muted small cut"><bdi>${hit.sessionKey}</bdi> · ${SPEAKERS[hit.role] || hit.role} · <${When} ts=${hit.timestamp} />${past(hit) && " · earlier conversation"}</span><span class="cut"><${Text}>${hit.snippet}<//></span></a></li>`)}
    </ol></details>`;
}

async function searchPage(transcript, query, before) {
  if (!gateway.knows("chat.search")) return searchLoaded(transcript, query);
  return gateway.call("chat.search", { ...transcript.address, query: query.trim(), ...(before && { before }) });
}

function searchLoaded(transcript, query) {
  const wanted = query.trim().toLowerCase();
  const matches = [];
  for (let index = transcript.messages.length - 1; index >= 0 && matches.length < MOST; index--) {
    const message = transcript.messages[index];
    const { text } = readMessage(message);
    const at = text.toLowerCase().indexOf(wanted);
    if (at >= 0) matches.push({ messageId: message.id, role: message.role, timestamp: message.timestamp, excerpt: text.slice(Math.max(0, at - 40), at + 120) });
  }
  return { matches, hasMore: false };
}
