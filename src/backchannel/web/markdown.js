/**
 * Markdown of an agent, as nodes.
 *
 * An agent writes other people's text: HTML in it is shown as it was typed, and only links to http, https and mailto can be
 * followed. A picture is a link, since loading it would tell its host.
 */
import { Component, html } from "./vendor/preact.js";
import { lexer } from "./vendor/marked.js";
import { CopyButton, visible } from "./parts.js";
import { href } from "./routes.js";

const DEEPEST = 24;
const SLOW_MS = 40;
const MOST_SLOW = 3;
const OPTIONS = { gfm: true, breaks: true }; // in a chat, a new line is a new line
const KEY = /^agent:[\w-]+:\S{1,400}$/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–" };
const HEADINGS = ["h3", "h3", "h4", "h5", "h6", "h6"];

/**
 * A text in Markdown. One that grows, `isLive`, is plain once it takes too long to read it over again at each word: more than
 * once, since the machine may be busy with something else.
 */
export class Markdown extends Component {
  slowTimes = 0;

  shouldComponentUpdate(next) {
    return next.text !== this.props.text;
  }

  render({ text, isLive }) {
    const start = performance.now();
    const nodes = isLive && this.slowTimes >= MOST_SLOW ? plain(text) : nodesOf(text);
    if (this.slowTimes < MOST_SLOW) this.slowTimes = performance.now() - start > SLOW_MS ? this.slowTimes + 1 : 0;
    return html`<div class="prose" dir="auto">${nodes}</div>`;
  }
}

function nodesOf(text) {
  try {
    return blocks(lexer(visible(text), OPTIONS), 0);
  } catch {
    return plain(text); // nested too deep for the lexer
  }
}

const plain = (text) => html`<p class="wrap">${visible(text)}</p>`;

function blocks(tokens, depth) {
  if (depth > DEEPEST) return plain(tokens.map((token) => token.raw).join(""));
  return tokens.map((token) => block(token, depth));
}

function block(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<${HEADINGS[token.depth - 1]}>${inline(token.tokens, depth)}<//>`;
    case "paragraph":
      return html`<p>${inline(token.tokens, depth)}</p>`;
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded(token.text);
    case "code":
      return html`<${Code} text=${token.text} lang=${token.lang} />`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens, depth + 1)}</blockquote>`;
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "hr":
      return html`<hr />`;
    case "html":
      return plain(token.text.trim());
    case "checkbox":
      return checkbox(token);
    default:
      return plain(token.raw);
  }
}

function list(token, depth) {
  const items = token.items.map((item) => html`<li class=${item.task ? "task" : ""}>${blocks(item.tokens, depth + 1)}</li>`);
  return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

const checkbox = (token) => html`<span class="checkbox">${token.checked ? "☑" : "☐"} </span>`;

function table(token, depth) {
  const cell = (tag, each) => html`<${tag} class=${each.align ? `align-${each.align}` : ""}>${inline(each.tokens, depth)}<//>`;
  return html`<div class="prose-table" tabindex="0" role="region" aria-label="Table"><table>
    <thead><tr>${token.header.map((each) => cell("th", each))}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map((each) => cell("td", each))}</tr>`)}</tbody>
  </table></div>`;
}

function Code({ text, lang }) {
  return html`<div class="code-block"><div class="code-head"><span>${(lang || "").split(/\s/)[0].slice(0, 32)}</span><${CopyButton} text=${text} label="Copy code" /></div>
    <pre dir="ltr" tabindex="0"><code>${text}</code></pre></div>`;
}

function inline(tokens = [], depth = 0) {
  if (depth > DEEPEST) return tokens.map((token) => token.raw).join("");
  return tokens.map((token) => span(token, depth + 1));
}

function span(token, depth) {
  switch (token.type) {
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded(token.text);
    case "escape":
      return token.text;
    case "strong":
      return html`<strong>${inline(token.tokens, depth)}</strong>`;
    case "em":
      return html`<em>${inline(token.tokens, depth)}</em>`;
    case "del":
      return html`<del>${inline(token.tokens, depth)}</del>`;
    case "codespan":
      return code(token.text);
    case "br":
      return [html`<br />`, "\n"];
    case "link":
      return link(token.href, inline(token.tokens, depth), token.raw);
    case "image":
      return link(token.href, `picture: ${decoded(token.text) || token.href}`, token.raw);
    case "checkbox":
      return checkbox(token);
    default:
      return token.raw; // HTML too: as it was typed
  }
}

/** Code in a line; the key of a session leads to it. */
function code(text) {
  const shown = html`<code>${text}</code>`;
  return KEY.test(text) ? html`<a href=${href("sessions", text)}>${shown}</a>` : shown;
}

/** The address, if it is one that may be followed. */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, shown, raw) {
  const safe = safeAddress(address);
  if (!safe) return raw;
  return html`<a href=${safe} target="_blank" rel="noopener noreferrer" title=${safe}>${shown}</a>`;
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0x1f && code <= 0x10ffff ? visible(String.fromCodePoint(code)) : whole;
  });
}
