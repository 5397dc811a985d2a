/* The open chat: reading its log, sending messages, and following its turns one after the other. `transcript` is what the
   components draw of it: entries of the log, and below them the running turn. */

import { ApiError, call, follow } from "./api.js";
import { EMPTY, addPage, addRemarks, applyEvent, asks, beginLive, commandBlocks, endLive, hasTurn, partsOf, pointTo } from "./conversation.js";
import { signal } from "./preact.js";
import { outbox, randomHex, seen, titles } from "./storage.js";

const PAGE = 100; // entries that are read when a chat is opened
const LARGE_PAGE = 500;
const END = Number.MAX_SAFE_INTEGER; // before which every entry is
const FINAL = ["done", "failed", "cancelled"];

/** The chat on the page, until `leave`. `ref` is its name, or the id of a session that is not current.
 * `page` has: transcript, draw(chat, waiting), ended(chat), notice(), announce(text), began(turn), fail(error). */
export class Chat {
  session = null;
  #answered = ""; // the model of the last answer, unless the session was given another since
  effort = ""; // the reasoning effort that this session was given; empty if none is known
  watching = null;
  #left = new AbortController();
  #syncing = Promise.resolve();
  #seq = 0;
  #ended = new Set(); // turns whose end this page has shown
  #reading = 0; // how many readings of the log are under way
  #isTold = false; // whether the list of chats has changed meanwhile
  #hasMissed = false; // turns of others, while a message of ours was on its way
  older = null; // the number before which there are entries that were not read
  #words = new Map(); // the last text of the model, by turn
  #queue; // our messages and running turns from the log, in order, until their turns have ended

  constructor(ref, page) {
    this.ref = ref;
    this.name = ref.startsWith("ses_") ? null : ref;
    this.page = page;
    this.#queue = this.name ? outbox.of(ref) : [];
  }

  leave() {
    this.#left.abort();
  }

  /** The model that answers here; null before the first message, when that is the gateway's default. */
  get model() {
    return this.#answered || this.session?.model || null;
  }

  get isBusy() {
    return this.#queue.length > 0;
  }

