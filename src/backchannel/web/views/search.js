/** Search within one session: the whole transcript, or only the loaded part. The gateway may not be able to search. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { Button, ErrorNote, Search, Text, When } from "../parts.js";
import { go, route } from "../routes.js";
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
    else go("sessions", transcript.key, { message });
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

async function searchPage(transcript, query, before) {
  if (!gateway.knows("chat.search")) return searchLoaded(transcript, query);
  return gateway.call("chat.search", { sessionKey: transcript.key, query: query.trim(), ...(before && { before }) });
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
