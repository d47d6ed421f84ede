/** Hooks: the connection, live rows, the time, and values that all tabs share. */
import { useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { gateway } from "./gateway.js";

/** The connection's state; the component renders again when it changes. */
export function useGateway() {
  const [, setCount] = useState(0);
  useEffect(() => gateway.onState(() => setCount((count) => count + 1)), []);
  return {
    state: gateway.state,
    error: gateway.error,
    hello: gateway.hello,
    has: (scope) => gateway.has(scope),
    knows: (method) => gateway.knows(method),
  };
}

/**
 * Rows that are read by `load()`, and again when `deps` change, after a reconnect or gap, and after matching events:
 * at most once in `minMs`, and never twice at a time. The rows that are known stay while new ones are read.
 *
 * @param {() => Promise<any>} load reads by `gateway.call`
 * @param {any[]} deps
 * @param {{events?: string[], when?: (event: string, payload: any) => boolean, minMs?: number, everyMs?: number}} options
 *   `everyMs` reads again at that pace too, for what no event tells of
 */
export function useLive(load, deps = [], { events = [], when, minMs = 250, everyMs } = {}) {
  const [shown, setShown] = useState({ data: undefined, error: null, isLoading: true });
  const latest = useRef(null);
  latest.current = { load, when };
  const reader = useRef(null);
  if (!reader.current) reader.current = new Reader(latest, setShown);

  useEffect(() => {
    const current = reader.current;
    current.begin(minMs);
    const offs = events.map((name) =>
      gateway.on(name, (payload, event) => {
        if (!latest.current.when || latest.current.when(event, payload)) current.soon();
      }),
    );
    offs.push(gateway.on("resync", () => current.soon(true)));
    const timer = everyMs ? setInterval(() => document.hidden || current.soon(), everyMs) : 0;
    return () => {
      offs.forEach((off) => off());
      clearInterval(timer);
      current.end();
    };
  }, deps);

  return { ...shown, reload: useCallback(() => reader.current.soon(true), []) };
}

/** Reads for one component, one read at a time. What a read brings after `end` or the next `begin` is dropped. */
class Reader {
  #generation = 0;
  #timer = 0;
  #isReading = false;
  #isWanted = false;
  #readAt = 0;

  constructor(latest, show) {
    this.latest = latest;
    this.show = show;
  }

  begin(minMs) {
    this.minMs = minMs;
    this.#generation++;
    this.#isReading = this.#isWanted = false;
    this.show((before) => ({ ...before, isLoading: true }));
    this.#read();
  }

  end() {
    this.#generation++;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isReading = false;
  }

  /** Read again, at once or as soon as the pace allows. */
  soon(atOnce = false) {
    if (this.#isReading) {
      this.#isWanted = true;
      return;
    }
    if (this.#timer && !atOnce) return;
    clearTimeout(this.#timer);
    const wait = atOnce ? 0 : Math.max(0, this.#readAt + this.minMs - Date.now());
    this.#timer = setTimeout(() => this.#read(), wait);
  }

  async #read() {
    const generation = this.#generation;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isReading = true;
    this.#isWanted = false;
    this.#readAt = Date.now();
    let seen;
    try {
      const data = await this.latest.current.load();
      seen = () => ({ data, error: null, isLoading: false });
    } catch (error) {
      // While the connection is away the banner says so, and the rows are read again once it is back.
      const isAway = error.code === "disconnected";
      seen = (before) => ({ ...before, error: isAway && before.data !== undefined ? null : error, isLoading: false });
    }
    if (generation !== this.#generation) return;
    this.#isReading = false;
    this.show(seen);
    if (this.#isWanted) this.soon();
  }
}

/** The time, anew every `ms`: for ages. One clock per pace serves all components. */
export function useTicker(ms = 10_000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => tickEvery(ms, setNow), [ms]);
  return now;
}

const clocks = new Map();

function tickEvery(ms, listener) {
  let clock = clocks.get(ms);
  if (!clock) {
    clock = { listeners: new Set(), timer: 0 };
    clock.timer = setInterval(() => {
      const now = Date.now();
      clock.listeners.forEach((each) => each(now));
    }, ms);
    clocks.set(ms, clock);
  }
  clock.listeners.add(listener);
  return () => {
    clock.listeners.delete(listener);
    if (!clock.listeners.size) {
      clearInterval(clock.timer);
      clocks.delete(ms);
    }
  };
}

const STORED = "backchannel.stored";
/** What storage would not take, because it is off or full: it lasts as long as the page. */
const unstored = new Map();

/** Read a value that this browser keeps. */
export function readStored(key, initial) {
  if (unstored.has(key)) return unstored.get(key) ?? initial;
  try {
    const text = localStorage.getItem(`backchannel.${key}`);
    return text === null ? initial : JSON.parse(text);
  } catch {
    return initial; // storage is off, or something else wrote there
  }
}

/** The names of the values that this browser keeps, of those that begin so. */
export function storedKeys(prefix) {
  try {
    const kept = Object.keys(localStorage).filter((name) => name.startsWith(`backchannel.${prefix}`));
    return [...new Set([...kept.map((name) => name.slice("backchannel.".length)), ...[...unstored.keys()].filter((name) => name.startsWith(prefix))])];
  } catch {
    return [...unstored.keys()].filter((name) => name.startsWith(prefix));
  }
}

/** Keep a value in this browser, for all tabs; undefined forgets it. */
export function writeStored(key, value) {
  try {
    if (value === undefined) localStorage.removeItem(`backchannel.${key}`);
    else localStorage.setItem(`backchannel.${key}`, JSON.stringify(value));
    unstored.delete(key);
  } catch {
    unstored.set(key, value);
  }
  dispatchEvent(new CustomEvent(STORED, { detail: key }));
}

/** A value that this browser keeps and all its tabs share. */
export function useStored(key, initial) {
  const [value, setValue] = useState(() => readStored(key, initial));
  useEffect(() => {
    const read = () => setValue(readStored(key, initial));
    const here = (event) => event.detail === key && read();
    const elsewhere = (event) => event.key === `backchannel.${key}` && read();
    read();
    addEventListener(STORED, here);
    addEventListener("storage", elsewhere);
    return () => {
      removeEventListener(STORED, here);
      removeEventListener("storage", elsewhere);
    };
  }, [key]);
  const set = useCallback((next) => {
    setValue(next);
    writeStored(key, next);
  }, [key]);
  return [value, set];
}
