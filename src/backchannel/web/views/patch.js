/** The form for a session's settings. Only what was changed is sent; an empty field clears a setting. */

import { html, useState } from "../vendor/preact.js";
import { gateway } from "../gateway.js";
import { useLive } from "../live.js";
import { Button, Dialog, ErrorNote, Skeleton, sessionName, toast } from "../parts.js";
import { Pick, TextField } from "./forms.js";
import { useScope } from "./pieces.js";

const LEVELS = ["off", "minimal", "low", "medium", "high", "xhigh"].map((level) => [level, level]);
const SETTINGS = ["label", "displayName", "model", "thinkingLevel", "verboseLevel", "sendPolicy"];

const keyOf = (session) => (session && typeof session === "object" ? session.key : session);

export function PatchDialog({ session, onClose }) {
  const key = keyOf(session);
  const { data, error } = useLive(() => gateway.call("sessions.describe", { key }), [key]);
  return html`<${Dialog} title=${`Settings of ${sessionName(session)}`} onClose=${onClose}>
    ${error && html`<div class="dialog-body"><${ErrorNote} error=${error} /></div>`}
    ${!data && !error && html`<div class="dialog-body"><${Skeleton} /></div>`}
    ${data && html`<${PatchForm} row=${data.session} onClose=${onClose} />`}
  <//>`;
}

function PatchForm({ row, onClose }) {
  const [before] = useState(() => ({ ...Object.fromEntries(SETTINGS.map((name) => [name, row[name] ?? ""])),
    isArchived: Boolean(row.archivedAt) }));
  const [values, setValues] = useState(before);
  const [error, setError] = useState();
  const { data: models } = useLive(() => gateway.call("models.list", { view: "all" }), []);
  const noScope = useScope("operator.admin");
  const changes = changed(before, values);
  const set = (name) => (value) => setValues((now) => ({ ...now, [name]: value }));
  const save = async (event) => {
    event.preventDefault();
    if (noScope || !Object.keys(changes).length) return;
    try {
      await gateway.call("sessions.patch", { key: row.key, expectedSessionId: row.sessionId, ...changes });
      toast("The session is changed.", "good");
      onClose();
    } catch (refused) {
      setError(refused);
    }
  };
  return html`<form onSubmit=${save}>
    <${TextField} label="Label" hint="A name by which it can be addressed; no other session of the agent has it" value=${values.label}
      onInput=${set("label")} maxlength="64" autofocus />
    <${TextField} label="Display name" hint="How lists call it" value=${values.displayName} onInput=${set("displayName")} maxlength="64" />
    <${TextField} label="Model" hint="What its next run uses, as provider/model; empty is the agent's" value=${values.model}
      onInput=${set("model")} suggestions=${models?.models.map((model) => model.backchannel.ref) ?? []} />
    <div class="pair">
      <${Pick} label="Thinking" value=${values.thinkingLevel} onChange=${set("thinkingLevel")} options=${[["", "as configured"], ...LEVELS]} />
      <${Pick} label="Verbose" hint="On tells the chat of each tool call" value=${values.verboseLevel} onChange=${set("verboseLevel")}
        options=${[["", "as configured"], ["off", "off"], ["on", "on"]]} />
    </div>
    <${Pick} label="Send policy" hint="Whether anything may be sent to its chat; it goes before the rules of the configuration"
      value=${values.sendPolicy} onChange=${set("sendPolicy")} options=${[["", "as the rules say"], ["allow", "allow"], ["deny", "deny"]]} />
    <label class="check"><input type="checkbox" checked=${values.isArchived}
      onChange=${(event) => set("isArchived")(event.currentTarget.checked)} /> Archived: it leaves the lists</label>
    <${ErrorNote} error=${error} />
    <footer><${Button} onClick=${onClose}>Cancel<//>
      <${Button} kind="primary" type="submit"
        disabledReason=${noScope ?? (Object.keys(changes).length ? undefined : "Nothing is changed yet")}>Save<//></footer>
  </form>`;
}

function changed(before, now) {
  const changes = {};
  for (const name of SETTINGS) if (now[name] !== before[name]) changes[name] = now[name].trim() === "" ? null : now[name];
  if (now.isArchived !== before.isArchived) changes.archived = now.isArchived;
  return changes;
}
