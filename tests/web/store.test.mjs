/* What the page knows about all chats: changes of the feed, marks and sections. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { NOTHING, applyChange, markOf, needsCount, sectionsOf, withInbox, withRecent, withSession, withSessions, withoutSession } = await import(`${process.env.ASSETS}/store.js`);

const DAY = 86_400;
const now = new Date(2026, 10, 18, 12).getTime();
const session = (id, ago = 0) => ({ id, name: id, chat_key: `agent:main:http:api:${id}`, updated_at: now / 1000 - ago, ended_at: null });
const turn = (id, state, of, more = {}) => ({ id, state, session_id: of, channel: "http", chat_key: "agent:main:http:api:x", accepted_at: 1, text: "hi", ...more });
const question = (id, of, turn_id) => ({ id, session_id: of, turn_id, kind: "approval" });
const start = withSessions(NOTHING, [], [session("a"), session("b", 2 * DAY)], false);
const tell = (store, name, data) => applyChange(store, name, data)[0];

test("a running turn marks its session and its end has the session read", () => {
  const running = tell(start, "running", turn("t", "running", "a"));
  assert.equal(markOf(running, session("a"), false), "running");
  const [over, reads] = applyChange(running, "failed", turn("t", "failed", "a"));
  assert.deepEqual(reads.sessions, ["a"]);
  assert.equal(markOf(over, session("a"), true), "failed");
  assert.equal(markOf(over, session("a"), false), "", "a failure that was seen is no news");
});

test("what changes while the list is read is not overwritten by the older answer", () => {
  const answer = start.sessions.concat(session("deleted"));
  const known = { ...start, sessions: answer };
  let meanwhile = withSession(known, "b", { title: "New title" });
  meanwhile = withSession(withoutSession(meanwhile, "deleted"), "c", session("c", 5));
  const { sessions } = withSessions(meanwhile, answer, answer, false);
  assert.deepEqual(sessions.map(({ id, title }) => [id, title]), [["a", undefined], ["c", undefined], ["b", "New title"]]);
});

test("a turn of an unknown session has it read", () => {
  assert.deepEqual(applyChange(start, "running", turn("t", "running", "new"))[1].sessions, ["new"]);
});

test("a question marks its chat until it is decided or its turn is over", () => {
  const [, reads] = applyChange(start, "question.asked", { id: "q", at: 1 });
  assert.ok(reads.inbox);
  const asking = withInbox(start, {}, { questions: [question("q", "b", "t")], turns: [turn("t", "waiting", "b")], replies: [], jobs: [] });
  assert.equal(markOf(asking, session("b"), false), "needs");
  assert.equal(needsCount(asking), 1);
  assert.equal(needsCount(tell(asking, "question.decided", { id: "q", at: 2 })), 0);
  assert.equal(needsCount(tell(asking, "cancelled", turn("t", "cancelled", "b"))), 0);
});

test("sections are by need and by day", () => {
  let store = withSessions(NOTHING, [], [session("a"), session("b", DAY), session("c", 3 * DAY), session("d", 30 * DAY), session("e", 40 * DAY)], false);
  store = tell(store, "running", turn("t", "running", "e"));
  const sections = sectionsOf(store, new Set(), now).map(({ name, sessions }) => [name, sessions.map(({ id }) => id).join()]);
  assert.deepEqual(sections, [["Running", "e"], ["Today", "a"], ["Yesterday", "b"], ["Last 7 days", "c"], ["Older", "d"]]);
});

test("sessions that go, get a title or are used again change the list", () => {
  assert.deepEqual(tell(start, "session.deleted", { id: "a", at: 1 }).sessions.map(({ id }) => id), ["b"]);
  assert.equal(tell(start, "session.titled", { id: "a", title: "Trip", at: 1 }).sessions[0].title, "Trip");
  assert.deepEqual(withSession(start, "b", { updated_at: now }).sessions.map(({ id }) => id), ["b", "a"]);
  assert.equal(tell(start, "session.titled", { id: "unknown", title: "x", at: 1 }), start);
});

test("after a gap the lists are read again, and unknown events are ignored", () => {
  for (const name of ["reset", "lagged", "ready"]) assert.ok(applyChange(start, name, {})[1].lists);
  const [same, reads] = applyChange(start, "of.a.later.version", { id: "x", at: 1 });
  assert.equal(same, start);
  assert.deepEqual(reads, { sessions: [], inbox: false, lists: false });
});

test("the last turn of a session is the latest one that is known", () => {
  const recent = withRecent(start, [turn("2", "done", "a", { accepted_at: 9 }), turn("1", "done", "a", { accepted_at: 3 })]);
  assert.equal(recent.last.a.id, "2");
});

test("a list that was read before a turn ended does not open it again", () => {
  const ended = tell(tell(start, "failed", turn("t", "failed", "a")), "question.decided", { id: "q", at: 2 });
  const late = withInbox(ended, ended.turns, { questions: [question("q", "a", "u"), question("r", "a", "t")], turns: [turn("t", "running", "a")], replies: [], jobs: [] });
  assert.equal(markOf(late, session("a"), true), "failed");
  assert.deepEqual(late.questions, []);
});

test("a turn that begins while the inbox is read stays running", () => {
  const meanwhile = tell(start, "running", turn("t", "running", "a"));
  const known = withInbox(meanwhile, start.turns, { questions: [], turns: [turn("u", "running", "b")], replies: [], jobs: [] });
  assert.deepEqual(["a", "b"].map((id) => markOf(known, session(id), false)), ["running", "running"]);
  const gone = withInbox(known, known.turns, { questions: [], turns: [], replies: [], jobs: [] });
  assert.equal(markOf(gone, session("a"), false), "", "what was known before the reading and is not in it is over");
});

test("an answer that is late does not bring a deleted session back", () => {
  const deleted = tell(start, "session.deleted", { id: "a", at: 1 });
  assert.equal(withSession(deleted, "a", session("a")).sessions.length, 1);
  assert.equal(deleted.last.a, undefined);
});

test("calls without a session are not read, listed or kept", () => {
  const chat_key = "agent:main:http:ephemeral:x";
  const [running, reads] = applyChange(start, "running", turn("t", "running", "of-call", { chat_key }));
  assert.deepEqual(reads.sessions, []);
  const [over, after] = applyChange(running, "done", turn("t", "done", "of-call", { chat_key }));
  assert.deepEqual([after.sessions, over.last, over.turns], [[], {}, {}]);
});

test("an attempt to deliver a reply has the inbox read", () => {
  for (const name of ["reply.sent", "reply.failed", "reply.delayed"]) assert.ok(applyChange(start, name, { id: "1", turn_id: "t", at: 1 })[1].inbox);
});
