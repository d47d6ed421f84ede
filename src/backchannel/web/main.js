/** The frame of the page: navigation, login and the state of the connection. Views are loaded when one goes there. */
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { Approvals } from "./approvals.js";
import { gateway } from "./gateway.js";
import { Icon } from "./icons.js";
import { useGateway, useLive, useStored } from "./live.js";
import { Button, Empty, ErrorNote, Skeleton, Toasts } from "./parts.js";
import { startOutbox, withdrawAll } from "./outbox.js";
import { href, useRoute } from "./routes.js";

/** name, word, icon; the last ones are behind "More" on a phone. */
const PLACES = [
  ["sessions", "Sessions", "sessions"],
  ["runs", "Runs", "runs"],
  ["exchanges", "Exchanges", "exchanges"],
  ["deliveries", "Deliveries", "deliveries"],
  ["map", "Map", "map"],
  ["jobs", "Jobs", "jobs"],
  ["agents", "Agents", "agents"],
  ["channels", "Channels", "channels"],
  ["budgets", "Budgets", "budgets"],
  ["health", "Health", "health"],
];
const ON_A_PHONE = 4;

/** How each place is shown: the module, and what its components are given. */
const VIEWS = {
  sessions: {
    load: () => Promise.all([import("./views/sessions.js"), import("./views/session.js")]),
    show: ([sessions, session], [key], params) => html`<div class=${`panes ${key ? "has-session" : ""}`}>
      <${sessions.SessionsView} selected=${key} params=${params} />
      ${key ? html`<${session.SessionView} key=${key} sessionKey=${key} params=${params} />` : html`<${session.NoSession} />`}
    </div>`,
  },
  runs: {
    load: () => import("./views/runs.js"),
    show: (module, [id], params) => (id ? html`<${module.RunView} key=${id} runId=${id} params=${params} />` : html`<${module.RunsView} params=${params} />`),
  },
  exchanges: {
    load: () => import("./views/exchanges.js"),
    show: (module, [id], params) => (id ? html`<${module.ExchangeView} key=${id} id=${id} params=${params} />` : html`<${module.ExchangesView} params=${params} />`),
  },
  map: { load: () => import("./views/map.js"), show: (module, args, params) => html`<${module.MapView} params=${params} />` },
  deliveries: { load: () => import("./views/deliveries.js"), show: (module, args, params) => html`<${module.DeliveriesView} args=${args} params=${params} />` },
  jobs: { load: () => import("./views/jobs.js"), show: (module, args, params) => html`<${module.JobsView} args=${args} params=${params} />` },
  agents: { load: () => import("./views/agents.js"), show: (module, args, params) => html`<${module.AgentsView} args=${args} params=${params} />` },
  channels: { load: () => import("./views/channels.js"), show: (module, args, params) => html`<${module.ChannelsView} args=${args} params=${params} />` },
  budgets: { load: () => import("./views/budgets.js"), show: (module, args, params) => html`<${module.BudgetsView} params=${params} />` },
  health: { load: () => import("./views/health.js"), show: (module, args, params) => html`<${module.HealthView} params=${params} />` },
};

function App() {
  const { state, hello } = useGateway();
  useTheme();
  useEffect(() => {
    addEventListener("keydown", shortcuts);
    return () => removeEventListener("keydown", shortcuts);
  }, []);
  // The login stays until the gateway has taken the token: a wrong one is still in its field then.
  const isAtLogin = useRef(false);
  isAtLogin.current = state === "refused" || (state === "closed" && !hello) || (state === "connecting" && isAtLogin.current);
  return isAtLogin.current ? html`<${Login} />` : html`<${Frame} />`;
}

function Frame() {
  const { view, args, params } = useRoute();
  const status = useLive(() => gateway.call("status"), [], { events: ["delivery", "agent"], minMs: 5_000, everyMs: 30_000, when: isEnd });
  const problems = status.data?.problems?.length || 0;
  const main = useRef(null);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${PLACES.find(([name]) => name === view)?.[1] || "Page"} · Backchannel`;
    if (!isFirst.current && document.activeElement === document.body) main.current?.focus();
    isFirst.current = false;
  }, [view]);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Navigation} view=${view} problems=${problems} />
    <div class="above-main"><${Banner} /><${Approvals} /></div>
    <main id="main" tabindex="-1" ref=${main}><${View} key=${view} view=${view} args=${args} params=${params} /></main>
    <${Toasts} />
  </div>`;
}

/** Whether an event can change what is wrong: an end, not a word of a reply. */
function isEnd(event, payload) {
  return event === "delivery" || (payload.stream === "lifecycle" && payload.data.phase !== "start");
}

