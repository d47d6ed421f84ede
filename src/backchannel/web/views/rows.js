/** Lists that page: the rows asked for, read again whenever something changed. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { useLive } from "../live.js";
import { Button } from "../parts.js";
import { counted } from "./words.js";

const PAGE = 50;
const MOST_A_CALL = 200;

/**
 * Reads the rows of a method that takes `limit` and `cursor`.
 * @param {string} method such as "runs.list"
 * @param {object} params its parameters besides the page
 * @param {string} name the field of the answer that holds the rows
 * @param {object} options those of useLive, and `keep`, a filter of rows that the gateway cannot apply, with what it goes by
 * @returns {{rows: object[] | undefined, hasMore: boolean, more: () => void, error, isLoading: boolean, reload: () => void}}
 */
export function useRows(method, params, name, { keep, keepBy, ...options } = {}) {
  const asked = JSON.stringify([method, params, keepBy]);
  const [wish, setWish] = useState({ asked, wanted: PAGE });
  const wanted = wish.asked === asked ? wish.wanted : PAGE; // another filter begins at its first page
  const { data, error, isLoading, reload } = useLive(async () => ({ asked, ...(await readRows(method, params, name, wanted, keep)) }),
    [asked, wanted], options);
  const isOthers = data !== undefined && data.asked !== asked; // rows of the filter before, until those of this one come
  return {
    rows: isOthers ? undefined : data?.rows,
    hasMore: !isOthers && Boolean(data?.hasMore),
    more: () => setWish({ asked, wanted: wanted + PAGE * 2 }),
    error,
    isLoading: isLoading || isOthers,
    reload,
  };
}

async function readRows(method, params, name, wanted, keep = () => true) {
  const rows = [];
  let read = 0;
  let page;
  do {
    page = await gateway.call(method, { ...params, limit: Math.min(wanted - read, MOST_A_CALL), cursor: page?.nextCursor });
    read += page[name].length;
    rows.push(...page[name].filter(keep));
  } while (page.hasMore && read < wanted && page[name].length > 0);
  return { rows, hasMore: page.hasMore };
}

/** The end of a list: how many there are, and the rest of them. */
export function More({ rows, hasMore, more, isLoading, one, many }) {
  return html`<div class="more">
    <span class="muted">${counted(rows.length, one, many)}${hasMore ? ", and there are more" : ""}</span>
    ${hasMore && html`<${Button} onClick=${more} disabledReason=${isLoading ? "They are being read" : undefined}>Show more<//>`}
  </div>`;
}
