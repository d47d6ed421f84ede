// `telegram-test-api`, an emulator of Telegram's Bot API by others, and a person who writes through its own client:
// `node telegram_server.mjs <token>`. It prints where it is reached, then every message of the bot as it is posted or
// edited; a line of input is what the person writes. One thing is added before it that Telegram has and it leaves out:
// `is_bot` in the answer to getMe.

import http from 'node:http';
import readline from 'node:readline';
import TelegramServer from 'telegram-test-api';
import { TelegramClient } from 'telegram-test-api/lib/modules/telegramClient.js';

const [token] = process.argv.slice(2);
const server = new TelegramServer({ host: '127.0.0.1' });
const me = { id: 4242, is_bot: true, first_name: 'Test', username: 'TestNameBot' };
const tell = (told) => console.log(JSON.stringify(told));

const front = http.createServer((request, response) => {
  if (request.url.endsWith('/getMe')) {
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify({ ok: true, result: me }));
  } else {
    server.webServer(request, response);
  }
});

front.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${front.address().port}`;
  const person = new TelegramClient(url, token, { userId: 7, chatId: 7, firstName: 'Ann' });
  const texts = () => server.storage.botMessages.map(({ message }) => message.text);
  server.on('AddedBotMessage', () => tell({ posted: texts() }));
  server.on('EditedMessageText', () => tell({ edited: texts() }));
  readline.createInterface({ input: process.stdin }).on('line', (line) => person.sendMessage(person.makeMessage(line)));
  tell({ url });
});
