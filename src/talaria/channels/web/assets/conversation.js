/* What a chat shows, as data: the entries of its log become blocks, and the events of the running turn change the live
   blocks below them. Pure functions: each returns a new state and changes nothing. */

import { duration, megabytes, parse, wait } from "./texts.js";

/**
 * @typedef {{ kind: string, key: string, seq?: number, turn?: string | null, [more: string]: any }} Block
 *   kind: said, announced, answer, thoughts, call, question, file, quiet, trouble, words (an answer of a command)
 * @typedef {{ outcome: string, text: string, note?: string, isWhole: boolean, at?: number }} Result
 * @typedef {{ turn: string | null, item: any, blocks: Block[], note: string, since: number }} Live
 * @typedef {{ blocks: Block[], results: Record<string, Result>, hidden: [number, number][], turns: Record<string, any>,
 *   live: Live | null, pointed: number | null }} Conversation
 */

/** @type {Conversation} */
export const EMPTY = { blocks: [], results: {}, hidden: [], turns: {}, live: null, pointed: null };
const MOST_OUTPUT = 128 << 10; // characters of a running call; the gateway sends less
const MOST_LINES = 30; // of what a delegate did
const NOTE = /(?:^|\n)\[((?:Exit code|Ended) [^\n]{1,400})\]\s*$/; // how a command ended

// -- the log

/** Adds a page of the log, in order. Each entry must be added once; `isOlder` puts the page before the others. */
export function addPage(state, { entries, files = [], turns = [] }, isOlder = false) {
  const results = { ...state.results };
  const hidden = [...state.hidden];
  for (const { body, at } of entries) {
    if (body.type === "hidden") hidden.push([body.first, body.last]);
    for (const { call_id: id, outcome, text } of body.results ?? []) {
      results[id] = { outcome, text, note: NOTE.exec(text)?.[1], isWhole: true, at };
    }
  }
  const known = { ...state.turns, ...Object.fromEntries(turns.map((turn) => [turn.id, turn])) };
  const fresh = entries.flatMap(blocksOf).map((block) => ({ ...block, sender: known[block.turn]?.sender }));
  const shown = (block) => !hidden.some(([first, last]) => block.seq >= first && block.seq <= last);
  const all = isOlder ? [...fresh, ...state.blocks] : [...state.blocks, ...fresh];
  let blocks = all.filter(shown);
  for (const turn of turns) blocks = withQuestions(blocks, turn);
  for (const turn of turns) {
    if (!turn.command || turn.state !== "done") continue;
    blocks = withCommand(blocks, turn);
    for (const file of turn.files ?? []) blocks = withFile(blocks, { ...file, turn_id: turn.id });
  }
  for (const file of files) blocks = withFile(blocks, file);
  return { ...state, blocks, results, hidden, turns: known };
}

function* piecesOf({ seq, turn_id: turn, at, body }) {
  const place = { seq, turn, at };
  if (body.type === "user") yield { ...place, kind: "said", parts: body.parts, name: body.name };
  if (body.type === "announcement") yield { ...place, kind: "announced", text: body.text };
  if (body.type === "spec" && seq > 1) yield { ...place, kind: "quiet", text: "The model or the tools of this chat were changed." };
  if (body.type !== "assistant") return;
  const thoughts = body.reasoning.map((piece) => piece.text).join("\n\n").trim();
  if (thoughts) yield { ...place, kind: "thoughts", text: thoughts };
  const isLast = !body.tool_calls.length;
  if (body.text) yield { ...place, kind: "answer", text: body.text, isLast, model: `${body.provider}/${body.model}` };
  for (const call of body.tool_calls) {
    const [name, given] = inner(call.name, call.arguments);
    yield { ...place, kind: "call", id: call.id, name, given };
  }
}

function blocksOf(entry) {
  return [...piecesOf(entry)].map((block, index) => ({ ...block, key: `${entry.seq}.${index}` }));
}

