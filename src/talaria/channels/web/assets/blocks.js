/* The conversation as components: what was said, answers, thoughts, steps, questions, files and notes. The log and the
   running turn use the same ones. */

import { call } from "./api.js";
import { callSeconds, foldSteps, isFailure, partsOf, stepsLine } from "./conversation.js";
import { openInspector, spoken } from "./elements.js";
import { show } from "./markdown.js";
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { brief, clock, diffOf, dollars, duration, moment, parse, plain, pretty, shorten, size, tokens } from "./texts.js";

const BRIEF = 96; // characters
const PICTURE = new RegExp(`^(data:image/(png|jpeg|gif|webp);|blob:${location.origin}/)`);

/** `actions`: edit(block) lets a message be changed, branch(seq) continues in a copy that ends before an entry; null in a chat
 * that can only be read. `retry()` repeats the last message; null while it cannot be. While a turn streams, the blocks
 * above it are not compared with what is shown: that would take longer the longer the conversation is. */
export function Log({ conversation, actions, retry }) {
  const { blocks, results, turns, pointed, live } = conversation;
  return useMemo(() => {
    const folded = foldSteps(blocks);
    const last = folded.findLast((block) => ["answer", "trouble"].includes(block.kind));
    return folded.map((block) => html`<${Block} key=${block.key} block=${block} conversation=${conversation} actions=${actions} retry=${block === last ? retry : null} />`);
  }, [blocks, results, turns, pointed, live?.running, live === null, actions, retry]);
}

export function LiveTurn({ conversation }) {
  const { live } = conversation;
  if (!live) return null;
  return html`
    ${live.item && html`<${Said} parts=${partsOf(live.item)} turn=${live.item.turn} />`}
    ${foldSteps(live.blocks, KEPT_LIVE).map((block) => html`<${Block} key=${block.key} block=${block} conversation=${conversation} />`)}
    <${State} note=${live.note} since=${live.since} turn=${live.turn} />`;
}

function State({ note, since, turn }) {
  const passed = useSeconds(since);
  return html`<p class="state" hidden=${!note} data-passed=${passed ? duration(passed) : undefined}>${note}</p>`;
}

const KINDS = { said: SaidBlock, announced: Announced, answer: Answer, words: Words, thoughts: Thoughts, call: ToolCall, steps: Steps, question: QuestionBlock, file: File, quiet: Quiet, trouble: Trouble };

/** A block is drawn anew only if something that it shows has changed: a log may have thousands. */
export function Block({ block, conversation, actions = null, retry = null }) {
  const node = useRef(null);
  const isPointed = conversation.pointed === block.key;
  useLayoutEffect(() => {
    const element = node.current;
    if (!isPointed) return;
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "center" });
  }, [isPointed]);
  const { kind, id, turn } = block;
  const { results, turns, live, pointed } = conversation;
  const ofSteps = kind === "steps" ? [results, live?.running, pointed] : [results[id], live?.running?.[id]];
  return useMemo(() => {
    const Kind = KINDS[kind];
    return html`<div class=${isPointed ? "block pointed" : "block"} data-kind=${kind} ref=${node}><${Kind} block=${block} conversation=${conversation} actions=${actions} retry=${retry} /></div>`;
  }, [block, isPointed, actions, retry, turns[turn], (kind === "call" || kind === "steps") && live === null, ...ofSteps]);
}

function QuestionBlock({ block }) {
  return html`<${Question} question=${block.question} decided=${block.decided} />`;
}

// -- messages

function SaidBlock({ block, actions }) {
  const canEdit = actions && block.seq !== undefined && block.key.startsWith(`${block.seq}.`) && block.parts.some((part) => part.type === "text");
  return html`<${Said} parts=${block.parts} turn=${block.turn} name=${block.name} at=${block.at} edit=${canEdit ? () => actions.edit(block) : null} />`;
}

/** A message of a person. Only pictures that are part of the log are shown. `turn` is its id, once it has one. `name` is
 * given in chats of several people. */
