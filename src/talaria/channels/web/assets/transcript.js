/* The conversation as it is shown: what the log says, and below it the turn that runs. */

import { make } from "./elements.js";
import { show } from "./markdown.js";

const SHORT = 96;
const PICTURE = /^(data:image\/(png|jpeg|gif|webp);|blob:)/;
const OUTCOMES = { ok: "done", error: "failed", unknown: "outcome unknown", cancelled: "stopped" };

export class Transcript {
  #log;
  #live;
  #tools = new Map(); // by the id of the call
  #text = null; // the piece of the answer that grows
  #thought = null;
  #state = null;

  constructor(log, live) {
    this.#log = log;
    this.#live = live;
  }

  clear() {
    this.#log.replaceChildren();
    this.#tools.clear();
  }

  // -- what the log says

  /** Entries of the session, in order; those that were shown before must not come again. */
  add(entries) {
    for (const { seq, turn_id: turn, body } of entries) {
      if (body.type === "hidden") this.#hide(body.first, body.last);
      for (const { call_id: id, outcome, text } of body.results ?? []) this.#finish(id, outcome, text);
      for (const node of this.#nodes(body, seq)) this.#log.append(Object.assign(node, { seq, turn }));
    }
  }

  *#nodes(body, seq) {
    if (body.type === "user") yield said(body.parts);
    if (body.type === "spec" && seq > 1) yield quiet("The model or the tools of this chat were changed.");
    if (body.type !== "assistant") return;
    const thoughts = body.reasoning.map((piece) => piece.text).join("\n\n").trim();
    if (thoughts) yield thinking(thoughts);
    if (body.text) yield answer(body.text);
    for (const call of body.tool_calls) yield this.#tool(call.id, call.name, call.arguments);
  }

