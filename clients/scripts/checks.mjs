// Runs the checks of one client and prints a line of JSON for each. See checks.py, which has the same words.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

export const [URL_, TOKEN, MODEL_URL] = process.argv.slice(2);
export const BASE = `${URL_}/v1`;
export const SESSION = { 'X-Talaria-Session': `client-${process.pid}` };
export const WRONG_KEY = 'wrong';
export const UNKNOWN = 'nope/nothing';
export const LOOP = '[[call weather {"city": "Rome"}]]';
export const SUNNY = 'Tool results: sunny in Rome';
export const CITY = '[[reply {"name": "Rome"}]]';
export const WORDS = '[[chunks 3]][[reply one two three]]';
export const SPOKEN = 'one two three';
export const LIMITED = '[[status 429]][[retry-after 7]]';
export const TOO_LONG = '[[status 400]][[code context_length_exceeded]]';
export const USED = '[[usage 9 4 3 2]]';
export const ENDLESS = '[[chunks 500]][[words 500]][[chunk-delay 0.1]]';
export const SEND =
  '[[call write_file {"path": "a.txt", "content": "hi"}]][[call send_file {"path": "a.txt"}]][[reply sent]]';
export const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

const checks = new Map();
const tell = (line) => console.log(JSON.stringify(line));

export const check = (feature, run) => checks.set(feature, run);
export const cannot = (reason, ...features) => features.forEach((feature) => tell({ feature, cannot: reason }));

export async function run(...packages) {
  const require = createRequire(import.meta.url);
  const find = (name) => {
    for (const folder of require.resolve.paths(name)) {
      try {
        return JSON.parse(readFileSync(`${folder}/${name}/package.json`, 'utf8')).version;
      } catch {} // not in this folder
    }
    return '?';
  };
  tell({ versions: Object.fromEntries(packages.map((name) => [name, find(name)])) });
  const only = (process.env.TALARIA_CLIENT_FEATURES ?? '').split(',').filter(Boolean);
  for (const [feature, each] of checks) {
    if (only.length && !only.includes(feature)) continue;
    try {
      await each();
      tell({ feature, ok: true });
    } catch (error) {
      const line = String(error?.stack).match(/scripts\/\w+\.mjs:(\d+)/)?.[1] ?? 0;
      tell({ feature, ok: false, why: `line ${line}: ${error}` });
    }
  }
  process.exit(0);
}

export function same(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

export async function fails(call) {
  let result;
  try {
    result = await call();
  } catch (error) {
    return error;
  }
  throw new Error(`no error, but ${JSON.stringify(result)}`);
}

export async function get(path) {
  const answer = await fetch(URL_ + path, { headers: { Authorization: `Bearer ${TOKEN}` } });
  return answer.json();
}

export const recorded = async () => (await fetch(`${MODEL_URL}/_recorded`, { method: 'DELETE' })).text();
export const cancelled = async () => (await get('/api/status')).turns.cancelled ?? 0;

export async function untilCancelled(before) {
  const deadline = Date.now() + 60_000;
  while ((await cancelled()) <= before) {
    if (Date.now() > deadline) throw new Error('the call goes on without its client');
    await new Promise((done) => setTimeout(done, 20));
  }
}