export function Said({ parts, turn, name, at, edit = null, note = null }) {
  return html`<article class="person">
    <h2 class=${name ? "who" : "unseen"} dir="auto">${name || "You"}</h2>
    ${turn && html`<span class="tools">${at && html`<${Time} at=${at} />`}${edit && html`<button type="button" class="plain" onClick=${edit}>Edit</button>`}<button type="button" class="plain about" aria-label="About this message" title="Details" onClick=${() => openInspector(turn)}>⋯</button></span>`}
    <div class="bubble">${parts.map((part) => html`<${Piece} part=${part} />`)}${note}</div>
  </article>`;
}

function Piece({ part }) {
  const note = (text) => html`<p class="file">${text}</p>`;
  if (part.type === "text") return html`<p dir="auto">${part.text}</p>`;
  if (part.rest && !part.beginning) return note(`All of this message (${size(part.size)}) is in ${part.path}`);
  if (part.type === "file") return note(`${part.name} (${size(part.size)})`);
  if (!PICTURE.test(part.url)) return note(part.url.slice(0, BRIEF));
  return html`<img src=${part.url} alt="Attached picture" />`;
}

export function Time({ at }) {
  const when = new Date(at * 1000);
  return html`<time datetime=${when.toISOString()} title=${moment(when)}>${clock(when)}</time>`;
}

function Answer({ block, conversation, actions, retry }) {
  const isOver = block.seq !== undefined && block.isLast;
  return html`<article class="agent">
    <h2 class="unseen">Answer</h2>
    <${Markdown} text=${block.text} />
    ${isOver && html`<${Sum} block=${block} turn=${conversation.turns[block.turn]} actions=${actions} retry=${retry} />`}
  </article>`;
}

/** Below an answer: how long it took, its tokens and its cost, and what can be done with it. */
function Sum({ block, turn, actions, retry }) {
  const parts = [];
  if (turn?.ended_at) parts.push(duration(turn.ended_at - (turn.started_at ?? turn.accepted_at)));
  if (turn?.usage) parts.push(`${tokens(turn.usage.input + turn.usage.output)} tokens`);
  if (turn?.cost_usd && Number(turn.cost_usd) > 0) parts.push(dollars(turn.cost_usd));
  return html`<footer class="sum">
    <span class="facts">${parts.join(" · ")}</span>
    <${Copy} text=${block.text} />
    ${retry && html`<button type="button" class="plain" onClick=${retry}>Regenerate</button>`}
    ${actions && block.seq !== undefined && html`<button type="button" class="plain" title="Continue in a copy that ends with this answer" onClick=${() => actions.branch(block.seq + 1)}>Branch</button>`}
    ${block.turn && html`<button type="button" class="plain" onClick=${() => openInspector(block.turn)}>Details</button>`}
    <${Time} at=${block.at} />
  </footer>`;
}

export function Copy({ text, label = "Copy" }) {
  const [said, say] = useState(label);
  const copy = async () => {
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    say(isCopied ? "Copied" : "Cannot copy");
    setTimeout(() => say(label), 2_000);
  };
  return html`<button type="button" class="plain" onClick=${copy}>${said}</button>`;
}

/** A message that was sent to the chat outside of its turns, such as the result of a job. */
function Announced({ block }) {
  return html`<article class="agent announced"><h2 class="label">Sent to this chat <${Time} at=${block.at} /></h2><${Markdown} text=${block.text} /></article>`;
}

/** The answer of a command, which the log does not keep. Commands with their meanings are a list. */
function Words({ block }) {
  const text = spoken(block.text).replace(/^(\/[^:\n]+): /gm, "- `$1` ");
  return html`<article class="agent"><h2 class="unseen">Answer</h2><${Markdown} text=${text} /></article>`;
}

/** Model text. It is drawn by `show`, which keeps the elements of unchanged blocks. */
function Markdown({ text, kind = "words" }) {
  const node = useRef(null);
  useLayoutEffect(() => { show(node.current, text); }, [text]);
  return html`<div class=${kind} dir="auto" ref=${node}></div>`;
}

function Thoughts({ block }) {
  const [isOpen, setOpen] = useState(false);
  const toggle = (event) => { event.preventDefault(); setOpen(!isOpen); };
  return html`<details class="tool" open=${isOpen}><summary onClick=${toggle}>Thoughts</summary><p class="thoughts" dir="auto">${block.text}</p></details>`;
}

