/* Tool calls in the conversation: a card for each, with its output while it runs and its result afterwards. */

import { callSeconds, foldSteps, isFailure, parse, stepsLine } from "./conversation.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { brief, diffOf, plain, pretty, shorten } from "./texts.js";
import { duration } from "./units.js";

const OUTCOMES = { ok: "done", error: "failed", unknown: "outcome unknown", cancelled: "stopped" };
const KEPT_LIVE = 2; // calls of a running turn that are not folded

const opened = new Map(); // whether a person has opened or closed a card, by the id of its call

/** `conversation` has the results and the running calls. */
export function ToolCall({ block, conversation }) {
  const { id, name, given } = block;
  const result = conversation.results[id];
  const run = conversation.live?.running?.[id] ?? (block.began ? block : null);
  const isRunning = !result && run !== null && conversation.live !== null;
  const output = isRunning ? run.output : "";
  const [, redraw] = useState(0);
  const isOpen = opened.get(id) ?? (Boolean(output) || conversation.pointed === block.key);
  const toggle = (event) => { event.preventDefault(); opened.set(id, !isOpen); redraw((n) => n + 1); };
  const outcome = result ? (isFailure(result) && result.outcome === "ok" ? "error" : result.outcome) : undefined;
  const shown = result ? result.text : output;
  return html`<details class="tool call" open=${isOpen} data-outcome=${outcome} data-seq=${block.seq}>
    <summary onClick=${toggle}><b>${plain(name)}</b> <code class="brief">${shorten(given)}</code> <${Outcome} result=${result} began=${isRunning ? run.began : 0} seconds=${callSeconds(block, conversation.results)} /></summary>
    ${isOpen && html`<${Given} given=${given} />`}
    ${isOpen && (result || output) && html`<${Output} text=${plain(shown)} label=${result ? "Result" : "Output"} />`}
  </details>`;
}

function Outcome({ result, began, seconds }) {
  const passed = useSeconds(began);
  if (!result) return html`<span class="outcome" data-passed=${began && passed ? `${passed} s` : undefined}>running</span>`;
  const words = result.outcome === "ok" && result.note ? brief(result.note) : OUTCOMES[result.outcome] ?? result.outcome;
  return html`<span class="took">${seconds !== null && seconds >= 0.095 ? duration(seconds) : ""}</span> <span class="outcome">${words}</span>`;
}

/** The whole seconds since a time in ms, counted while it is not 0. */
export function useSeconds(since) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!since) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [since]);
  return since ? Math.max(0, Math.round((now - since) / 1000)) : 0;
}

/** The output stays at its end, unless the reader has scrolled up. */
function Output({ text, label }) {
  const node = useRef(null);
  const isAtEnd = useRef(label === "Output");
  const onScroll = () => { const { scrollTop, scrollHeight, clientHeight } = node.current; isAtEnd.current = scrollHeight - scrollTop - clientHeight < 24; };
  useLayoutEffect(() => { if (label === "Output" && isAtEnd.current) node.current.scrollTop = node.current.scrollHeight; });
  return html`<pre class="result" tabindex="0" aria-label=${label} ref=${node} onScroll=${onScroll}>${text}</pre>`;
}

function Given({ given }) {
  const lines = diffOf(parse(given));
  if (!lines) return html`<pre class="given" tabindex="0" aria-label="Arguments">${pretty(given)}</pre>`;
  const { path } = parse(given);
  return html`<pre class="given diff" tabindex="0" aria-label="Change">${path && html`<span class="same">${plain(String(path))}${"\n"}</span>`}${lines.map(([mark, line]) => html`<span class=${mark === "+" ? "added" : mark === "-" ? "removed" : "same"}>${mark} ${plain(line)}${"\n"}</span>`)}</pre>`;
}

/** Consecutive steps in one line that opens. */
export function Steps({ block, conversation, Block }) {
  const isPointed = block.blocks.some(({ key }) => key === conversation.pointed);
  const [isOpen, setOpen] = useState(false);
  const toggle = (event) => { event.preventDefault(); setOpen(!(isOpen || isPointed)); };
  const isShown = isOpen || isPointed;
  const failed = block.blocks.some((each) => each.kind === "call" && isFailure(conversation.results[each.id]));
  return html`<details class="tool steps" open=${isShown} data-outcome=${failed ? "error" : "ok"}>
    <summary onClick=${toggle}>${stepsLine(block.blocks, conversation.results)}</summary>
    ${isShown && html`<div class="folded">${block.blocks.map((each) => html`<${Block} key=${each.key} block=${each} conversation=${conversation} />`)}</div>`}
  </details>`;
}

export const foldLive = (blocks) => foldSteps(blocks, KEPT_LIVE);
