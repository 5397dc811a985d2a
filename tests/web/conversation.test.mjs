/* The conversation as data: entries and events become blocks. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { EMPTY, addPage, addRemarks, applyEvent, asks, beginLive, endLive, foldSteps, pointTo, stepsLine } = await import(`${process.env.ASSETS}/conversation.js`);

let seq = 0;
const entry = (turn, body, at = 0) => ({ seq: (seq += 1), turn_id: turn, at, body });
const user = (turn, text, at) => entry(turn, { type: "user", parts: [{ type: "text", text }] }, at);
const says = (turn, text, calls = [], at = 0) => entry(turn, { type: "assistant", text, reasoning: [], tool_calls: calls, provider: "p", model: "m" }, at);
const call = (id, name = "write_file", given = "{}") => ({ id, name, arguments: given });
const results = (turn, list, at = 0) => entry(turn, { type: "tool_results", results: list }, at);
const kinds = (blocks) => blocks.map(({ kind }) => kind);
const live = (events, state = beginLive(EMPTY, "t", null)) => events.reduce((before, event) => applyEvent(before, event, 1000), state);

test("entries become blocks and results belong to their calls", () => {
  const state = addPage(EMPTY, { entries: [user("t", "hi"), says("t", "", [call("c")]), results("t", [{ call_id: "c", outcome: "ok", text: "all of it" }]), says("t", "done")] });
  assert.deepEqual(kinds(state.blocks), ["said", "call", "answer"]);
  assert.equal(state.results.c.text, "all of it");
  assert.equal(state.blocks.at(-1).isLast, true);
  assert.deepEqual(EMPTY.blocks, [], "nothing is changed in place");
});

test("an older page is put before, and what a later entry hides stays hidden", () => {
  const old = [user("a", "old"), says("a", "old answer")];
  const hide = entry("b", { type: "hidden", first: old[0].seq, last: old[0].seq });
  const state = addPage(addPage(EMPTY, { entries: [hide, user("b", "new")] }), { entries: old }, true);
  assert.deepEqual(state.blocks.map(({ kind, turn }) => [kind, turn]), [["answer", "a"], ["said", "b"]]);
});

test("a result in the log is not replaced by its preview, and a call through tool_call is shown as its tool", () => {
  const wrapped = call("1", "tool_call", JSON.stringify({ name: "mcp_git_log", arguments: { path: "src" } }));
  let state = addPage(EMPTY, { entries: [says("t", "", [wrapped])] });
  assert.deepEqual([state.blocks[0].name, state.blocks[0].given], ["mcp_git_log", '{"path":"src"}']);
  const finished = { type: "tool.finished", call_id: "1", outcome: "ok", preview: "all" };
  state = applyEvent(beginLive(state, "t", null), finished);
  assert.equal(state.results["1"].text, "all");
  state = addPage(state, { entries: [results("t", [{ call_id: "1", outcome: "ok", text: "all of it" }])] });
  assert.equal(applyEvent(state, finished).results["1"].text, "all of it");
});

test("deltas of one text are one block and unknown events are ignored", () => {
  const state = live([{ type: "reasoning", text: "so " }, { type: "reasoning", text: "so " }, { type: "of.a.later.version" }, { type: "delta", text: "a" }, { type: "delta", text: "b" }]);
  assert.deepEqual(state.live.blocks.map(({ kind, text }) => [kind, text]), [["thoughts", "so so "], ["answer", "ab"]]);
  assert.equal(state.live.note, "");
  assert.equal(endLive(state).live, null);
});

test("output of a running call is bounded, ends with the call and begins anew after a reconnect", () => {
  const started = { type: "tool.started", call_id: "c", name: "terminal", arguments: "{}" };
  const output = (text) => ({ type: "tool.output", call_id: "c", text });
  let state = live([started, output("one\n"), { type: "tool.output", call_id: "unknown", text: "never" }]);
  assert.equal(state.live.blocks[0].output, "one\n");
  state = live([started, output("x".repeat(200_000))], state);
  assert.equal(state.live.blocks.length, 1);
  assert.equal(state.live.blocks[0].output.length, 131_072);
  state = live([{ type: "tool.finished", call_id: "c", outcome: "ok", preview: "end", note: "Exit code 1." }, output("late")], state);
  assert.equal(state.live.blocks[0].output.length, 131_072);
  assert.equal(state.results.c.note, "Exit code 1.");
});

test("a call that the log has already replaces what the events have shown of its step", () => {
  const state = addPage(EMPTY, { entries: [says("t", "words", [call("c")])] });
  const told = live([{ type: "delta", text: "words" }, { type: "tool.started", call_id: "c", name: "write_file", arguments: "{}" }], beginLive(state, "t", null));
  assert.deepEqual(told.live.blocks, []);
  assert.ok(told.live.running.c);
});

test("a question is asked once and its decision stays with its person", () => {
  const asked = { type: "approval", question_id: "q", kind: "approval", text: "May it?", call_id: "c" };
  let state = live([asked, asked]);
  assert.equal(state.live.blocks.length, 1);
  assert.ok(asks(state, "q"));
  assert.equal(state.live.note, "Waiting for a decision");
  state = live([{ type: "approval.decided", question_id: "q", decision: "approve", span: "once", by: "ann" }], state);
  assert.deepEqual(state.live.blocks[0].decided, { text: "approve", span: "once", by: "ann", at: 1 });
});

test("decisions and files of the log stand behind their calls and turns", () => {
  const decision = { text: "deny", by: "ann", decided_at: 5, span: "once" };
  const turns = [{ id: "t", questions: [{ id: "q", call_id: "c", kind: "approval", text: "May it?", decision }, { id: "open", call_id: "c", decision: null }] }];
  const page = { entries: [user("t", "hi"), says("t", "", [call("c")]), says("t", "done")], turns, files: [{ id: "f", turn_id: "t" }, { id: "g", turn_id: "gone" }] };
  const state = addPage(EMPTY, page);
  assert.deepEqual(kinds(state.blocks), ["said", "call", "question", "answer", "file"]);
  assert.equal(state.blocks[2].decided.by, "ann");
  assert.deepEqual(kinds(addPage(state, { ...page, entries: [] }).blocks), kinds(state.blocks), "each once");
});

test("two calls or more fold into one line with their time and failures", () => {
  const page = { entries: [says("t", "", [call("1"), call("2")], 10), results("t", [{ call_id: "1", outcome: "ok", text: "x" }, { call_id: "2", outcome: "ok", text: "\n[Exit code 3.]" }], 16.4), says("t", "done")] };
  const state = addPage(EMPTY, page);
  const [steps, answer] = foldSteps(state.blocks);
  assert.deepEqual([steps.kind, answer.kind], ["steps", "answer"]);
  assert.equal(stepsLine(steps.blocks, state.results), "2 steps · 6.4 s · 1 failed");
  assert.deepEqual(kinds(foldSteps(state.blocks.slice(1))), ["call", "answer"], "one call stays as it is");
});

test("the last calls of a running turn are not folded", () => {
  const blocks = [1, 2, 3, 4].map((n) => ({ kind: "call", key: `${n}`, id: `${n}`, turn: "t" }));
  assert.deepEqual(kinds(foldSteps(blocks, 2)), ["steps", "call", "call"]);
  assert.deepEqual(kinds(foldSteps(blocks.slice(0, 3), 2)), ["call", "call", "call"]);
});

test("remarks follow their turn, and an entry without a block is shown by the one before", () => {
  let state = addPage(EMPTY, { entries: [user("a", "one"), user("b", "two")] });
  state = addRemarks(state, "a", [{ kind: "quiet", text: "Stopped." }]);
  assert.deepEqual(state.blocks.map(({ kind, turn }) => [kind, turn]), [["said", "a"], ["quiet", "a"], ["said", "b"]]);
  assert.equal(pointTo(state, 10_000).pointed, state.blocks[2].key);
});

test("a command and its answer stand where they were sent, once", () => {
  const page = { entries: [user("a", "one", 1), user("b", "two", 9)], turns: [{ id: "c", command: "help", state: "done", said: "/help", reply: "Words.", accepted_at: 5 }, { id: "d", command: "(sent)", state: "done", said: "", reply: "x", accepted_at: 5 }] };
  const state = addPage(EMPTY, page);
  assert.deepEqual(state.blocks.map(({ kind, turn }) => [kind, turn]), [["said", "a"], ["said", "c"], ["words", "c"], ["said", "b"]]);
  assert.equal(addPage(state, { ...page, entries: [] }).blocks.length, 4);
});