  #hide(first, last) {
    for (const node of [...this.#log.children]) if (node.seq >= first && node.seq <= last) node.remove();
  }

  has(turn) {
    return [...this.#log.children].some((node) => node.turn === turn);
  }

  /** What the log does not keep: a command and what it answered, how a turn failed. Stands below `turn`. */
  remark(turn, ...nodes) {
    const last = turn && [...this.#log.children].findLast((node) => node.turn === turn);
    nodes.forEach((node) => { node.turn = turn; });
    if (last) last.after(...nodes);
    else this.#log.append(...nodes);
  }

  // -- the turn that runs

  /** `bubble` is its message, unless the log has it already. */
  beginLive(bubble) {
    this.endLive();
    this.#state = make("p", { className: "state", textContent: "Working" });
    this.#live.append(...(bubble ? [bubble] : []), this.#state);
  }

  endLive() {
    this.#live.replaceChildren();
    this.#text = this.#thought = this.#state = null;
  }

  take(event) {
    switch (event.type) {
      case "delta": return this.#say(event.text);
      case "reasoning": return this.#think(event.text);
      case "tool.started": return this.#start(event);
      case "tool.finished": return this.#preview(event);
      case "queued": return this.#tell(`Waiting, ${event.ahead} before it`);
      case "model.loading": return this.#tell(loading(event));
      case "retry": return this.#tell(`${event.model}: ${event.reason} Trying again in ${Math.ceil(event.seconds)} s`);
      case "fallback": return this.#put(quiet(`${event.model} instead of ${event.instead_of}: ${event.reason}`));
      default: return undefined; // events that this page does not know
    }
  }

  #put(node) {
    this.#text = this.#thought = null;
    this.#state.before(node);
    return node;
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

  /** Once a frame, however fast the pieces come. */
  #later(node, draw) {
    if (node.isDue) return;
    node.isDue = true;
    requestAnimationFrame(() => { node.isDue = false; draw(node); });
  }

  #start({ call_id: id, name, arguments: given }) {
    this.#tell(`Using ${name}`);
    if (this.#log.contains(this.#tools.get(id) ?? null)) { // the log has this step: so it has what led to it
      for (const node of [...this.#live.children]) if (node !== this.#state) node.remove();
      this.#text = this.#thought = null;
    } else {
      this.#put(this.#tool(id, name, given));
    }
  }

  // -- tools

  #tool(id, name, given) {
    const brief = make("span", { className: "brief", textContent: shorten(given) });
    const outcome = make("span", { className: "outcome", textContent: "running" });
    const line = make("summary", {}, make("b", { textContent: name }), " ", brief, " ", outcome);
    const node = make("details", { className: "tool" }, line, make("pre", { textContent: pretty(given), tabIndex: 0 }));
    this.#tools.set(id, node);
    return node;
  }

  /** Events come again after a reload: what the log has of a result is more than what they tell. */
  #preview({ call_id: id, outcome, preview }) {
    const node = this.#tools.get(id);
    this.#tell("Working");
    if (!(node?.dataset.outcome && this.#log.contains(node))) this.#finish(id, outcome, preview);
  }

  #finish(id, outcome, text) {
    const node = this.#tools.get(id);
    if (!node) return;
    node.dataset.outcome = outcome;
    node.querySelector(".outcome").textContent = OUTCOMES[outcome] ?? outcome;
    node.querySelector(".result")?.remove();
    node.append(make("pre", { className: "result", textContent: text, tabIndex: 0 }));
  }
}

// -- single pieces

function message(who, name, ...children) {
  return make("article", { className: who }, make("h2", { className: "unseen", textContent: name }), ...children);
}

export function answer(text) {
  const words = make("div", { className: "words" });
  show(words, text);
  return message("agent", "Answer", words);
}

/** A person's message, out of its parts. Only pictures that are in the log itself are shown. */
export function said(parts) {
  return message("person", "You", make("div", { className: "bubble" }, ...parts.map(piece)));
}

function piece(part) {
  const note = (textContent) => make("p", { className: "file", textContent });
  if (part.type === "text") return make("p", { textContent: part.text });
  if (part.type === "file") return note(`${part.name} (${size(part.size)})`);
  if (!PICTURE.test(part.url)) return note(part.url.slice(0, SHORT));
  return make("img", { src: part.url, alt: "Attached picture" });
}

function thinking(text) {
  const thoughts = make("p", { className: "thoughts", textContent: text });
  return make("details", { className: "tool" }, make("summary", { textContent: "Thoughts" }), thoughts);
}

export function quiet(text) {
  return make("p", { className: "quiet", textContent: text });
}

/** What happened and why, then what to do. */
export function trouble(error) {
  const node = make("div", { className: "error" }, make("strong", { textContent: error.message }));
  if (error.hint) show(node.appendChild(make("div")), error.hint);
  return node;
}

function loading({ stage, seconds, done, total }) {
  if (stage === "reading") return "Thinking";
  const left = seconds === null ? "" : `, ${wait(seconds)}`;
  if (stage === "loading") return `The model is being loaded${left}`;
  return `Saved. The answer comes when the model is here${left} (${stage} ${megabytes(done)}/${megabytes(total)} MB)`;
}

function wait(seconds) {
  if (seconds < 1.5) return "in a moment";
  return seconds < 120 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`;
}

export function megabytes(bytes) {
  return Math.round(bytes / 1e6);
}

function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function shorten(given) {
  const parsed = parse(given);
  const brief = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const text = parsed ? Object.values(parsed).map(brief).join(", ") : given;
  return text.replace(/\s+/g, " ").slice(0, SHORT);
}

function pretty(given) {
  const parsed = parse(given);
  return parsed ? JSON.stringify(parsed, null, 2) : given;
}

/** Arguments are the model's own text: JSON, if it did well. */
function parse(given) {
  try {
    const parsed = JSON.parse(given);
    return parsed && typeof parsed === "object" ? parsed : null;
  } catch {
    return null;
  }
}
