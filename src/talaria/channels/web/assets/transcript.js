/* The state of the open chat, which the components draw: entries of the log, and below them the running turn. */

import { EMPTY, addPage, addRemarks, applyEvent, asks, beginLive, endLive, hasTurn, pointTo } from "./conversation.js";
import { signal } from "./preact.js";

const LATE_MS = 100; // a tab that is not drawn has no frames
const PIECES = ["delta", "reasoning", "tool.output"];

class Transcript {
  state = signal(EMPTY);
  #waiting = []; // pieces of text that came since the last frame

  clear() {
    this.#waiting = [];
    this.state.value = EMPTY;
  }

  add(page, isOlder = false) {
    this.#flush();
    this.state.value = addPage(this.state.peek(), page, isOlder);
  }

  has(turn) {
    return hasTurn(this.state.peek(), turn);
  }

  /** Shows blocks that the log does not keep below `turn`. */
  remark(turn, ...blocks) {
    this.state.value = addRemarks(this.state.peek(), turn, blocks);
  }

  asks(id) {
    return asks(this.state.peek(), id);
  }

  point(seq) {
    this.state.value = pointTo(this.state.peek(), seq);
  }

  beginLive(turn, item, since) {
    this.#waiting = [];
    this.state.value = beginLive(endLive(this.state.peek()), turn, item, since);
  }

  endLive() {
    this.#waiting = [];
    this.state.value = endLive(this.state.peek());
  }

  /** Draws text at most once per frame, however fast the events come. */
  take(event) {
    this.#waiting.push(event);
    if (!PIECES.includes(event.type)) this.#flush();
    else if (this.#waiting.length === 1) soon(() => this.#flush());
  }

  #flush() {
    const events = this.#waiting;
    this.#waiting = [];
    if (events.length) this.state.value = joined(events).reduce((state, event) => applyEvent(state, event), this.state.peek());
  }
}

/** Joins pieces of the same text, so that each frame applies each text once. */
function joined(events) {
  const merged = [];
  for (const event of events) {
    const last = merged.at(-1);
    if (last && last.type === event.type && last.call_id === event.call_id && PIECES.includes(event.type)) {
      merged[merged.length - 1] = { ...last, text: last.text + event.text };
    } else merged.push(event);
  }
  return merged;
}

function soon(work) {
  const once = () => { clearTimeout(timer); cancelAnimationFrame(frame); work(); };
  const timer = setTimeout(once, LATE_MS);
  const frame = requestAnimationFrame(once);
}

/** A block with an error: what happened, then what to do. */
export function trouble(error) {
  return { kind: "trouble", error: { message: error.message, hint: error.hint, type: error.type } };
}

export function quiet(text) {
  return { kind: "quiet", text };
}

export const transcript = new Transcript();
