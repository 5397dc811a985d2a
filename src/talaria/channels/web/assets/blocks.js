/* The conversation as components: what was said, answers, thoughts, steps, questions, files and notes. The log and the
   running turn use the same ones. */

import { foldSteps, partsOf } from "./conversation.js";
import { spoken } from "./elements.js";
import { openInspector } from "./details.js";
import { show } from "./markdown.js";
import { html, render, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { Question } from "./questions.js";
import { Steps, ToolCall, foldLive, useSeconds } from "./tools.js";
import { clock, dollars, duration, moment, size, tokens } from "./units.js";

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
    ${foldLive(live.blocks).map((block) => html`<${Block} key=${block.key} block=${block} conversation=${conversation} />`)}
    <${State} note=${live.note} since=${live.since} turn=${live.turn} />`;
}

function State({ note, since, turn }) {
  const passed = useSeconds(since);
  return html`<p class="state" hidden=${!note} data-passed=${passed ? duration(passed) : undefined}>${note}</p>`;
}

const KINDS = { said: SaidBlock, announced: Announced, answer: Answer, words: Words, thoughts: Thoughts, call: ToolCall, steps: StepsBlock, question: QuestionBlock, file: File, quiet: Quiet, trouble: Trouble };

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

function StepsBlock({ block, conversation }) {
  return html`<${Steps} block=${block} conversation=${conversation} Block=${Block} />`;
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

/** The answer of a command, which the log does not keep. */
function Words({ block }) {
  return html`<article class="agent"><h2 class="unseen">Answer</h2><${Markdown} text=${spoken(block.text)} /></article>`;
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