/** Puts the decided questions of a turn behind their calls, or at its end. */
function withQuestions(blocks, turn) {
  for (const asked of turn.questions ?? []) {
    const key = `question ${asked.id}`;
    if (!asked.decision || blocks.some((block) => block.key === key)) continue;
    const at = asked.call_id ? blocks.findIndex((block) => block.kind === "call" && block.id === asked.call_id) : lastOf(blocks, turn.id);
    if (at < 0) continue;
    const { seq, turn: id } = blocks[at];
    blocks = blocks.toSpliced(at + 1, 0, { kind: "question", key, seq, turn: id, question: asked, decided: { ...asked.decision, at: asked.decision.decided_at } });
  }
  return blocks;
}

const NEVER_SHOWN = ["(sent)", "steer"]; // messages of others, and messages that the log has in another turn

/** Puts a command and its answer, which are no entries, where they were sent. */
function withCommand(blocks, { id: turn, command, said, reply, accepted_at: at }) {
  if (NEVER_SHOWN.includes(command) || lastOf(blocks, turn) >= 0) return blocks;
  const before = blocks.findLastIndex((block) => block.at !== undefined && block.at <= at);
  const { seq } = blocks[before] ?? {};
  const made = commandBlocks([{ type: "text", text: said }], said, reply).map((block) => ({ ...block, key: `${block.kind} ${turn}`, turn, seq, at }));
  return blocks.toSpliced(before + 1, 0, ...made);
}

/** A command and its answer. For a copy, which a button begins, a note is enough. */
export function commandBlocks(parts, said, reply) {
  if (said.startsWith("/branch @")) return [{ kind: "quiet", text: "This is a copy. The first conversation is in the list of chats." }];
  return [{ kind: "said", parts }, ...(reply ? [{ kind: "words", text: reply }] : [])];
}

/** A file belongs to the last entry of its turn; that of a hidden turn is left out. */
function withFile(blocks, file) {
  const key = `file ${file.id}`;
  const at = lastOf(blocks, file.turn_id);
  if (at < 0 || blocks.some((block) => block.key === key)) return blocks;
  const { seq, turn } = blocks[at];
  return blocks.toSpliced(at + 1, 0, { kind: "file", key, seq, turn, file });
}

function lastOf(blocks, turn) {
  return blocks.findLastIndex((block) => block.turn === turn);
}

export function hasTurn(state, turn) {
  return lastOf(state.blocks, turn) >= 0;
}

/** Shows blocks that the log does not keep, such as errors and answers of commands, below `turn`. */
export function addRemarks(state, turn, remarks) {
  const at = turn ? lastOf(state.blocks, turn) : -1;
  const made = remarks.map((block) => ({ ...block, turn, key: `remark ${unique()}` }));
  const blocks = at < 0 ? [...state.blocks, ...made] : state.blocks.toSpliced(at + 1, 0, ...made);
  return { ...state, blocks };
}

let count = 0;
function unique() {
  count += 1;
  return count;
}

/** The block that shows an entry. An entry without one, such as the result of a tool, is shown by the block before it,
 * and a hidden one too. */
export function pointTo(state, seq) {
  const blocks = state.blocks.filter((block) => block.seq !== undefined);
  const found = blocks.find((block) => block.seq === seq) ?? blocks.findLast((block) => block.seq < seq) ?? blocks[0];
  return { ...state, pointed: found?.key ?? null };
}

/** The parts of a message that is not in the log yet, as they will be there. */
export function partsOf(item) {
  const parts = item.text ? [{ type: "text", text: item.text }] : [];
  for (const { name, size: bytes, url } of item.files ?? []) {
    parts.push({ type: "file", name, size: bytes });
    if (url) parts.push({ type: "image", url });
  }
  return parts;
}

// -- the running turn

/** `item` is our message if the log does not have it yet; `since` is when the turn began, in ms of this browser. */
export function beginLive(state, turn, item, since = Date.now()) {
  return { ...state, live: { turn, item, blocks: [], note: "Working", since } };
}

export function endLive(state) {
  return { ...state, live: null };
}

