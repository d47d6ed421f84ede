/**
 * Words of the page about runs, exchanges and deliveries, as in the terminal and docs.
 *
 * Pure functions from the gateway's answers to text.
 */

import { duration, visible } from "../parts.js";

const MEANINGS = {
  REPLY_SKIP: "nothing more to say",
  ANNOUNCE_SKIP: "nothing to announce",
  NO_REPLY: "nothing to answer",
};

/** Whether a reply is exactly a control word, which is meant for the gateway and reaches no person. */
export const isControlWord = (text) => Object.hasOwn(MEANINGS, (text ?? "").trim());

/** Says to a person what a control word, or no text at all, means. */
export const inWords = (text) => `(${MEANINGS[(text ?? "").trim()] ?? "no text"})`;

/** A sentence of the gateway with the control words in it said in words. */
export const sayControls = (text) => (text ?? "").replace(/\b(?:REPLY_SKIP|ANNOUNCE_SKIP|NO_REPLY)\b/g, (word) => `“${MEANINGS[word]}”`);

/** "1 run", "3 runs". */
export const counted = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** A time of day, with the day where it is not today's. */
export function clockTime(ms, now = Date.now()) {
  if (ms == null) return "";
  const day = DAY.format(ms);
  return day === DAY.format(now) ? TIME.format(ms) : `${day}, ${TIME.format(ms)}`;
}

/** "in 3 min 4 s" or "now". */
export const until = (ms, now) => (ms > now ? `in ${duration(ms - now)}` : "now");

/** As much of an id as tells it apart; the whole one is its title, and what links and copies use. */
export function shortId(id) {
  const plain = /^([0-9a-f]{8})-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}(\/.*)?$/i.exec(id ?? "");
  if (plain) return `${id.replaceAll("-", "").slice(0, 12)}${plain[2] ?? ""}`;
  return visible(id?.length > 40 ? `${id.slice(0, 27)}…${id.slice(-12)}` : id); // clients choose ids
}

/** Where a delivery goes: channel, account, chat, thread. */
export function place(delivery) {
  const address = [delivery.channel, delivery.accountId, delivery.to].filter(Boolean).join(" ");
  return delivery.threadId ? `${address} thread ${delivery.threadId}` : address;
}

/** How many parts of a delivery have arrived: "1/3"; nothing where there are none. */
export function progress(delivery) {
  const parts = (delivery.parts ?? []).filter((part) => delivery.state === "dropped" || part.state !== "dropped");
  return parts.length ? `${parts.filter((part) => part.state === "sent").length}/${parts.length}` : "";
}

const RECEIPTS = {
  pending: "waits to be sent",
  sending: "is being sent",
  sent: "has arrived",
  failed: "did not arrive",
  uncertain: "may or may not have arrived",
  dropped: "was given up",
  suppressed: "was kept back by the send policy",
  no_channel: "has no chat to go to",
  skipped: "was not needed: there was nothing to announce",
  cancelled: "was cancelled",
};

/** Says where a receipt stands, as the end of a sentence. */
export function receiptInWords(receipt, now = Date.now()) {
  if (receipt.state === "pending" && receipt.text === undefined) return "is not written yet";
  const said = RECEIPTS[receipt.state] ?? receipt.state;
  return receipt.state === "pending" && receipt.dueAt > now ? `${said} again ${until(receipt.dueAt, now)}` : said;
}

const KINDS = {
  message: "message",
  primary: "asked by another session",
  turn: "turn of an exchange",
  announce: "announce",
  child: "task of a sub-agent",
  wake: "wake",
  cron: "job",
  hook: "hook",
  node: "node",
};

/** Says what a run is for. */
export const runKind = (kind) => KINDS[kind] ?? kind;

/** What there is to say about how a run ended or what it waits for, in one line. */
export function runResult(run, now = Date.now()) {
  const reply = run.reply ?? "";
  const said = failureOf(run) || (isControlWord(reply) ? inWords(reply) : reply) || runWaits(run, now);
  return said || (run.error === STOPPED ? "was stopped" : "");
}

/** Says that a model failed and is asked again, for which time, and why. */
export const askedAgain = ({ attempt, attempts, error }) => `asked again, ${attempt + 1} of ${attempts}: ${oneLine(error)}`;

/** Says which model a run waits for, since when, and when it is asked again. */
export const waitsForModel = ({ waitsFor, resumeAt }, now = Date.now()) =>
  `waits for ${waitsFor.model} since ${clockTime(waitsFor.since, now)}, asked again ${until(resumeAt, now)}: ${oneLine(waitsFor.error)}`;

/** Says what a run waits for that is neither at work nor at an end; "" where there is nothing to say. */
export function runWaits(run, now = Date.now()) {
  if (run.waitsFor?.kind === "budget") return `waits for the budget ${run.waitsFor.budget}`;
  if (run.waitingFor === "function") return "waits for the program whose function is its agent";
  if (run.waitingFor === "agent") return "waits for a gateway that has its agent";
  if (run.waitingFor === "gateway") return "waits for the gateway that has its agent";
  if (run.waitingFor === "approval") return "waits for an owner to allow a call";
  if (run.retry) return askedAgain(run.retry);
  if (run.waitsFor) return waitsForModel(run, now);
  if (run.resumeAt) return `after crashes; tried again ${until(run.resumeAt, now)} (${clockTime(run.resumeAt, now)})`;
  return "";
}

/** The word for what a run is at. */
export const runStatus = (run) => (run.waitsFor ? "waiting" : run.resumeAt ? "setAside" : run.waitingFor && !isEnded(run) ? "waiting" : run.status);

/** The error of a run that somebody stopped, which is no failure. */
export const STOPPED = "aborted";

/** Why a run failed, if it did. */
export const failureOf = (run) => (run.error === STOPPED ? undefined : run.error);

/** Whether a run has ended, whichever way. */
export const isEnded = (run) => run.status !== "queued" && run.status !== "running";

/** One line of a text that may have many. */
export const oneLine = (text, most = 300) => {
  const line = visible((text ?? "").slice(0, most * 2).replace(/\s+/g, " ").trim());
  return line.length > most ? `${line.slice(0, most)}…` : line;
};

/** A value of JSON as people read it. */
export const pretty = (value) => visible(typeof value === "string" ? value : JSON.stringify(value, null, 2));