function File({ block }) {
  const node = useRef(null);
  useLayoutEffect(() => { import("./files.js").then(({ card }) => node.current?.replaceChildren(card(block.file))); }, [block.file.id]);
  return html`<div ref=${node}></div>`;
}

export function Quiet({ block }) {
  return html`<p class="quiet">${block.text}</p>`;
}

/** An error: what happened, then what to do. */
function Trouble({ block, retry }) {
  return html`<${Problem} error=${block.error} turn=${block.turn} retry=${retry} />`;
}

export function Problem({ error, turn = null, retry = null }) {
  return html`<div class="error" role="alert">
    <strong>${spoken(error.message)}</strong>
    ${error.hint && html`<${Markdown} text=${spoken(error.hint)} kind="hint" />`}
    ${(turn || retry) && html`<div class="row">
      ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
      ${turn && html`<button type="button" class="plain" onClick=${() => openInspector(turn)}>Details</button>`}
    </div>`}
  </div>`;
}


/** Shows an error in a place of the page, or nothing. */
export function showProblem(place, error) {
  render(error && html`<${Problem} error=${error} />`, place);
}

// -- tool calls: a card for each, with its output while it runs and its result afterwards

const OUTCOMES = { ok: "done", error: "failed", unknown: "outcome unknown", cancelled: "stopped" };
const KEPT_LIVE = 2; // calls of a running turn that are not folded

const opened = new Map(); // whether a person has opened or closed a card, by its turn and call: another chat may have calls of the same ids

/** `conversation` has the results and the running calls. */
export function ToolCall({ block, conversation }) {
  const { id, name, given } = block;
  const result = conversation.results[id];
  const run = conversation.live?.running?.[id] ?? (block.began ? block : null);
  const isRunning = !result && run !== null && conversation.live !== null;
  const output = isRunning ? run.output : "";
  const [, redraw] = useState(0);
  const card = `${block.turn} ${id}`;
  const isOpen = opened.get(card) ?? (Boolean(output) || conversation.pointed === block.key);
  const toggle = (event) => { event.preventDefault(); opened.set(card, !isOpen); redraw((n) => n + 1); };
  const outcome = result ? (isFailure(result) && result.outcome === "ok" ? "error" : result.outcome) : undefined;
  const shown = result ? result.text : output;
  return html`<details class="tool call" open=${isOpen} data-outcome=${outcome} data-seq=${block.seq}>
    <summary onClick=${toggle}><b>${plain(name)}</b> <code class="brief">${shorten(given)}</code> <${Outcome} result=${result} began=${isRunning ? run.began : 0} seconds=${callSeconds(block, conversation.results)} /></summary>
    ${isOpen && html`<${Given} given=${given} />`}
    ${isOpen && (result || output) && html`<${Output} text=${plain(shown)} label=${result ? "Result" : "Output"} />`}
  </details>
  <${Delegates} rows=${run?.delegates ?? block.delegates} isLive=${conversation.live !== null} />`;
}

let Lines = null; // loaded with the first delegate

