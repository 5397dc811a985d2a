/* Reading the lists while changes arrive: the newest state stays, whatever the order of the answers. */

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.localStorage = { getItem: () => null, setItem() {}, removeItem() {} };
const { hear, now, readSoon, store } = await import(`${process.env.ASSETS}/reading.js`);

const chat_key = "agent:main:http:api:a";
const session = (seq) => ({ id: "ses_a", name: "a", title: "A", chat_key, created_at: 1, updated_at: seq, revision: `0.${seq}`, ended_at: null });
const EMPTY = { questions: [], turns: [], replies: [], jobs: [], items: [], next: null, entries: [] };

/** Answers requests in order: each waits until `answer(body)` is called. */
function gateway() {
  const waiting = [];
  globalThis.fetch = (path) => new Promise((resolve) => waiting.push({ path, answer: (body, status = 200) => resolve(new Response(JSON.stringify(body), { status })) }));
  const next = async () => {
    while (!waiting.length) await new Promise((resolve) => setTimeout(resolve, 1));
    return waiting.shift();
  };
  return { next, waiting };
}

const fail = (error) => { throw error; };

test("a session is read once at a time, and again after what was told meanwhile", async () => {
  const { next, waiting } = gateway();
  hear("session.written", { id: "ses_a", chat_key, at: 1 }, 1000, fail);
  const first = await next();
  hear("session.written", { id: "ses_a", chat_key, at: 2 }, 2000, fail);
  const done = readSoon({ sessions: ["ses_a"] });
  await new Promise((resolve) => setTimeout(resolve, 60)); // longer than changes are gathered
  assert.equal(waiting.length, 0, "an older answer could come after a newer one");
  first.answer(session(1));
  (await next()).answer(session(5));
  await done;
  assert.equal(store.value.sessions[0].revision, "0.5");
});

test("a title that is told while the session is read stays", async () => {
  const { next } = gateway();
  const done = readSoon({ sessions: ["ses_a"] });
  const first = await next();
  hear("session.titled", { id: "ses_a", title: "Lisbon", at: 3 }, 3000, fail);
  first.answer(session(5));
  (await next()).answer({ ...session(5), title: "Lisbon" });
  await done;
  assert.equal(store.value.sessions[0].title, "Lisbon");
});

test("a session that is gone leaves the list, and a failure stops no later reading", async () => {
  const { next } = gateway();
  const done = readSoon({ sessions: ["ses_a"], inbox: true });
  const answers = { inbox: [{ error: { type: "forbidden", message: "No." } }, 403], ses_a: [{ error: {} }, 404] };
  for (let left = 2; left; left -= 1) {
    const { path, answer } = await next();
    answer(...answers[path.includes("inbox") ? "inbox" : "ses_a"]);
  }
  await assert.rejects(done, { message: "No." });
  assert.deepEqual(store.value.sessions, []);
  const again = readSoon({ inbox: true });
  (await next()).answer(EMPTY);
  await again;
});

test("changes that are told late do not move the clock", () => {
  gateway();
  const ahead = Date.now() + 60_000;
  hear("of.a.later.version", {}, ahead, fail);
  hear("of.a.later.version", {}, ahead - 3_600_000, fail);
  assert.ok(Math.abs(now() - ahead) < 1000);
});
