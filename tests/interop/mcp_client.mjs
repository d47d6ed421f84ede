// An MCP client in Node: `node mcp_client.mjs <sdk> <mode> <url> <token> <what> [<arguments>]`.
// It does what it is told and prints what came of it, a line of JSON each.

const [sdk, mode, url, token, what, given] = process.argv.slice(2);
const name = { name: 'interop', version: '1' };
const transportOptions = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };

function tell(event) {
  process.stdout.write(JSON.stringify(event) + '\n');
}

async function connect() {
  if (sdk === 'sdk') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const client = new Client(name);
    await client.connect(new StreamableHTTPClientTransport(new URL(url), transportOptions));
    return { client, call: (params, options) => client.callTool(params, undefined, options) };
  }
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const client = new Client(name, { versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), transportOptions));
  return { client, call: (params, options) => client.callTool(params, options) };
}

const { client, call } = await connect();
const params = given === undefined ? undefined : JSON.parse(given);

if (what === 'list') {
  tell({ tools: (await client.listTools()).tools.map((tool) => tool.name) });
} else if (what === 'call') {
  tell({ result: await call(params) });
} else if (what === 'progress') {
  const result = await call(params, { onprogress: (progress) => tell({ progress }) });
  tell({ result });
} else if (what === 'cancel') {
  const stop = new AbortController();
  const errors = [];
  client.onerror = (error) => errors.push(String(error));
  process.stdin.once('data', () => stop.abort('no longer wanted'));
  const outcome = await call(params, { signal: stop.signal }).then(
    () => 'a result',
    () => 'stopped',
  );
  tell({ outcome, tools: (await client.listTools()).tools.length, errors });
} else if (what === 'fail') {
  tell({ error: await call(params).then(() => null, (error) => ({ code: error.code, message: error.message })) });
}
await client.close();
process.exit(0);
