// LangChain.js and LangGraph.js, with chat completions and with the responses API.

import { tool } from '@langchain/core/tools';
import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { z } from 'zod';
import * as c from './checks.mjs';
import { check, fails, same } from './checks.mjs';

const chat = (more = {}, apiKey = c.TOKEN, defaultHeaders = {}) =>
  new ChatOpenAI({
    model: 'main',
    apiKey,
    maxRetries: 0,
    configuration: { baseURL: c.BASE, defaultHeaders },
    ...more,
  });
const both = (more = {}) => [false, true].map((useResponsesApi) => chat({ useResponsesApi, ...more }));
const weather = tool(({ city }) => `sunny in ${city}`, {
  name: 'weather',
  description: 'Tell the weather of a city.',
  schema: z.object({ city: z.string() }),
});
const messages = (content) => ({ messages: [{ role: 'user', content }] });

check('plain', async () => {
  for (const model of both()) same((await model.invoke('hi')).text, 'You said: hi');
});

check('streamed', async () => {
  for (const model of both()) {
    let said = '';
    for await (const piece of await model.stream(c.WORDS)) said += piece.text;
    same(said, c.SPOKEN);
  }
});

check('tool loop', async () => {
  for (const llm of both()) {
    const { messages: said } = await createReactAgent({ llm, tools: [weather] }).invoke(messages(c.LOOP));
    same(said.at(-1).text, c.SUNNY);
  }
});

check('streamed tool loop', async () => {
  for (const llm of both()) {
    const agent = createReactAgent({ llm, tools: [weather] });
    let said = '';
    for await (const [piece, { langgraph_node: node }] of await agent.stream(messages(c.LOOP), {
      streamMode: 'messages',
    }))
      if (node === 'agent') said += piece.text;
    same(said, c.SUNNY);
  }
});

check('structured', async () => {
  for (const model of both()) {
    const form = model.withStructuredOutput(z.object({ name: z.string() }), { method: 'jsonSchema' });
    same(await form.invoke(c.CITY), { name: 'Rome' });
  }
});

check('hand-off', async () => {
  const [llm] = both();
  const other = createReactAgent({ llm, tools: [] });
  const ask = tool(async ({ city }) => (await other.invoke(messages(city))).messages.at(-1).text, {
    name: 'other',
    description: 'Ask the other agent.',
    schema: z.object({ city: z.string() }),
  });
  const agent = createReactAgent({ llm, tools: [ask] });
  const { messages: said } = await agent.invoke(messages('[[call other {"city": "hello"}]]'));
  same(said.at(-1).text, 'Tool results: You said: hello');
});

check('images', async () => {
  await c.recorded();
  const content = [{ type: 'image_url', image_url: { url: `data:image/png;base64,${c.PNG}` } }];
  for (const model of both()) await model.invoke([{ role: 'user', content }]);
  same((await c.recorded()).split(c.PNG).length, 3);
});

check('session', async () => {
  const model = chat({}, c.TOKEN, c.SESSION);
  for (let n = 0; n < 2; n++) await model.invoke('hi');
  same((await model.invoke('[[history]]')).text, '6');
});

check('chain', async () => {
  const model = chat({ useResponsesApi: true });
  const previous_response_id = (await model.invoke('one')).response_metadata.id;
  same((await model.invoke('[[history]]', { previous_response_id })).text, '3');
});

check('401', async () => same((await fails(() => chat({}, c.WRONG_KEY).invoke('hi'))).status, 401));

check('404', async () => {
  const error = await fails(() => chat({ model: c.UNKNOWN }).invoke('hi'));
  same([error.status, error.message.includes('scripted/scripted')], [404, true]);
});

check('429', async () => {
  const error = await fails(() => chat().invoke(c.LIMITED));
  same([error.status, error.headers.get('retry-after')], [429, '7']);
});

check('too long', async () => {
  const error = await fails(() => chat().invoke(c.TOO_LONG));
  same(error.message.includes('context'), true);
});

check('usage', async () => {
  for (const model of both()) {
    const { usage_metadata: used } = await model.invoke(c.USED);
    same([used.input_tokens, used.output_tokens], [9, 3]);
  }
});

check('cancel', async () => {
  const before = await c.cancelled();
  const leaving = new AbortController();
  for await (const _ of await chat().stream(c.ENDLESS, { signal: leaving.signal })) break;
  leaving.abort();
  await c.untilCancelled(before);
});

check('embeddings', async () => {
  const model = new OpenAIEmbeddings({
    model: 'scripted/small',
    apiKey: c.TOKEN,
    encodingFormat: 'float',
    configuration: { baseURL: c.BASE },
  });
  same(await model.embedQuery('hi'), [2, 1]);
});

c.cannot('drops members that it does not know', 'files');
await c.run('@langchain/openai', '@langchain/core', '@langchain/langgraph');
