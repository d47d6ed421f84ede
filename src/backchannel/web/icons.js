/** Icons, drawn as lines on a grid of 24. They are decoration: the words beside them, or a label, say what is meant. */
import { html } from "./vendor/preact.js";

const PATHS = {
  sessions: ["M4 5h16v11H9l-5 4z"],
  runs: ["M5 12h3l2.5-7 4 14 2.5-7h2"],
  exchanges: ["M4 8h13", "M13 4l4 4-4 4", "M20 16H7", "M11 12l-4 4 4 4"],
  map: ["M6 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z", "M18 21a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z", "M18 9a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z", "M8.4 6l7 .3", "M7.5 7.6l9 9"],
  deliveries: ["M4 12l16-8-5 16-3.5-6.5z", "M11.5 13.5L20 4"],
  jobs: ["M12 21a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17z", "M12 8v5l3 2"],
  agents: ["M5 9h14v10H5z", "M12 9V5", "M9 13.5v1", "M15 13.5v1", "M12 4.6v.1"],
  channels: ["M5 12a7 7 0 0 1 7-7", "M5 19a14 14 0 0 1 14-14", "M6.5 18.5h.1"],
  budgets: ["M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z", "M15 9a3 2.2 0 0 0-3-1.6c-4 0-4 4.6 0 4.6s4 4.6 0 4.6A3 2.2 0 0 1 9 15", "M12 5.8v1.6", "M12 16.6v1.6"],
  health: ["M12 20s-8-4.6-8-10.2A4.3 4.3 0 0 1 12 7.5a4.3 4.3 0 0 1 8 2.3C20 15.4 12 20 12 20z"],
  more: ["M5 12h.1", "M12 12h.1", "M19 12h.1"],
  back: ["M15 5l-7 7 7 7"],
  chevron: ["M9 6l6 6-6 6"],
  down: ["M6 9l6 6 6-6"],
  search: ["M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14z", "M16 16l4.5 4.5"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  copy: ["M9 9h11v11H9z", "M15 9V4H4v11h5"],
  check: ["M5 12.5l4.5 4.5L19 7.5"],
  link: ["M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-5.7-5.7L12 7", "M14 10a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 5.7 5.7L12 17"],
  plus: ["M12 5v14", "M5 12h14"],
  send: ["M12 19V5", "M6 11l6-6 6 6"],
  stop: ["M7 7h10v10H7z"],
  retry: ["M4 11a8 8 0 1 1 2 6", "M4 5v6h6"],
  sun: ["M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8z", "M12 3v1.5", "M12 19.5V21", "M3 12h1.5", "M19.5 12H21", "M5.6 5.6l1.1 1.1", "M17.3 17.3l1.1 1.1", "M18.4 5.6l-1.1 1.1", "M6.7 17.3l-1.1 1.1"],
  moon: ["M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z"],
  auto: ["M4 5h16v11H4z", "M9 20h6"],
  out: ["M10 4H5v16h5", "M14 8l4 4-4 4", "M18 12H9"],
  warning: ["M12 4l9 16H3z", "M12 10v4.5", "M12 17.2v.1"],
  tool: ["M14.5 6.5a4 4 0 0 0 4.9 4.9l-8 8a2.5 2.5 0 0 1-3.5-3.5l8-8z"],
  person: ["M12 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z", "M5 20a7 7 0 0 1 14 0"],
  gear: ["M12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6z", "M12 3v3", "M12 18v3", "M3 12h3", "M18 12h3", "M5.6 5.6l2.1 2.1", "M16.3 16.3l2.1 2.1", "M18.4 5.6l-2.1 2.1", "M7.7 16.3l-2.1 2.1"],
  tree: ["M5 4v13h5", "M5 9h5", "M12 6.5h8v5h-8z", "M12 14.5h8v5h-8z"],
  list: ["M4 6h16", "M4 12h16", "M4 18h16"],
};

/** `<Icon name="search" />`. */
export function Icon({ name, size = 18, class: className = "" }) {
  return html`<svg class=${`icon ${className}`} width=${size} height=${size} viewBox="0 0 24 24" fill="none" stroke="currentColor"
    stroke-width=${name === "more" ? 3 : 1.75} stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">
    ${(PATHS[name] || []).map((d) => html`<path d=${d} />`)}
  </svg>`;
}
