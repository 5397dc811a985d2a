/* The conversation on the page: the entries of the log, and below them the running turn. */

import { copier, make, spoken } from "./elements.js";
import { card, size } from "./files.js";
import { show } from "./markdown.js";
import { decided, question } from "./questions.js";
import { inner, ToolCard } from "./tools.js";

const BRIEF = 96; // characters
const PICTURE = /^(data:image\/(png|jpeg|gif|webp);|blob:)/;

export class Transcript {
  #log;
  #live;
  #tools = new Map(); // by the id of the call
  #questions = new Map(); // cards by the id of the question
  #files = new Set(); // the ids of the files that are shown
  #text = null; // the part of the answer that is being streamed
  #thought = null;
  #state = null;
  #ticking; // the timer that counts the seconds beside the state

  constructor(log, live) {
    this.#log = log;
    this.#live = live;
  }

  clear() {
    this.#log.replaceChildren();
    this.#tools.clear();
    this.#files.clear();
  }

  // -- the log

  /** Appends entries of the session, in order, and the files that were sent in their turns. Each entry must be
   * passed once. */
  add(entries, files = []) {
    for (const { seq, turn_id: turn, body } of entries) {
      if (body.type === "hidden") this.#hide(body.first, body.last);
      for (const { call_id: id, outcome, text } of body.results ?? []) this.#tools.get(id)?.finish(outcome, text);
      for (const node of this.#nodes(body, seq, turn)) this.#log.append(Object.assign(node, { seq, turn }));
    }
    for (const file of files.filter(({ id }) => !this.#files.has(id))) this.#send(file);
  }

  *#nodes(body, seq, turn) {
    if (body.type === "user") yield said(body.parts, turn);
    if (body.type === "announcement") yield announced(body.text);
    if (body.type === "spec" && seq > 1) yield quiet("The model or the tools of this chat were changed.");
    if (body.type !== "assistant") return;
    const thoughts = body.reasoning.map((piece) => piece.text).join("\n\n").trim();
    if (thoughts) yield thinking(thoughts);
    if (body.text) yield answer(body.text);
    for (const call of body.tool_calls) yield this.#tool(call.id, ...inner(call.name, call.arguments));
  }

  /** A file belongs to the last entry of its turn. */
  #send(file) {
    const last = this.#last(file.turn_id);
    if (!last) return; // it was hidden by /undo
    this.#files.add(file.id);
    last.after(Object.assign(card(file), { turn: last.turn, seq: last.seq }));
  }

  #last(turn) {
    return [...this.#log.children].findLast((node) => node.turn === turn);
  }

  #hide(first, last) {
    for (const node of [...this.#log.children]) if (node.seq >= first && node.seq <= last) node.remove();
  }

  has(turn) {
    return this.#last(turn) !== undefined;
  }

  /** Shows nodes that the log does not keep, such as errors and answers of commands, below `turn`. */
  remark(turn, ...nodes) {
    const last = turn && this.#last(turn);
    nodes.forEach((node) => { node.turn = turn; });
    if (last) last.after(...nodes);
    else this.#log.append(...nodes);
  }

  /** Whether the running turn shows the question. */
  asks(id) {
    return this.#questions.has(id);
  }

  /** Scrolls to an entry and marks it. An entry without a node of its own, such as the result of a tool, is shown
   * by the node before it, and a hidden one too. */
  point(seq) {
    const nodes = [...this.#log.children].filter((node) => node.seq !== undefined);
    const node = nodes.find((each) => each.seq === seq) ?? nodes.findLast((each) => each.seq < seq) ?? nodes[0];
    this.#log.querySelector(".pointed")?.classList.remove("pointed");
    if (!node) return;
    if (node.seq !== seq && "open" in node) node.open = true;
    node.classList.add("pointed");
    node.tabIndex = -1;
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "center" });
  }

  // -- the running turn

  /** `bubble` is the message of the turn, or null if the log has it already. */
  beginLive(bubble) {
    this.endLive();
    this.#state = make("p", { className: "state", textContent: "Working" });
    this.#live.append(...(bubble ? [bubble] : []), this.#state);
    const [state, began] = [this.#state, Date.now()];
    this.#ticking = setInterval(() => { state.dataset.passed = `${Math.round((Date.now() - began) / 1000)} s`; }, 1000);
  }

  endLive() {
    clearInterval(this.#ticking);
    this.#live.replaceChildren();
    this.#questions.clear();
    this.#text = this.#thought = this.#state = null;
  }

  take(event) {
    switch (event.type) {
      case "delta": return this.#say(event.text);
      case "reasoning": return this.#think(event.text);
      case "tool.started": return this.#start(event);
      case "tool.output": return this.#tools.get(event.call_id)?.write(event.text);
      case "tool.finished": return this.#preview(event);
      case "approval": return this.#ask(event);
      case "approval.decided": return this.#decide(event);
      case "queued": return this.#tell(event.waits_for ?? `Waiting for earlier messages: ${event.ahead}`);
      case "model.loading": return this.#tell(loading(event));
      case "retry": return this.#tell(`${event.model}: ${event.reason} Trying again in ${Math.ceil(event.seconds)} s`);
      case "compacted": return this.#put(quiet(`Compacted from ${event.before} to ${event.after} tokens`));
      case "fallback": return this.#put(quiet(`${event.model} instead of ${event.instead_of}: ${event.reason}`));
      default: return undefined; // unknown events are ignored
    }
  }

  #put(node) {
    this.#text = this.#thought = null;
    this.#state.before(node);
    return node;
  }

  #ask(event) {
    const isKnown = this.#questions.has(event.question_id);
    if (!isKnown) this.#questions.set(event.question_id, this.#put(question(event)));
    this.#tell("Waiting for a decision");
  }

  #decide(event) {
    const node = this.#questions.get(event.question_id);
    if (node) decided(node, event);
    this.#tell("Working");
  }

