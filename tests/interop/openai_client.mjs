// An OpenAI client in Node, with the retries that it has by itself: `node openai_client.mjs <url> <token> <what> <options>`.
// It prints what came of one request, as a line of JSON.

import OpenAI from 'openai';

const [url, token, what, given] = process.argv.slice(2);
const { timeout, ...request } = JSON.parse(given);
let tries = 0;
const client = new OpenAI({
  baseURL: `${url}/v1`,
  apiKey: token,
  timeout,
  fetch: (...asked) => {
    tries += 1;
    return fetch(...asked);
  },
});

async function ask() {
  if (what === 'stream') {
    let text = '';
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? '';
    }
    return text;
  }
  return (await client.chat.completions.create(request)).choices[0].message.content;
}

const outcome = await ask().then(
  (text) => ({ text }),
  (error) => ({ error: error.constructor.name, status: error.status ?? null, message: error.message }),
);
process.stdout.write(JSON.stringify({ ...outcome, tries }) + '\n');
process.exit(0);