/** Applies an event of the running turn. Unknown events are ignored. */
export function applyEvent(state, event, now = Date.now()) {
  const live = state.live;
  if (!live) return state;
  const told = (note, more = {}) => ({ ...state, live: { ...live, ...more, note } });
  const put = (block, note = live.note) => told(note, { blocks: [...live.blocks, { key: `live ${unique()}`, turn: live.turn, ...block }] });
  switch (event.type) {
    case "delta": return grow(state, "answer", event.text, "");
    case "reasoning": return grow(state, "thoughts", event.text, "Thinking");
    case "tool.started": return start(state, event, now);
    case "tool.output": return output(state, event);
    case "delegate": return delegated(state, event, now);
    case "tool.finished": return finish(state, event, now);
    case "approval": return ask(state, event, now, put);
    case "approval.decided": return decide(state, event, now);
    case "queued": return told(event.waits_for ?? `Waiting for earlier messages: ${event.ahead}`);
    case "model.loading": return told(loading(event));
    case "retry": return told(`${event.model}: ${event.reason} Trying again in ${Math.ceil(event.seconds)} s`);
    case "compacted": return put({ kind: "quiet", text: `Compacted from ${event.before} to ${event.after} tokens` });
    case "fallback": return put({ kind: "quiet", text: `${event.model} instead of ${event.instead_of}: ${event.reason}` });
    default: return state;
  }
}

function grow(state, kind, text, note) {
  const { live } = state;
  const last = live.blocks.at(-1);
  const blocks = last?.kind === kind
    ? [...live.blocks.slice(0, -1), { ...last, text: last.text + text }]
    : [...live.blocks, { kind, key: `live ${unique()}`, turn: live.turn, text }];
  return { ...state, live: { ...live, blocks, note } };
}

function start(state, { call_id: id, name: given, arguments: passed }, now) {
  const { live } = state;
  const [name, text] = inner(given, passed);
  const note = `Using ${given}`;
  const results = { ...state.results };
  if (!results[id]?.isWhole) delete results[id];
  if (state.blocks.some((block) => block.kind === "call" && block.id === id)) { // the log has this step and the text before it
    const running = { ...state.live, blocks: [], note, running: { ...live.running, [id]: { began: now, output: "" } } };
    return { ...state, results, live: running };
  }
  const known = live.blocks.findIndex((block) => block.kind === "call" && block.id === id);
  const call = { kind: "call", key: `call ${id}`, turn: live.turn, id, name, given: text, began: now, output: "" };
  const blocks = known < 0 ? [...live.blocks, call] : live.blocks.with(known, { ...call, key: live.blocks[known].key });
  return { ...state, results, live: { ...live, blocks, note } };
}

function output(state, { call_id: id, text }) {
  const { live } = state;
  if (state.results[id]) return state;
  if (live.running?.[id]) {
    const run = live.running[id];
    const running = { ...live.running, [id]: { ...run, output: (run.output + text).slice(-MOST_OUTPUT) } };
    return { ...state, live: { ...live, running } };
  }
  const blocks = live.blocks.map((block) => (block.id === id && block.kind === "call" ? { ...block, output: (block.output + text).slice(-MOST_OUTPUT) } : block));
  return { ...state, live: { ...live, blocks } };
}

/** What a delegate of a call does replaces what was known of it; its last lines are kept. */
function delegated(state, event, now) {
  const { live } = state;
  const { call_id: id, delegate_id: key } = event;
  const add = (call) => {
    const { lines = [] } = call.delegates?.[key] ?? {};
    const isNew = event.line && event.line !== lines.at(-1);
    const row = { ...event, began: now - 1000 * event.seconds, lines: isNew ? [...lines, event.line].slice(-MOST_LINES) : lines };
    return { ...call, delegates: { ...call.delegates, [key]: row } };
  };
  if (live.running?.[id]) return { ...state, live: { ...live, running: { ...live.running, [id]: add(live.running[id]) } } };
  return { ...state, live: { ...live, blocks: live.blocks.map((block) => (block.id === id && block.kind === "call" ? add(block) : block)) } };
}

/** Events are streamed again after a reload. The log has the whole result, an event only its beginning. */
function finish(state, { call_id: id, outcome, preview, note }, now) {
  const live = { ...state.live, note: "Working", blocks: state.live.blocks.map((block) => (block.kind === "call" && block.id === id ? { ...block, ended: now } : block)) };
  if (state.results[id]?.isWhole) return { ...state, live };
  const result = { outcome, text: preview, note: note || undefined, isWhole: false };
  return { ...state, live, results: { ...state.results, [id]: result } };
}

