// @openai/agents, with the responses API (its default) and with chat completions.

import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, handoff, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';
import * as c from './checks.mjs';
import { cannot, check, fails, same } from './checks.mjs';

const runner = new Runner({ tracingDisabled: true });
const models = (name = 'main', apiKey = c.TOKEN, defaultHeaders = {}) => {
  const client = new OpenAI({ baseURL: c.BASE, apiKey, maxRetries: 0, defaultHeaders });
  return [new OpenAIResponsesModel(client, name), new OpenAIChatCompletionsModel(client, name)];
};
const agent = (model, more = {}) => new Agent({ name: 'a', model, ...more });
const ask = async (text, model = models()[0], more = {}) =>
  (await runner.run(agent(model, more), text)).finalOutput;
const weather = tool({
  name: 'weather',
  description: 'Tell the weather of a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});

async function play(text, model, more = {}) {
  const stream = await runner.run(agent(model, more), text, { stream: true });
  let pieces = '';
  for await (const piece of stream.toTextStream()) pieces += piece;
  await stream.completed;
  return [stream.finalOutput, pieces];
}

check('plain', async () => {
  for (const model of models()) same(await ask('hi', model), 'You said: hi');
});

check('streamed', async () => {
  for (const model of models()) same(await play(c.WORDS, model), [c.SPOKEN, c.SPOKEN]);
});

check('tool loop', async () => {
  for (const model of models()) same(await ask(`[[think hm]]${c.LOOP}`, model, { tools: [weather] }), c.SUNNY);
});

check('streamed tool loop', async () => {
  for (const model of models()) same((await play(c.LOOP, model, { tools: [weather] }))[0], c.SUNNY);
});

check('structured', async () => {
  for (const model of models())
    same(await ask(c.CITY, model, { outputType: z.object({ name: z.string() }) }), { name: 'Rome' });
});

check('hand-off', async () => {
  for (const model of models()) {
    const other = new Agent({ name: 'other', model });
    const triage = agent(model, { handoffs: [handoff(other)] });
    same((await runner.run(triage, '[[call transfer_to_other {}]]')).lastAgent.name, 'other');
  }
});

check('images', async () => {
  await c.recorded();
  const content = [{ type: 'input_image', image: `data:image/png;base64,${c.PNG}` }];
  for (const model of models()) await runner.run(agent(model), [{ role: 'user', content }]);
  same((await c.recorded()).split(c.PNG).length, 3);
});

check('session', async () => {
  const [model] = models('main', c.TOKEN, c.SESSION);
  for (let n = 0; n < 2; n++) await ask('hi', model);
  same(await ask('[[history]]', model), '6');
});

check('chain', async () => {
  const previousResponseId = (await runner.run(agent(models()[0]), 'one')).lastResponseId;
  const second = await runner.run(agent(models()[0]), '[[history]]', { previousResponseId });
  same(second.finalOutput, '3');
});

check('401', async () => same((await fails(() => ask('hi', models('main', c.WRONG_KEY)[0]))).status, 401));

check('404', async () => {
  const error = await fails(() => ask('hi', models(c.UNKNOWN)[0]));
  same([error.status, error.message.includes('scripted/scripted')], [404, true]);
});

check('429', async () => {
  const error = await fails(() => ask(c.LIMITED));
  same([error.status, error.headers.get('retry-after')], [429, '7']);
});

check('too long', async () => same((await fails(() => ask(c.TOO_LONG))).code, 'context_length_exceeded'));

check('usage', async () => {
  for (const model of models()) {
    const { usage } = (await runner.run(agent(model), c.USED)).state;
    same([usage.inputTokens, usage.outputTokens], [9, 3]);
  }
});

check('cancel', async () => {
  const before = await c.cancelled();
  const leaving = new AbortController();
  const stream = await runner.run(agent(models()[0]), c.ENDLESS, { stream: true, signal: leaving.signal });
  for await (const _ of stream.toTextStream()) break;
  leaving.abort();
  await c.untilCancelled(before);
});

cannot('drops members that it does not know', 'files');
cannot('has no embeddings', 'embeddings');
await c.run('@openai/agents');
