// A conversation through OpenClaw's own client library; tells what it met, a line of JSON each.
import { GatewayClient } from "@openclaw/gateway-client";

const [url, token, key, run = "lib"] = process.argv.slice(2);
const tell = (told) => process.stdout.write(JSON.stringify(told) + "\n");

const client = new GatewayClient({
  url,
  token,
  scopes: ["operator.admin"],
  onHelloOk: async (hello) => {
    tell({ hello: hello.type, protocol: hello.protocol });
    await client.request("sessions.messages.subscribe", { key });
    const sent = await client.request("chat.send", { sessionKey: key, message: "from the library", idempotencyKey: run });
    tell({ sent: sent.status });
  },
  onEvent: (event) => {
    if (event.event === "chat") tell({ chat: event.payload.state, run: event.payload.runId });
    if (event.event !== "agent") return;
    const { stream, data } = event.payload;
    tell({ agent: stream, phase: data.phase, text: data.text ?? data.result?.content[0].text, args: data.args });
  },
  onConnectError: (error) => tell({ error: String(error) }),
});
client.start();
process.stdin.once("data", () => { client.stop(); process.exit(0); });
