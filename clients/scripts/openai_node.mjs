// openai-node, with both APIs.

import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import * as c from './checks.mjs';
import { cannot, check, fails, same } from './checks.mjs';

const client = new OpenAI({ baseURL: c.BASE, apiKey: c.TOKEN, maxRetries: 0 });
const chat = client.chat.completions;
const { responses } = client;
const model = 'main';
const parameters = { type: 'object', properties: { city: { type: 'string' } } };
const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
const user = (content) => [{ role: 'user', content }];
const City = z.object({ name: z.string() });
const headers = c.SESSION;

check('plain', async () => {
  const said = await chat.create({ model, messages: user('hi') });
  same(said.choices[0].message.content, 'You said: hi');
  same((await responses.create({ model, input: 'hi' })).output_text, 'You said: hi');
});

check('streamed', async () => {
  let text = '';
  for await (const chunk of await chat.create({ model, messages: user(c.WORDS), stream: true }))
    text += chunk.choices[0].delta.content ?? '';
  for await (const event of await responses.create({ model, input: c.WORDS, stream: true }))
    if (event.type === 'response.output_text.delta') text += event.delta;
  same(text, c.SPOKEN + c.SPOKEN);
});

const weather = {
  type: 'function',
  function: { name: 'weather', parameters, parse: JSON.parse, function: ({ city }) => `sunny in ${city}` },
};

check('tool loop', async () => {
  const runner = chat.runTools({ model, messages: user(c.LOOP), tools: [weather] });
  same(await runner.finalContent(), c.SUNNY);
  const input = user(c.LOOP);
  const own = [{ type: 'function', name: 'weather', parameters, strict: false }];
  const said = await responses.create({ model, input, tools: own });
  const { call_id } = said.output.at(-1);
  input.push(...said.output, { type: 'function_call_output', call_id, output: 'sunny in Rome' });
  same((await responses.create({ model, input, tools: own })).output_text, c.SUNNY);
});

check('streamed tool loop', async () => {
  const runner = chat.runTools({ model, messages: user(c.LOOP), tools: [weather], stream: true });
  same(await runner.finalContent(), c.SUNNY);
  const own = [{ type: 'function', name: 'weather', parameters, strict: false }];
  const stream = responses.stream({ model, input: c.LOOP, tools: own });
  same((await stream.finalResponse()).output.at(-1).arguments, '{"city": "Rome"}');
});

check('structured', async () => {
  const format = zodResponseFormat(City, 'city');
  const said = await chat.parse({ model, messages: user(c.CITY), response_format: format });
  same(said.choices[0].message.parsed, { name: 'Rome' });
  const parsed = await responses.parse({ model, input: c.CITY, text: { format: zodTextFormat(City, 'city') } });
  same(parsed.output_parsed, { name: 'Rome' });
});

cannot('has no agents', 'hand-off');

check('images', async () => {
  await c.recorded();
  const url = `data:image/png;base64,${c.PNG}`;
  await chat.create({ model, messages: user([{ type: 'image_url', image_url: { url } }]) });
  await responses.create({ model, input: user([{ type: 'input_image', image_url: url, detail: 'auto' }]) });
  same((await c.recorded()).split(c.PNG).length, 3);
});

check('session', async () => {
  for (let n = 0; n < 2; n++) await chat.create({ model, messages: user('hi') }, { headers });
  const said = await chat.create({ model, messages: user('[[history]]') }, { headers });
  same(said.choices[0].message.content, '6');
});

check('chain', async () => {
  const first = await responses.create({ model, input: 'one' });
  const second = await responses.create({ model, input: '[[history]]', previous_response_id: first.id });
  same(second.output_text, '3');
});

const ask = (text, named = model, by = client) => by.chat.completions.create({ model: named, messages: user(text) });

check('401', async () => {
  const error = await fails(() => ask('hi', model, client.withOptions({ apiKey: c.WRONG_KEY })));
  same(error instanceof OpenAI.AuthenticationError, true);
});

check('404', async () => {
  const error = await fails(() => ask('hi', c.UNKNOWN));
  same([error instanceof OpenAI.NotFoundError, error.code], [true, 'model_not_found']);
  same(error.message.includes('scripted/scripted'), true);
});

check('429', async () => {
  const error = await fails(() => ask(c.LIMITED));
  same([error instanceof OpenAI.RateLimitError, error.headers.get('retry-after')], [true, '7']);
});

check('too long', async () => {
  const error = await fails(() => ask(c.TOO_LONG));
  same([error instanceof OpenAI.BadRequestError, error.code], [true, 'context_length_exceeded']);
});

check('usage', async () => {
  const { usage } = await ask(c.USED);
  same([usage.prompt_tokens, usage.completion_tokens], [9, 3]);
  let last;
  const stream_options = { include_usage: true };
  for await (const chunk of await chat.create({ model, messages: user(c.USED), stream: true, stream_options }))
    last = chunk;
  same(last.usage, usage);
});

check('cancel', async () => {
  const before = await c.cancelled();
  const stream = await chat.create({ model, messages: user(c.ENDLESS), stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  await c.untilCancelled(before);
});

check('files', async () => {
  const { files } = await chat.create({ model, messages: user(c.SEND) }, { headers });
  same([files.length, files[0].name], [1, 'a.txt']);
  const told = await responses.create({ model, input: c.SEND }, { headers });
  same(told.files[0].name, 'a.txt');
});

check('embeddings', async () => {
  const { data } = await client.embeddings.create({ model: 'scripted/small', input: 'hi', encoding_format: 'float' });
  same(data[0].embedding, [2, 1]);
});

await c.run('openai');
