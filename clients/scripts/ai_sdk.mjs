// The AI SDK with one of its providers, which is named after the addresses: @ai-sdk/openai speaks the
// responses API, @ai-sdk/openai-compatible chat completions.

import * as ai from 'ai';
import { z } from 'zod';
import * as c from './checks.mjs';
import { cannot, check, fails, same } from './checks.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = process.argv[5];
const isResponses = provider === '@ai-sdk/openai';
const { createOpenAI, createOpenAICompatible } = await import(provider);

const connect = (apiKey = c.TOKEN, headers = {}) =>
  isResponses
    ? createOpenAI({ baseURL: c.BASE, apiKey, headers })
    : createOpenAICompatible({
        name: 'talaria',
        baseURL: c.BASE,
        apiKey,
        headers,
        includeUsage: true,
        supportsStructuredOutputs: true,
      });

const model = connect()('main');
const inSession = connect(c.TOKEN, { ...c.SESSION, 'X-Talaria-Session': `ai-${isResponses}` })('main');
const maxRetries = 0;
const tool = (execute) => ai.tool({ inputSchema: z.object({ city: z.string() }), execute });
const weather = tool(async ({ city }) => `sunny in ${city}`);
const stopWhen = ai.stepCountIs(5);
const say = (prompt, more) => ai.generateText({ model, prompt, maxRetries, ...more });

check('plain', async () => same((await say('hi')).text, 'You said: hi'));

check('streamed', async () => same(await ai.streamText({ model, prompt: c.WORDS }).text, c.SPOKEN));

check('tool loop', async () => {
  const first = await say(c.LOOP, { tools: { weather }, stopWhen });
  same(first.text, c.SUNNY);
  const messages = [...first.response.messages, { role: 'user', content: 'and now' }];
  messages.unshift({ role: 'user', content: 'before' });
  same((await ai.generateText({ model, messages, tools: { weather } })).text, 'You said: and now');
  if (!isResponses) return;
  const providerOptions = { openai: { store: false } };
  const thinking = `[[think hm]]${c.LOOP}`;
  same((await say(thinking, { tools: { weather }, stopWhen, providerOptions })).text, c.SUNNY);
});

check('streamed tool loop', async () => {
  const prompt = `[[think hm]]${c.LOOP}`;
  const stream = ai.streamText({ model, prompt, tools: { weather }, stopWhen });
  const kinds = new Set();
  for await (const part of stream.fullStream) kinds.add(part.type);
  same(await stream.text, c.SUNNY);
  same(['reasoning-delta', 'tool-input-delta', 'tool-call'].filter((kind) => !kinds.has(kind)), []);
});

check('structured', async () => {
  const output = ai.Output.object({ schema: z.object({ name: z.string() }) });
  same((await say(c.CITY, { output })).output, { name: 'Rome' });
});

check('hand-off', async () => {
  const other = tool(async ({ city }) => (await say(city)).text);
  const handed = await say('[[call other {"city": "hello"}]]', { tools: { other }, stopWhen });
  same(handed.text, 'Tool results: You said: hello');
});

check('images', async () => {
  await c.recorded();
  const content = [{ type: 'image', image: Buffer.from(c.PNG, 'base64') }];
  await ai.generateText({ model, messages: [{ role: 'user', content }] });
  same((await c.recorded()).includes(c.PNG), true);
});

check('session', async () => {
  for (let n = 0; n < 2; n++) await say('hi', { model: inSession });
  same((await say('[[history]]', { model: inSession })).text, '6');
});

if (isResponses)
  check('chain', async () => {
    const previousResponseId = (await say('one')).response.id;
    const second = await say('[[history]]', { providerOptions: { openai: { previousResponseId } } });
    same(second.text, '3');
  });
else cannot('speaks chat completions', 'chain');

check('401', async () => {
  const error = await fails(() => say('hi', { model: connect(c.WRONG_KEY)('main') }));
  same([error.name, error.statusCode], ['AI_APICallError', 401]);
});

check('404', async () => {
  const error = await fails(() => say('hi', { model: connect()(c.UNKNOWN) }));
  same([error.name, error.statusCode], ['AI_APICallError', 404]);
  same(error.message.includes('scripted/scripted'), true);
});

check('429', async () => {
  const error = await fails(() => say(c.LIMITED));
  same([error.name, error.statusCode, error.responseHeaders['retry-after']], ['AI_APICallError', 429, '7']);
});

check('too long', async () => {
  const error = await fails(() => say(c.TOO_LONG));
  same([error.statusCode, JSON.parse(error.responseBody).error.code], [400, 'context_length_exceeded']);
});

check('usage', async () => {
  const { usage } = await say(c.USED);
  same([usage.inputTokens, usage.outputTokens], [9, 3]);
  const streamed = await ai.streamText({ model, prompt: c.USED }).usage;
  same([streamed.inputTokens, streamed.outputTokens], [9, 3]);
});

check('cancel', async () => {
  const before = await c.cancelled();
  const leaving = new AbortController();
  const stream = ai.streamText({ model, prompt: c.ENDLESS, abortSignal: leaving.signal });
  for await (const _ of stream.textStream) break;
  leaving.abort();
  await c.untilCancelled(before);
});

check('files', async () => {
  const { body } = (await say(c.SEND, { model: inSession })).response;
  same(body.files[0].name, 'a.txt');
});

check('embeddings', async () => {
  const model = connect().embeddingModel('scripted/small');
  same((await ai.embed({ model, value: 'hi', maxRetries })).embedding, [2, 1]);
});

await c.run('ai', provider);