function Delegates({ rows, isLive }) {
  const [, redraw] = useState(0);
  useEffect(() => { if (rows && !Lines) import("./delegates.js").then((module) => { Lines = module.Delegates; redraw(1); }); }, [!rows]);
  return rows && Lines && html`<${Lines} rows=${rows} isLive=${isLive} />`;
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
function Steps({ block, conversation }) {
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

// -- questions: a card with all that is asked, and the buttons that decide

const TITLES = {
  approval: "May this run?",
  host: "May commands reach this host?",
  answer: "An answer is needed",
};
const SPANS = { once: "Approved, once.", session: "Approved for this session.", always: "Approved for always." };
export const decisions = new EventTarget(); // "decided" when a decision was made on this page

/** A card for a question. Every character of the text is shown; none of it is taken for markup. `decided` is
 * { text, span, by, at }, once it is. */
export function Question({ question, decided }) {
  const [trouble, setTrouble] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isAnswer = question.kind === "answer";
  const title = TITLES[question.kind] ?? TITLES.approval;
  if (decided && !isAnswer) {
    return html`<details class="tool question" data-decided=""><summary><span class="brief">${title}</span> <${Decided} question=${question} decided=${decided} /></summary><pre>${question.text}</pre></details>`;
  }
  const decide = async (body) => {
    setBusy(true);
    setTrouble("");
    try {
      await call("POST", `/api/approvals/${encodeURIComponent(question.id)}`, { body: JSON.stringify(body) });
      decisions.dispatchEvent(new CustomEvent("decided", { detail: { question, body } }));
    } catch (error) {
      if (error.status === 401) throw error;
      setTrouble([error.message, error.hint].filter(Boolean).join(" "));
      setBusy(false);
    }
  };
  return html`<section class="question" aria-label=${title} data-decided=${decided ? "" : undefined}>
    <strong>${title}</strong>
    ${(question.name ?? question.tool)?.startsWith("browser_") && !decided && html`<${PageShown} id=${question.id} />`}
    ${isAnswer ? html`<p class="asked" dir="auto">${question.text}</p>` : html`<pre class="asked" tabindex="0" aria-label="What is asked">${question.text}</pre>`}
    ${decided ? html`<${Decided} question=${question} decided=${decided} />` : html`<${Choices} question=${question} decide=${decide} isBusy=${isBusy} />`}
    <p class="refusal" role="status" hidden=${!trouble}>${trouble}</p>
  </section>`;
}

/** The page that a call of a browser tool is about. Nothing is shown if there is no picture any more. */
function PageShown({ id }) {
  const [data, setData] = useState("");
  useEffect(() => { call("GET", `/api/approvals/${encodeURIComponent(id)}/picture`).then((picture) => setData(picture.data), () => {}); }, [id]);
  return data && html`<img class="page-shown" src=${`data:image/png;base64,${data}`} alt="The page as it is now" />`;
}

/** What was decided, by whom and when. */
function Decided({ question, decided }) {
  const { text, span, at } = decided;
  const by = personOf(decided.by);
  const words = text === "approve" ? SPANS[span] ?? SPANS.once : "Denied.";
  const when = at ? new Date(at * 1000).toLocaleTimeString([], { timeStyle: "short" }) : "";
  return html`<span class="decided" role="status">${question.kind === "answer" ? `Answered: ${text}` : words}
    ${(by || when) && html` <small>${[by, when].filter(Boolean).join(" · ")}</small>`}</span>`;
}

/** The gateway's owner, who is logged in here, has the sender of the API. */
export function personOf(sender) {
  return sender?.toLowerCase() === "api" ? "you" : sender;
}

/** Deny and Once come before what lasts longer; only one button is filled. */
function Choices({ question, decide, isBusy }) {
  const button = (label, body, kind = "") => html`<button type="button" class=${kind} disabled=${isBusy} onClick=${() => decide(body)}>${label}</button>`;
  if (question.kind === "answer") {
    const choices = question.choices ?? [];
    return html`<div class="choices">${choices.map((choice) => button(choice, { answer: choice }))}
      ${choices.length === 0 && html`<${Field} decide=${decide} isBusy=${isBusy} />`}</div>`;
  }
  return html`<div class="choices">
    ${button("Deny", { decision: "deny" })}
    ${button("Approve once", { decision: "approve", for: "once" }, "primary")}
    ${button("Approve for the session", { decision: "approve", for: "session" }, "plain")}
    ${question.kind === "host" && button("Approve always", { decision: "approve", for: "always" }, "plain")}
  </div>`;
}

function Field({ decide, isBusy }) {
  const [text, setText] = useState("");
  const submit = (event) => { event.preventDefault(); if (text.trim()) decide({ answer: text.trim() }); };
  return html`<form class="row" onSubmit=${submit}>
    <input aria-label="Your answer" placeholder="Your answer" autocomplete="off" dir="auto" value=${text} onInput=${(event) => setText(event.target.value)} />
    <button class="primary" disabled=${isBusy || !text.trim()}>Answer</button>
  </form>`;
}
