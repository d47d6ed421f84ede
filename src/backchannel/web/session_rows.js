/**
 * The list of sessions in one tab, newest activity first, page by page.
 *
 * A change reads the first page again, and the next ones as long as all rows on them are news: whatever is below a row that
 * has not changed has not moved either. So keeping a list of thousands up to date costs one short page per change.
 */
import { gateway } from "./gateway.js";

const PAGE = 60;
const MOST_PAGES = 20;
const MOST_LOOKED_UP = 20;
const REFRESH_MS = 500;

export class SessionRows {
  rows = [];
  hasMore = false;
  isLoaded = false;
  error = null;

  #filter;
  #changed;
  #cursor;
  #touched = new Set();
  #timer = 0;
  #isReading = false;
  #isWanted = false;
  #isStale = false;
  #wantsMore = false;
  #isOver = false;
  #readAt = 0;
  #offs = [];

  constructor(filter, changed) {
    this.#filter = { ...filter, includeLastMessage: true };
    this.#changed = changed;
  }

  start() {
    this.#offs = [
      gateway.on("resync", () => {
        this.#isStale = true;
        this.#soon(0);
      }),
      gateway.on("sessions.changed", ({ sessionKey }) => {
        this.#touched.add(sessionKey);
        this.#soon();
      }),
    ];
    this.#isStale = true;
    this.#soon(0);
  }

  stop() {
    this.#isOver = true;
    this.#offs.forEach((off) => off());
    clearTimeout(this.#timer);
  }

  reload() {
    this.#isStale = true;
    this.#soon(0);
  }

  /** Read the page below the last row. */
  async more() {
    this.#wantsMore = this.#isReading;
    if (!this.hasMore || this.#isReading || !this.#cursor) return;
    await this.#reading(async () => {
      const page = await this.#page(this.#cursor);
      const known = new Set(this.rows.map((row) => row.key));
      this.rows = [...this.rows, ...page.sessions.filter((row) => !known.has(row.key))];
      this.#end(page);
    });
  }

  #soon(ms = Math.max(50, this.#readAt + REFRESH_MS - Date.now())) {
    if (this.#isReading) this.#isWanted = true;
    else if (!this.#timer || ms === 0) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#refresh(), ms);
    }
  }

  #refresh() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#isReading) {
      this.#isWanted = true;
      return undefined;
    }
    this.#readAt = Date.now();
    const touched = this.#touched;
    this.#touched = new Set();
    const isStale = this.#isStale;
    this.#isStale = false;
    return this.#reading(() => (isStale || !this.isLoaded ? this.#readFirst() : this.#readNews(touched)));
  }

  async #reading(read) {
    this.#isReading = true;
    try {
      await read();
      this.error = null;
      this.isLoaded = true;
    } catch (error) {
      if (error.code !== "disconnected") this.error = error;
    }
    this.#isReading = false;
    if (this.#isOver) return;
    this.#changed();
    if (this.#isWanted) {
      this.#isWanted = false;
      this.#soon();
    }
    if (this.#wantsMore) this.more();
  }

  #page(cursor) {
    return gateway.call("sessions.list", { ...this.#filter, limit: PAGE, ...(cursor && { cursor }) });
  }

  #end(page) {
    this.hasMore = page.hasMore;
    this.#cursor = page.nextCursor;
  }

  /** After a connect: as many rows as were there, read anew. */
  async #readFirst() {
    const wanted = this.rows.length;
    let page = await this.#page();
    let rows = page.sessions;
    for (let n = 0; rows.length < wanted && page.hasMore && n < MOST_PAGES; n++) {
      page = await this.#page(page.nextCursor);
      rows = [...rows, ...page.sessions];
    }
    this.rows = rows;
    this.#end(page);
  }

  async #readNews(touched) {
    const before = new Map(this.rows.map((row) => [row.key, row]));
    const fresh = [];
    let page;
    for (let n = 0; n < MOST_PAGES; n++) {
      page = await this.#page(page?.nextCursor);
      fresh.push(...page.sessions);
      const isKnown = page.sessions.some((row) => before.get(row.key)?.updatedAt === row.updatedAt && !touched.has(row.key));
      if (isKnown || !page.hasMore) break;
    }
    const seen = new Set(fresh.map((row) => row.key));
    const last = fresh.at(-1)?.updatedAt ?? 0;
    // What would stand among the rows that were read, and does not, is gone: archived, or no longer a match.
    const rest = page.hasMore ? this.rows.filter((row) => !seen.has(row.key) && row.updatedAt <= last) : [];
    this.rows = [...fresh.map((row) => reuse(before.get(row.key), row)), ...rest];
    if (!page.hasMore || !rest.length) this.#end(page);
    await this.#lookUp([...touched].filter((key) => !seen.has(key) && before.has(key)));
  }

  /** Rows that were told to have changed and are further down: read each. */
  async #lookUp(keys) {
    for (const key of keys.slice(0, MOST_LOOKED_UP)) {
      const row = await gateway.call("sessions.describe", { key }).then(({ session }) => session, () => null);
      const isHere = row && Boolean(row.archivedAt) === Boolean(this.#filter.archived);
      this.rows = this.rows.flatMap((each) => (each.key !== key ? [each] : isHere ? [{ ...each, ...row }] : []));
    }
  }
}

/** Keep the object of a row that has not changed: it is not rendered again. */
function reuse(before, row) {
  if (!before || before.updatedAt !== row.updatedAt) return row;
  return Object.keys(row).every((name) => before[name] === row[name] || typeof row[name] === "object") ? before : row;
}
