/** Questions about tool calls, shown on every view: those of the open session first. */
import { html, useEffect, useState } from "./vendor/preact.js";
import { gateway } from "./gateway.js";
import { Icon } from "./icons.js";
import { useGateway, useLive } from "./live.js";
import { Age, Button, Fold, Key, Text, toast, visible } from "./parts.js";
import { useRoute } from "./routes.js";

const SHORT = 160;
/** How long a new question is shown before it can be answered: a second click on the last one is not meant for it. */
const SETTLES_MS = 800;

/** The questions that are open, kept up to date. */
export const useQuestions = () => useLive(() => gateway.call("approvals.list", { state: "pending", limit: 100 }), [], { events: ["approval"], minMs: 100 });

export function Approvals() {
  const { has } = useGateway();
  const { data, reload } = useQuestions();
  const waiting = data?.approvals || [];
  const { view, args } = useRoute();
  const here = view === "sessions" ? waiting.filter((each) => each.sessionKey === args[0]) : [];
  const approval = here[here.length - 1] ?? waiting[waiting.length - 1];
  return html`<div role="status" class="approvals-place">${approval && html`<${Question} key=${approval.id} approval=${approval} others=${data.hasMore ? "many" : waiting.length - 1} mayAnswer=${has("operator.admin")} onAnswered=${reload} />`}</div>`;
}

function Question({ approval, others, mayAnswer, onAnswered }) {
  const [isBusy, setBusy] = useState(true);
  useEffect(() => {
    const timer = setTimeout(() => setBusy(false), SETTLES_MS);
    return () => clearTimeout(timer);
  }, []);
  const noScope = mayAnswer ? undefined : "This needs the scope operator.admin.";
  const answer = async (decision, always = false) => {
    setBusy(true);
    try {
      await gateway.call("approvals.answer", { id: approval.id, decision, always });
    } catch (error) {
      toast(error.message, "bad");
      setBusy(false);
    }
    onAnswered();
  };
  const args = JSON.stringify(approval.args, null, 2);
  return html`<section class="approval" aria-label="A call waits for your word">
    <${Icon} name="warning" />
    <div class="approval-what grow">
      <p><${Key} session=${approval.sessionKey} /> asks to call <b><${Text}>${approval.tool}<//></b> <span class="small muted"><${Age} ts=${approval.createdAt} />${others ? ` · ${others} more wait` : ""}</span></p>
      ${args.length <= SHORT
        ? html`<pre class="approval-args" dir="auto">${visible(args)}</pre>`
        : html`<${Fold} summary=${visible(args.slice(0, SHORT)).replace(/\s+/g, " ")}><pre class="approval-args" dir="auto" tabindex="0">${visible(args)}</pre><//>`}
    </div>
    <div class="approval-answers">
      <${Button} kind="primary" disabled=${isBusy} disabledReason=${noScope} onClick=${() => answer("approve")}>Approve<//>
      <${Button} disabled=${isBusy} disabledReason=${noScope} title="Later calls of this tool in this session too" onClick=${() => answer("approve", true)}>Always<//>
      <${Button} kind="danger" disabled=${isBusy} disabledReason=${noScope} onClick=${() => answer("deny")}>Deny<//>
    </div>
  </section>`;
}
