// The clients that openapi-typescript and @hey-api/openapi-ts make of /openapi.json, checked by tsc and run.

import createClient from 'openapi-fetch';
import { client } from './hey/client.gen';
import * as hey from './hey/sdk.gen';
import type { paths } from './talaria';

declare const process: { argv: string[] };
const [url, token] = process.argv.slice(2) as [string, string];
const baseUrl = url;
const headers = { Authorization: `Bearer ${token}` };

function same(found: unknown, wanted: unknown) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(found)} is not ${wanted}`);
}

async function withFetch() {
  const api = createClient<paths>({ baseUrl, headers });
  const path = { x: 'fetched' };
  const said = await api.POST('/api/sessions/{x}/messages', {
    params: { path, query: { wait: 30 } },
    body: { text: 'hello' },
  });
  const turn = said.data!;
  if (!('reply' in turn)) throw new Error('the turn has not ended');
  same(turn.reply, 'You said: hello');
  same((await api.GET('/api/sessions/{x}/entries', { params: { path } })).data!.entries.length >= 3, true);
  same((await api.GET('/api/turns/{id}', { params: { path: { id: turn.id } } })).data!.state, 'done');
  same((await api.GET('/api/search', { params: { query: { q: 'hello' } } })).data!.items.length > 0, true);
  const body = { text: 'what is new?', every: '1h', confirm: true };
  const job = (await api.POST('/api/jobs', { body })).data!;
  const { items } = (await api.GET('/api/jobs')).data!;
  same(items.some((each) => 'id' in job && each.id === job.id), true);
  same((await api.GET('/api/approvals')).data!.items, []);
  const missing = await api.GET('/api/turns/{id}', { params: { path: { id: 'turn_00000000000000000000000000' } } });
  same(missing.error!.error.type, 'not_found');
}

async function withHey() {
  client.setConfig({ baseUrl, headers });
  const path = { x: 'hey' };
  const said = await hey.postApiSessionsXMessages({ path, query: { wait: 30 }, body: { text: 'hello' } });
  const turn = said.data!;
  if (!('reply' in turn)) throw new Error('the turn has not ended');
  same(turn.reply, 'You said: hello');
  same((await hey.getApiSessionsX({ path })).data!.id.length > 0, true);
  same((await hey.getApiTurnsId({ path: { id: turn.id } })).data!.state, 'done');
  same((await hey.getApiSearch({ query: { q: 'hello' } })).data!.items.length > 0, true);
  same((await hey.getApiJobs()).data!.items.length > 0, true);
  const question = '[[call ask_user {"question": "Which colour?"}]]';
  const waiting = (await hey.postApiSessionsXMessages({ path, body: { text: question } })).data!;
  if (!('turn_id' in waiting)) throw new Error('the turn has ended');
  let asked: { id: string }[] = [];
  while (!asked.length) asked = (await hey.getApiApprovals()).data!.items;
  await hey.postApiApprovalsId({ path: { id: asked[0]!.id }, body: { answer: 'blue' } });
  let state = '';
  while (state !== 'done') state = (await hey.getApiTurnsId({ path: { id: waiting.turn_id } })).data!.state;
}

withFetch()
  .then(withHey)
  .then(() => console.log('good'));
