/** Places on the page: `#/view/arg?name=value`. Each part is encoded, since keys hold colons and slashes. */
import { useEffect, useState } from "./vendor/preact.js";

const HOME = "sessions";

/** @returns {{view: string, args: string[], params: Record<string, string>}} */
export function route(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view, ...args] = path.split("/").filter(Boolean).map(decoded);
  return { view: view || HOME, args, params: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a place: `href("sessions", key, {message: id})`; args is one or a list. */
export function href(view, args = [], params = {}) {
  const path = [view, ...[args].flat()].map(encodeURIComponent).join("/");
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== false && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

export function go(view, args = [], params = {}) {
  location.hash = href(view, args, params);
}

/** Change the parameters of the place that one is at, without a step in the history. */
export function setParams(params) {
  const { view, args, params: before } = route();
  history.replaceState(null, "", href(view, args, { ...before, ...params }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    changed();
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route(hash);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
