/* What became of a message: a timeline from its arrival to the delivered reply, its model calls and its tools. */

import { call } from "./api.js";
import { $, copier, spoken } from "./elements.js";
import { html, render, signal, useLayoutEffect, useRef } from "./preact.js";
import { ToolCall } from "./blocks.js";
import { transcript } from "./chat.js";
import { dollars, duration, tokens } from "./texts.js";

const inspected = signal(null); // { id, turn?, error? }
let wanted = 0; // the number of the last reading: an earlier one that answers late is dropped

/** Shows the story of a turn beside the chat. */
export async function open(id) {
  const number = (wanted += 1);
  if (inspected.peek()?.id !== id) inspected.value = { id };
  const show = (more) => { if (number === wanted && inspected.peek()?.id === id) inspected.value = { id, ...more }; };
  try {
    show({ turn: await call("GET", `/api/turns/${encodeURIComponent(id)}`) });
  } catch (error) {
    show({ error });
    if (error.status === 401) throw error;
  }
}

export function renew(id) {
  if (inspected.peek()?.id === id) open(id);
}

export function close() {
  inspected.value = null;
}

function Inspector() {
  const conversation = transcript.state.value; // has the arguments and results of tools of the open chat
  const shown = inspected.value;
  const button = useRef(null);
  const origin = useRef(null);
  useLayoutEffect(() => { // the focus moves together with what is shown
    if (!shown) return undefined;
    origin.current ??= document.activeElement;
    button.current?.focus();
    return () => { if (!inspected.peek()) { origin.current?.focus?.(); origin.current = null; } };
  }, [shown?.id]);
  if (!shown) return null;
  const onKeyDown = (event) => { if (event.key === "Escape") close(); };
  return html`<aside id="inspector" aria-labelledby="inspector-title" onKeyDown=${onKeyDown}>
    <header><h2 id="inspector-title">What happened</h2><button type="button" class="icon" aria-label="Close" ref=${button} onClick=${close}>×</button></header>
    ${shown.error && html`<p class="error">${shown.error.message} ${shown.error.hint}</p>`}
    ${shown.turn ? html`<${Story} turn=${shown.turn} conversation=${conversation} />` : !shown.error && html`<p class="quiet">Reading …</p>`}
    <${Identity} id=${shown.id} />
  </aside>`;
}

function Identity({ id }) {
  const code = useRef(null);
  const place = useRef(null);
  useLayoutEffect(() => { place.current.replaceChildren(copier(code.current)); }, [id]);
  return html`<p class="identity">Message <code ref=${code}>${id}</code> <span ref=${place}></span><br />
    <small>${spoken("`talaria why").slice(1)} ${id}${" on the gateway's machine tells the same."}</small></p>`;
}

function Story({ turn, conversation }) {
  const timed = turn.story.filter((line) => line.at !== null);
  const end = Math.max(...timed.map((line) => line.at), turn.accepted_at);
  const whole = Math.max(0.001, end - turn.accepted_at);
  const usage = turn.usage;
  return html`
    <dl class="facts">
      <div><dt>State</dt><dd><span class="mark" data-state=${turn.state}>${STATES[turn.state] ?? turn.state}</span></dd></div>
      <div><dt>Time</dt><dd>${duration(whole)}</dd></div>
      ${usage && html`<div><dt>Tokens</dt><dd>${tokens(usage.input)} in, ${tokens(usage.output)} out</dd></div>`}
      ${usage && html`<div><dt>Cost</dt><dd>${usage.cost_usd === null ? "unknown" : dollars(usage.cost_usd)}</dd></div>`}
    </dl>
    ${turn.error && html`<p class="error">${spoken(turn.error.message)} ${spoken(turn.error.hint)}</p>`}
    <${Bars} turn=${turn} whole=${whole} />
    ${turn.model_calls.length > 0 && html`<h3>Model calls</h3><${Calls} calls=${turn.model_calls} />`}
    <${Tools} turn=${turn} conversation=${conversation} />
    <h3>Events</h3>
    <ol class="story">${turn.story.map((line) => html`<${Line} line=${line} begin=${turn.accepted_at} />`)}</ol>`;
}