  #tell(text) {
    this.#state.textContent = text;
    this.#state.hidden = !text;
  }

  #say(text) {
    this.#text ??= Object.assign(this.#put(answer("")), { words: "" });
    this.#text.words += text;
    this.#tell("");
    this.#later(this.#text, (node) => show(node.lastChild, node.words));
  }

  #think(text) {
    this.#thought ??= Object.assign(this.#put(thinking("")), { words: "" });
    this.#thought.words += text;
    this.#tell("Thinking");
    this.#later(this.#thought, (node) => { node.lastChild.textContent = node.words; });
  }

  /** Draws at most once per frame, however fast the events come. */
  #later(node, draw) {
    if (node.isDue) return;
    node.isDue = true;
    requestAnimationFrame(() => { node.isDue = false; draw(node); });
  }

  #start({ call_id: id, name, arguments: given }) {
    this.#tell(`Using ${name}`);
    if (this.#log.contains(this.#tools.get(id)?.node ?? null)) { // the log has this step, and so the text before it
      for (const node of [...this.#live.children]) if (node !== this.#state) node.remove();
      this.#text = this.#thought = null;
    } else {
      this.#put(this.#tool(id, name, given));
    }
    this.#tools.get(id).start();
  }

  // -- tools

  #tool(id, name, given) {
    const card = new ToolCard(name, given);
    this.#tools.set(id, card);
    return card.node;
  }

  /** Events are streamed again after a reload. The log has the whole result, an event only its beginning. */
  #preview({ call_id: id, outcome, preview, note }) {
    const card = this.#tools.get(id);
    this.#tell("Working");
    if (card && !(card.isOver && this.#log.contains(card.node))) card.finish(outcome, preview, note || undefined);
  }
}

// -- single nodes

function message(who, name, ...children) {
  return make("article", { className: who }, make("h2", { className: "unseen", textContent: name }), ...children);
}

export function answer(text) {
  const words = make("div", { className: "words" });
  show(words, text);
  return message("agent", "Answer", words);
}

/** A message that was sent to the chat outside of its turns, such as the result of a job. */
function announced(text) {
  const node = answer(text);
  node.classList.add("announced");
  node.firstChild.textContent = "Sent to this chat";
  return node;
}

/** A message of a person. Only pictures that are part of the log are shown. `turn` is its id, once it has one. */
export function said(parts, turn) {
  const bubble = make("div", { className: "bubble" }, ...parts.map(piece));
  return message("person", "You", ...(turn ? [about(turn)] : []), bubble);
}

/** A button that shows and hides the id of a turn. */
function about(turn) {
  const button = make("button", { type: "button", className: "plain about", textContent: "⋯" });
  button.ariaLabel = "About this message";
  button.ariaExpanded = "false";
  button.onclick = () => {
    const isOpen = button.ariaExpanded === "true";
    button.ariaExpanded = String(!isOpen);
    if (isOpen) button.parentNode.lastChild.remove();
    else button.parentNode.append(story(turn));
  };
  return button;
}

function story(turn) {
  const id = make("code", { textContent: turn });
  const why = make("small");
  show(why, spoken(`\`talaria why ${turn}\` on the gateway's machine tells what became of it.`));
  return make("div", { className: "story" }, "Message ", id, " ", copier(id), why);
}

function piece(part) {
  const note = (textContent) => make("p", { className: "file", textContent });
  if (part.type === "text") return make("p", { textContent: part.text });
  if (part.rest && !part.beginning) return note(`All of this message (${size(part.size)}) is in ${part.path}`);
  if (part.type === "file") return note(`${part.name} (${size(part.size)})`);
  if (!PICTURE.test(part.url)) return note(part.url.slice(0, BRIEF));
  return make("img", { src: part.url, alt: "Attached picture" });
}

function thinking(text) {
  const thoughts = make("p", { className: "thoughts", textContent: text });
  return make("details", { className: "tool" }, make("summary", { textContent: "Thoughts" }), thoughts);
}

export function quiet(text) {
  return make("p", { className: "quiet", textContent: text });
}

/** An error: what happened, then what to do. */
export function trouble(error) {
  const node = make("div", { className: "error" }, make("strong", { textContent: spoken(error.message) }));
  if (error.hint) show(node.appendChild(make("div")), spoken(error.hint));
  return node;
}

function loading({ stage, seconds, done, total }) {
  if (stage === "reading") return "Thinking";
  if (stage === "loading") return "The model is being loaded";
  const left = seconds === null ? "" : `, ${wait(seconds)}`;
  return `Saved. The answer comes when the model is ready${left} (${stage} ${megabytes(done)}/${megabytes(total)} MB)`;
}

export function wait(seconds) {
  if (seconds < 1.5) return "in a moment";
  return seconds < 120 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`;
}

export function megabytes(bytes) {
  return Math.round(bytes / 1e6);
}