  /** Shows new entries of the log, explains turns without an answer, and follows turns that still run. */
  async catchUp() {
    this.#hasMissed = false;
    this.#reading += 1;
    const open = await this.#sync().finally(() => { this.#reading -= 1; });
    for (const turn of open) {
      if (!this.page.transcript.has(turn.id)) continue; // it was hidden by /undo
      if (this.#queue.some((item) => item.turn === turn.id)) continue;
      if (turn.state === "failed") this.page.transcript.remark(turn.id, trouble(turn.error));
      else if (turn.state === "cancelled") this.page.transcript.remark(turn.id, quiet("Stopped."));
      else if (turn.state !== "done") this.#queue.unshift({ turn: turn.id });
    }
    this.draw();
    this.#followQueue().catch(this.page.fail);
    if (this.#isTold) this.page.notice();
  }

  /** The list of chats has changed. It shows that this chat has entries that were not told as a turn, such as the result of
   * a job; those of the log that is being read are not read twice. */
  notice(sessions) {
    this.#isTold = this.#reading > 0;
    if (!this.#isTold && !this.isBusy && sessions.some((session) => this.#isBehind(session))) this.catchUp().catch(this.page.fail);
  }

  /** A turn of this chat has a new state, of which this page may not know. */
  async hear(turn) {
    const isKnown = () => this.#ended.has(turn.id) || this.#queue.some((item) => item.turn === turn.id);
    if (isKnown()) return;
    if (FINAL.includes(turn.state) || this.#queue.some((item) => item.key && !item.turn)) { // or it may be our own
      this.#hasMissed = true;
      if (!this.isBusy) await this.catchUp();
      return;
    }
    if (!this.isBusy) await this.#sync();
    if (isKnown()) return;
    this.#queue.push({ turn: turn.id });
    this.draw();
    this.#followQueue().catch(this.page.fail);
  }

  /** Reads the page of the log before those that are shown; `seq` is an entry that has to be shown. */
  async readOlder(seq = END) {
    do {
      const page = await this.#get(`/api/sessions/${this.session.id}/entries?limit=${LARGE_PAGE}&turns=1&before=${this.older}`);
      this.#left.signal.throwIfAborted();
      this.older = page?.next ? Number(page.next) : null;
      if (!page) return;
      this.page.transcript.add(page, true);
      for (const turn of unanswered(page)) {
        if (turn.state === "failed") this.page.transcript.remark(turn.id, trouble(turn.error));
        else if (turn.state === "cancelled") this.page.transcript.remark(turn.id, quiet("Stopped."));
      }
    } while (this.older && this.older > seq);
    this.draw();
  }

  /** Whether `session`, a row of the list, is this chat's and has entries that are not shown here. */
  #isBehind(session) {
    const isOurs = this.session ? session.id === this.session.id : this.name && session.name === this.name;
    return isOurs && Number(session.revision.split(".")[1]) > this.#seq;
  }

  /** Takes over changes that other tabs made to the stored messages of this chat. */
  readOutbox() {
    const kept = this.name ? outbox.of(this.name) : [];
    const isKept = (item) => !item.key || item === this.watching || kept.some(({ key }) => key === item.key);
    this.#queue = this.#queue.filter(isKept);
    for (const item of kept) {
      const ours = this.#queue.find(({ key }) => key === item.key);
      if (ours) ours.turn ??= item.turn;
      else this.#queue.push(item);
    }
    this.draw();
    this.#followQueue().catch(this.page.fail);
  }

  #get(path) {
    return call("GET", path, { signal: this.#left.signal }).catch((error) => {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    });
  }

  /** Reads new entries of the log. Returns the turns whose answer is not among them. Runs one at a time, so that
   * no entry is shown twice. The turn that is being watched is shown by its events: its entries are read by
   * `#watch` alone, which then removes what the events have shown. */
  #sync(ofWatched = false) {
    this.#syncing = this.#syncing.catch(() => {}).then(() => this.#readLog(ofWatched));
    return this.#syncing;
  }

  async #readLog(ofWatched) {
    const session = await this.#get(`/api/sessions/${this.ref}`);
    if (!session) return [];
    if (this.session && session.id !== this.session.id) { // a command switched the chat to another session
      this.page.transcript.clear();
      this.#seq = 0;
    }
    this.session = session;
    const read = { entries: [], turns: [] };
    let after = this.#seq ? `limit=${LARGE_PAGE}&after=${this.#seq}` : `limit=${PAGE}&before=${END}`;
    do {
      const isFirst = !this.#seq;
      const page = await this.#get(`/api/sessions/${session.id}/entries?turns=1&${after}`);
      this.#left.signal.throwIfAborted();
      if (!page) return []; // the session was pruned meanwhile
      const held = ofWatched ? -1 : page.entries.findIndex((entry) => entry.turn_id === this.watching?.turn);
      const entries = held < 0 ? page.entries : page.entries.slice(0, held);
      if (isFirst) this.older = page.next ? Number(page.next) : null;
      this.page.transcript.add({ ...page, entries });
      if (!this.older) titles.learn(session.id, entries);
      for (const { seq, turn_id: turn, body } of entries) {
        this.#seq = seq;
        if (body.type === "assistant") {
          this.#answered = `${body.provider}/${body.model}`;
          this.#words.set(turn, body.text);
        }
        if (body.type === "spec") this.#answered = "";
        if (body.type === "reasoning") this.effort = body.effort;
      }
      read.entries.push(...entries);
      read.turns.push(...(page.turns ?? []));
      after = held < 0 && !isFirst && page.next && `limit=${LARGE_PAGE}&after=${page.next}`;
    } while (after);
    seen.mark(session.id, this.#seq);
    this.draw();
    return unanswered(read);
  }

  // -- sending

  /** Stores a message until its turn has ended and returns it. `files`: { id, name, size, url?, ready? }. */
  send(text, files) {
    const item = { key: randomHex(16), chat: this.name, text, files, at: Date.now() };
    outbox.add(item);
    this.#queue.push(item);
    this.draw();
    return item;
  }

  /** The gateway has accepted the message; its turn is followed after the turns before it. */
  sent(item) {
    const ours = this.#queue.find((other) => other.key === item.key);
    if (ours) ours.turn = item.turn;
    this.draw();
    this.#followQueue().catch(this.page.fail);
  }

  /** The gateway has refused the message. */
  refused(item, error) {
    this.#queue = this.#queue.filter((other) => other.key !== item.key);
    this.page.transcript.remark(null, trouble(error));
    this.draw();
  }

  /** The person has taken the message back before its turn began. */
  withdrawn(item) {
    this.#queue = this.#queue.filter((other) => other.key !== item.key);
    this.#ended.add(item.turn);
    outbox.drop(item);
    this.draw();
  }

  async stop() {
    if (this.watching) await call("POST", `/api/turns/${this.watching.turn}/cancel`, { signal: this.#left.signal });
  }

  // -- following

  async #followQueue() {
    if (this.watching) return;
    try {
      for (let item; (item = this.#queue[0])?.turn; ) {
        this.watching = item;
        this.draw();
        try {
          await this.#watch(item);
        } catch (error) {
          this.page.fail(error); // if the login has ended, this leaves the chat
          this.#left.signal.throwIfAborted();
          this.page.transcript.endLive();
        }
        this.#ended.add(item.turn);
        this.#queue = this.#queue.filter((other) => other !== item);
        if (item.key) outbox.drop(item);
        item.files?.forEach((file) => URL.revokeObjectURL(file.url));
      }
    } finally {
      this.watching = null;
      if (!this.#left.signal.aborted) this.draw();
      if (this.#hasMissed && !this.isBusy && !this.#left.signal.aborted) this.catchUp().catch(this.page.fail);
    }
  }

  async #watch(item) {
    const { transcript } = this.page;
    const begin = () => transcript.beginLive(item.turn, item.key && !transcript.has(item.turn) ? item : null, this.page.began(item.turn));
    let last = null;
    const take = async (event) => {
      if (["done", "failed", "cancelled"].includes(event.type)) last = event;
      else if (event.type === "reset") { // finished steps are in the log; the rest is streamed again
        await this.#sync(true);
        begin();
      } else if (event.type !== "queued" || await this.#isWaiting(event, item)) transcript.take(event);
    };
    begin();
    try {
      await follow(item.turn, take, this.#left.signal);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error; // 404: the turn was pruned
    }
    await this.#sync(true);
    transcript.endLive();
    if (last) this.#conclude(item, last);
  }

  /** Whether the turn still waits. The event is sent once, so the turns before it may have ended since. */
  async #isWaiting({ ahead }, { turn }) {
    return ahead > 0 && (await this.#get(`/api/turns/${turn}`))?.state === "accepted";
  }

  /** Shows what the log does not have: errors, stops, answers of commands, notes below an answer. */
  #conclude(item, event) {
    const { transcript } = this.page;
    const isLogged = transcript.has(item.turn);
    const words = this.#words.get(item.turn);
    const asked = isLogged || !item.key ? [] : [{ kind: "said", parts: partsOf(item) }];
    if (event.type === "failed") transcript.remark(item.turn, ...asked, trouble(event.error));
    else if (event.type === "cancelled") transcript.remark(item.turn, ...asked, quiet("Stopped."));
    else if (isSteer(item)) { /* the log has it in the turn that has read it */ }
    else if (!isLogged && item.text?.startsWith("/")) transcript.remark(item.turn, ...commandBlocks(partsOf(item), item.text, event.reply), ...(event.files ?? []).map((file) => ({ kind: "file", file })));
    else if (words !== undefined && event.reply.startsWith(words)) {
      const note = event.reply.slice(words.length).trim(); // for example: another model answered
      if (note) transcript.remark(item.turn, quiet(note));
    }
    const failure = event.error && `${event.error.message} ${event.error.hint}`;
    const files = event.files?.map(({ name }) => `File: ${name}`) ?? [];
    this.page.ended(this);
    this.page.announce(failure || [event.reply, ...files].join("\n").trim() || "Stopped.");
  }

  /** Draws everything but the transcript. */
  draw() {
    this.page.draw(this, this.#queue.filter((item) => item !== this.watching && item.key));
  }
}

/** The turns of a page whose answer is not on it. */
function unanswered({ entries, turns = [] }) {
  const open = new Map();
  for (const { turn_id: turn, body } of entries) if (["user", "assistant", "tool_results"].includes(body.type)) open.set(turn, !isAnswer(body));
  return [...new Map(turns.map((turn) => [turn.id, turn])).values()].filter(({ id }) => open.get(id));
}

function isAnswer(body) {
  return body.type === "assistant" && !body.tool_calls.length && !body.interrupted;
}

export function isSteer(item) {
  return /^\/steer\s+\S/i.test(item.text ?? "");
}

// -- what is drawn

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

function quiet(text) {
  return { kind: "quiet", text };
}

export const transcript = new Transcript();