/** The calls of tools with what they were given and returned; for a turn of another chat a link to it. */
function Tools({ turn, conversation }) {
  if (!turn.steps.some(({ kind }) => kind === "tool")) return null;
  const calls = conversation.blocks.filter((block) => block.kind === "call" && block.turn === turn.id);
  return html`<h3>Tools</h3>
    ${calls.map((block) => html`<${ToolCall} key=${block.key} block=${block} conversation=${conversation} />`)}
    ${!calls.length && html`<p><a href=${`#chat=${turn.session_id}`}>Open the chat</a> to see what they were given and returned.</p>`}`;
}

const STATES = { accepted: "waits", running: "running", waiting: "waiting", done: "done", failed: "failed", cancelled: "stopped" };

function Line({ line, begin }) {
  const after = line.at === null ? "" : line.at - begin < 0.0005 ? "0 s" : `+${duration(line.at - begin)}`;
  return html`<li data-kind=${line.kind}><span class="after">${after}</span><span>${spoken(line.text)}</span></li>`;
}

/** The parts of a turn's time: waiting for its start, the model, tools, and waiting for a person. */
function spans(turn) {
  const found = [];
  const begun = turn.story.find((line) => line.kind === "begun")?.at ?? turn.accepted_at;
  if (begun > turn.accepted_at) found.push({ kind: "queued", name: "Queue", from: turn.accepted_at, to: begun });
  let last = begun;
  const steps = turn.steps.map((step) => ({ ...step, model: turn.model_calls.find((each) => each.n === step.n) }));
  for (const step of steps) {
    if (step.kind === "model" && step.model) {
      found.push({ kind: "model", name: step.name, from: last, to: step.model.at });
      last = step.model.at;
    } else if (step.started_at && step.ended_at) {
      found.push({ kind: step.outcome === "ok" ? "tool" : "failed", name: step.name, from: step.started_at, to: step.ended_at });
      last = Math.max(last, step.ended_at);
    }
  }
  const handed = turn.story.filter((line) => line.kind === "delegated");
  const back = turn.story.filter((line) => line.kind === "delegate" && line.at);
  if (handed.length && back.length) found.push({ kind: "tool", name: "Delegates", from: handed[0].at, to: back.at(-1).at });
  const asked = turn.story.filter((line) => line.kind === "asked");
  const decided = turn.story.filter((line) => line.kind === "decided");
  asked.forEach((line, index) => {
    const to = decided[index]?.at ?? null;
    if (line.at && to) found.push({ kind: "asked", name: "Waiting for a person", from: line.at, to });
  });
  return found.sort((one, other) => one.from - other.from);
}

function Bars({ turn, whole }) {
  const rows = spans(turn);
  if (!rows.length) return null;
  const place = (at) => 100 * Math.min(1, Math.max(0, (at - turn.accepted_at) / whole));
  return html`<ul class="bars" aria-label="Timeline">${rows.map((row) => {
    const [from, to] = [place(row.from), place(row.to)];
    return html`<li><span class="name">${row.name}</span>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class=${row.kind} x=${from} y="0" width=${Math.max(0.8, to - from)} height="8" rx="1" /></svg>
      <span class="after">${duration(Math.max(0, row.to - row.from))}</span></li>`;
  })}</ul>`;
}

function Calls({ calls }) {
  return html`<div class="wide"><table><thead><tr><th>Model</th><th>In</th><th>Cached</th><th>Out</th><th>Cost</th></tr></thead>
    <tbody>${calls.map((each) => html`<tr><td>${each.model}${each.calls > 1 ? ` (${each.calls} calls)` : ""}</td>
      <td>${tokens(each.usage.input)}</td><td>${share(each.usage)}</td><td>${tokens(each.usage.output)}</td>
      <td>${each.cost_usd === null ? "–" : dollars(each.cost_usd)}</td></tr>`)}</tbody></table></div>`;
}

function share({ input, cached }) {
  return input ? `${Math.round((100 * cached) / input)} %` : "–";
}

render(html`<${Inspector} />`, $("inspector-place"));