function ask(state, event, now, put) {
  const key = `question ${event.question_id}`;
  const note = "Waiting for a decision";
  if (state.live.blocks.some((block) => block.key === key)) return { ...state, live: { ...state.live, note } };
  const question = { ...event, id: event.question_id, asked_at: now / 1000 };
  return put({ kind: "question", key, question }, note);
}

function decide(state, { question_id: id, decision: text, span, by }, now) {
  const blocks = state.live.blocks.map((block) => (block.key === `question ${id}` ? { ...block, decided: { text, span, by, at: now / 1000 } } : block));
  return { ...state, live: { ...state.live, blocks, note: "Working" } };
}

/** Whether the running turn shows the question. */
export function asks(state, id) {
  return state.live?.blocks.some((block) => block.key === `question ${id}`) ?? false;
}

function loading({ stage, seconds, done, total }) {
  if (stage === "reading") return "Thinking";
  if (stage === "loading") return "The model is being loaded";
  const left = seconds === null ? "" : `, ${wait(seconds)}`;
  return `Saved. The answer comes when the model is ready${left} (${stage} ${megabytes(done)}/${megabytes(total)} MB)`;
}

// -- steps

/** Whether a call has failed, by its outcome or by the exit code of its command. */
export function isFailure(result) {
  if (!result) return false;
  return result.outcome !== "ok" || Boolean(result.note && !result.note.startsWith("Exit code 0."));
}

/** Folds consecutive calls and thoughts of a turn: two calls or more become one block of the kind "steps". `keep` calls
 * at the end stay as they are. */
export function foldSteps(blocks, keep = 0) {
  const folded = [];
  let run = [];
  const flush = () => {
    const calls = run.filter((block) => block.kind === "call").length;
    if (calls >= 2) folded.push({ kind: "steps", key: `steps ${run[0].key}`, blocks: run, turn: run[0].turn, seq: run[0].seq });
    else folded.push(...run);
    run = [];
  };
  const end = keep ? blocks.findLastIndex((_, index) => blocks.slice(index).filter(({ kind }) => kind === "call").length > keep) + 1 : blocks.length;
  blocks.forEach((block, index) => {
    const isStep = ["call", "thoughts"].includes(block.kind) || (block.kind === "question" && block.decided);
    if (index >= end || !isStep || (run.length && run[0].turn !== block.turn)) flush();
    if (index < end && isStep) run.push(block);
    else folded.push(block);
  });
  flush();
  return folded;
}

/** "4 steps · 6.4 s · 1 failed" */
export function stepsLine(blocks, results) {
  const calls = blocks.filter((block) => block.kind === "call");
  const failed = calls.filter((block) => isFailure(results[block.id])).length;
  const seconds = secondsOf(calls, results);
  return [`${calls.length} steps`, ...(seconds === null ? [] : [duration(seconds)]), ...(failed ? [`${failed} failed`] : [])].join(" · ");
}

/** How long calls took: each group of calls from its entry in the log, or from its start on the page, to its results. */
function secondsOf(calls, results) {
  let total = 0;
  const seen = new Set();
  for (const call of calls) {
    const from = call.at ?? (call.began && call.began / 1000);
    const to = call.at ? results[call.id]?.at : call.ended && call.ended / 1000;
    if (from === undefined || to === undefined) return null;
    if (!seen.has(from)) total += Math.max(0, to - from);
    seen.add(from);
  }
  return total;
}

/** How long one call took, in seconds; null if it is not known. */
export function callSeconds(call, results) {
  return secondsOf([call], results);
}

/** Name and arguments of a call. The log has a call through `tool_call` as the model wrote it; it is shown as the call
 * that it is about. */
export function inner(name, given) {
  const wrapped = name === "tool_call" ? parse(given) : null;
  if (typeof wrapped?.name !== "string") return [name, given];
  const { name: tool, arguments: passed } = wrapped;
  return [tool, typeof passed === "string" ? passed : JSON.stringify(passed ?? {})];
}