function Navigation({ view, problems }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [view]);
  const link = ([name, word, icon]) => html`<a class="nav-link" href=${href(name)} aria-current=${name === view ? "page" : undefined} title=${word} onClick=${() => setOpen(false)}>
    <${Icon} name=${icon} size=${20} /><span class="word">${word}</span>
    ${name === "health" && problems > 0 && html`<span class="count-badge" aria-label=${`${problems} problem${problems === 1 ? "" : "s"}`}>${problems}</span>`}
  </a>`;
  const rarely = PLACES.slice(ON_A_PHONE);
  const isRare = rarely.some(([name]) => name === view);
  return html`<nav class="nav" aria-label="Places" onKeyDown=${(event) => event.key === "Escape" && setOpen(false)}>
    <a class="brand" href=${href("sessions")} aria-label="Backchannel"><img src="/page/icon.svg" alt="" /><span class="word">Backchannel</span></a>
    <ul class="nav-list">
      ${PLACES.map((place, index) => html`<li key=${place[0]} class=${index >= ON_A_PHONE ? "rarely" : ""}>${link(place)}</li>`)}
      <li class="nav-more">
        <button type="button" class="nav-link" aria-expanded=${isOpen ? "true" : "false"} aria-current=${isRare ? "page" : undefined} onClick=${() => setOpen(!isOpen)}>
          <${Icon} name="more" size=${20} /><span class="word">More</span>
          ${problems > 0 && html`<span class="count-badge" aria-label=${`${problems} problem${problems === 1 ? "" : "s"}`}>${problems}</span>`}
        </button>
        ${isOpen && html`<div class="nav-sheet">${rarely.map((place) => html`<div key=${place[0]}>${link(place)}</div>`)}<hr /><${ThemeSwitch} /><${LogOut} /></div>`}
      </li>
    </ul>
    <div class="nav-foot"><${ThemeSwitch} /><${LogOut} /><${ConnectionState} /></div>
  </nav>`;
}

const THEMES = { auto: ["Theme: as the system", "auto", "light"], light: ["Theme: light", "sun", "dark"], dark: ["Theme: dark", "moon", "auto"] };

function useTheme() {
  const [theme] = useStored("theme", "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
}

function ThemeSwitch() {
  const [theme, setTheme] = useStored("theme", "auto");
  const [word, icon, next] = THEMES[theme] || THEMES.auto;
  return html`<button type="button" class="nav-link button quiet" title=${word} onClick=${() => setTheme(next)}><${Icon} name=${icon} size=${20} /><span class="word">${word}</span></button>`;
}

function logOut() {
  withdrawAll();
  gateway.logout();
}

function LogOut() {
  return html`<button type="button" class="nav-link button quiet" title="Log out" onClick=${logOut}><${Icon} name="out" size=${20} /><span class="word">Log out</span></button>`;
}

function ConnectionState() {
  const { state, hello } = useGateway();
  const isOpen = state === "open";
  const words = isOpen ? `connected · ${hello?.server?.version || ""}` : "connecting …";
  return html`<div class=${`nav-state tone-${isOpen ? "good" : "warn"}`} title=${words}><span class="dot" aria-hidden="true"></span><span class="word">${words}</span></div>`;
}

/** Says that the gateway is away, once that has lasted long enough to matter. */
function Banner() {
  const { state } = useGateway();
  const [isLong, setLong] = useState(false);
  const isAway = state !== "open";
  useEffect(() => {
    if (!isAway) return setLong(false);
    const timer = setTimeout(() => setLong(true), 600);
    return () => clearTimeout(timer);
  }, [isAway]);
  return html`<div role="status" class=${isAway && isLong ? "banner" : "banner-place"}>${isAway && isLong && html`<${Icon} name="warning" />
    <span>The gateway does not answer. Trying again by itself; what was accepted goes on when it is back.</span>`}</div>`;
}

function Login() {
  const { error, state } = useGateway();
  const [token, setToken] = useState("");
  const isTrying = state === "connecting";
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) gateway.login(token);
  };
  return html`<main class="login"><form onSubmit=${submit}>
    <span class="brand"><img src="/page/icon.svg" alt="" />Backchannel</span>
    <h1>Log in</h1>
    <p>The token is on the machine of the gateway: <code>backchannel open</code> opens this page with it, and the file <code>token</code> of the state folder has it.</p>
    <label class="field"><span>Token</span>
      <input type="password" name="token" autocomplete="current-password" autofocus spellcheck=${false} value=${token} onInput=${(event) => setToken(event.currentTarget.value)} /></label>
    <${ErrorNote} error=${error} />
    <${Button} type="submit" kind="primary" disabled=${!token.trim() || isTrying}>${isTrying ? "Logging in …" : "Log in"}<//>
  </form></main>`;
}

/** One view; what breaks in it leaves the frame as it is. */
function View({ view, args, params }) {
  const [module, setModule] = useState(null);
  const [failed, setFailed] = useState(null);
  const [broken, again] = useErrorBoundary((error) => console.error(error));
  const place = VIEWS[view];
  const load = () => {
    setFailed(null);
    place?.load().then((loaded) => setModule(loaded), (error) => setFailed(error));
  };
  useEffect(load, [view]);
  if (!place) return html`<${Empty} title="There is no such place"><a href=${href("sessions")}>Go to the sessions</a><//>`;
  if (failed) return html`<div class="page"><${ErrorNote} error=${failed} retry=${load} /></div>`;
  if (broken) return html`<div class="page"><${ErrorNote} error=${broken} retry=${again} /></div>`;
  if (!module) return html`<div class="page"><${Skeleton} /></div>`;
  return place.show(module, args, params);
}

/** Keys for the whole page: `/` goes to the search field, `j` and `k` into the list. */
function shortcuts(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search=main]");
    search?.focus();
    search?.select();
    if (search) event.preventDefault();
  } else if ((event.key === "j" || event.key === "k") && !event.target.closest(".virtual, .table")) {
    const row = document.querySelector(".virtual [aria-current=true]") || document.querySelector(".virtual-row a, .table tr.opens");
    row?.focus();
    if (row) event.preventDefault();
  }
}

startOutbox();
gateway.start();
render(html`<${App} />`, document.getElementById("app"));
