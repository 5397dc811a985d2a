/* The open chat: catching up with its log, sending, and following its turns one after the other. */

import { make } from "./elements.js";
import { outbox, randomHex, titles } from "./keep.js";
import { call, follow, Refused } from "./net.js";
import { answer, quiet, said, trouble } from "./transcript.js";

const EXPLAINED = 20; // how many unanswered turns of a log are asked after

/** One chat on the page, until `leave`. `ref` is its name, or the id of a session that is not current.
 * `page` has: transcript, draw(room, waiting), announce(text), refresh(), fail(error). */
export class Room {
  session = null;
  provider = "";
  watching = null;
  #gone = new AbortController();
  #syncing = Promise.resolve();
  #seq = 0;
  #words = new Map(); // the last that was said in a turn
  #queue; // messages of ours, and turns found running, that are not over

  constructor(ref, page) {
    this.ref = ref;
    this.name = ref.startsWith("ses_") ? null : ref;
    this.page = page;
    this.#queue = this.name ? outbox.of(ref) : [];
  }

  leave() {
    this.#gone.abort();
  }

  get isBusy() {
    return this.#queue.length > 0;
  }

  /** Shows what is new in the log, says how turns without an answer ended, and follows those that did not. */
  async catchUp() {
    const open = await this.#sync();
    for (const id of open.slice(-EXPLAINED)) {
      if (!this.page.transcript.has(id)) continue; // it was undone
      const turn = await this.#get(`/api/turns/${id}`);
      if (this.#queue.some((item) => item.turn === id)) continue;
      if (turn?.state === "failed") this.page.transcript.remark(id, trouble(turn.error));
      else if (turn?.state === "cancelled") this.page.transcript.remark(id, quiet("Stopped."));
      else if (turn && turn.state !== "done") this.#queue.unshift({ turn: id });
    }
    this.draw();
    this.#attend().catch(this.page.fail);
  }

  /** Whether the list's view of our session, or of the first one of our name, is ahead of what is shown here. */
  isBehind(session) {
    const isOurs = this.session ? session.id === this.session.id : this.name && session.name === this.name;
    return isOurs && Number(session.revision.split(".")[1]) > this.#seq;
  }

  /** What other tabs did to the messages of this chat. */
  share() {
    const kept = this.name ? outbox.of(this.name) : [];
    const isKept = (item) => !item.key || item === this.watching || kept.some(({ key }) => key === item.key);
    this.#queue = this.#queue.filter(isKept);
    for (const item of kept) {
      const ours = this.#queue.find(({ key }) => key === item.key);
      if (ours) ours.turn ??= item.turn;
      else this.#queue.push(item);
    }
    this.draw();
    this.#attend().catch(this.page.fail);
  }

  #get(path) {
    return call("GET", path, { signal: this.#gone.signal }).catch((error) => {
      if (error instanceof Refused && error.status === 404) return null;
      throw error;
    });
  }

  /** One at a time, or an entry would be shown twice. Gives the turns whose answer is not in what came. */
  #sync() {
    this.#syncing = this.#syncing.catch(() => {}).then(() => this.#readOn());
    return this.#syncing;
  }

  async #readOn() {
    const session = await this.#get(`/api/sessions/${this.ref}`);
    const open = new Map();
    if (!session) return [];
    if (this.session && session.id !== this.session.id) { // a command led the chat to another session
      this.page.transcript.clear();
      this.#seq = 0;
    }
    this.session = session;
    let after;
    do {
      after = this.#seq ? `&after=${this.#seq}` : "";
      const page = await this.#get(`/api/sessions/${session.id}/entries?limit=500${after}`);
      this.#gone.signal.throwIfAborted();
      if (!page) return []; // it was pruned between the two
      this.page.transcript.add(page.entries);
      titles.learn(session.id, page.entries);
      for (const { seq, turn_id: turn, body } of page.entries) {
        this.#seq = seq;
        if (body.type === "assistant") {
          this.provider = body.provider;
          this.#words.set(turn, body.text);
        }
        if (["user", "assistant", "tool_results"].includes(body.type)) open.set(turn, !isAnswer(body));
      }
      after = page.next;
    } while (after);
    this.draw();
    return [...open].filter(([turn, isOpen]) => turn && isOpen).map(([turn]) => turn);
  }

  // -- sending

  /** `files`: { id, name, size, url?, ready? }. Taken from here on: kept by the browser until the gateway has it. */
  send(text, files) {
    const item = { key: randomHex(16), chat: this.name, text, files, at: Date.now() };
    outbox.add(item);
    this.#queue.push(item);
    this.draw();
    return item;
  }

  /** The gateway has it: its turn is followed when those before it are over. */
  sent(item) {
    const ours = this.#queue.find((other) => other.key === item.key);
    if (ours) ours.turn = item.turn;
    this.#attend().catch(this.page.fail);
  }

  /** The gateway does not want it. */
  refused(item, error) {
    this.#queue = this.#queue.filter((other) => other.key !== item.key);
    this.page.transcript.remark(null, trouble(error));
    this.draw();
  }

  async stop() {
    if (this.watching) await call("POST", `/api/turns/${this.watching.turn}/cancel`, { signal: this.#gone.signal });
  }

  // -- following

  async #attend() {
    if (this.watching) return;
    try {
      for (let item; (item = this.#queue[0])?.turn; ) {
        this.watching = item;
        this.draw();
        try {
          await this.#watch(item);
        } catch (error) {
          this.page.fail(error); // a login that ended leaves the room
          this.#gone.signal.throwIfAborted();
          this.page.transcript.endLive();
        }
        this.#queue = this.#queue.filter((other) => other !== item);
        if (item.key) outbox.drop(item);
        item.files?.forEach((file) => URL.revokeObjectURL(file.url));
        this.page.refresh();
      }
    } finally {
      this.watching = null;
      if (!this.#gone.signal.aborted) this.draw();
    }
  }

  async #watch(item) {
    const { transcript } = this.page;
    const begin = () => transcript.beginLive(transcript.has(item.turn) ? null : bubble(item));
    let last = null;
    const take = async (event) => {
      if (["done", "failed", "cancelled"].includes(event.type)) last = event;
      else if (event.type === "reset") { // the log has what was finished before; the rest comes again
        await this.#sync();
        begin();
      } else if (event.type !== "queued" || await this.#isWaiting(event, item)) transcript.take(event);
    };
    begin();
    try {
      await follow(item.turn, take, this.#gone.signal);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error; // 404: long over and forgotten
    }
    await this.#sync();
    transcript.endLive();
    if (last) this.#conclude(item, last);
  }

  /** Whether others still come first: it is told once, before ours that were ahead ended. */
  async #isWaiting({ ahead }, { turn }) {
    return ahead > 0 && (await this.#get(`/api/turns/${turn}`))?.state === "accepted";
  }

  /** What is said of the end of a turn beside the log. */
  #conclude(item, event) {
    const { transcript } = this.page;
    const isLogged = transcript.has(item.turn);
    const words = this.#words.get(item.turn);
    const asked = isLogged || !item.key ? [] : [bubble(item)];
    if (event.type === "failed") transcript.remark(item.turn, ...asked, trouble(event.error));
    else if (event.type === "cancelled") transcript.remark(item.turn, ...asked, quiet("Stopped."));
    else if (!isLogged && item.text?.startsWith("/")) transcript.remark(item.turn, ...asked, answer(event.reply));
    else if (words !== undefined && event.reply.startsWith(words)) {
      const note = event.reply.slice(words.length).trim(); // another model, or cut off
      if (note) transcript.remark(item.turn, quiet(note));
    }
    const failure = event.error && `${event.error.message} ${event.error.hint}`;
    this.page.announce(failure || event.reply || "Stopped.");
  }

  /** Everything but the transcript: our messages that wait, and how the chat is. */
  draw() {
    this.page.draw(this, this.#queue.filter((item) => item !== this.watching && item.key).map(bubble));
  }
}

function isAnswer(body) {
  return body.type === "assistant" && !body.tool_calls.length && !body.interrupted;
}

function bubble(item) {
  if (!item.key) return null;
  const parts = item.text ? [{ type: "text", text: item.text }] : [];
  for (const { name, size, url } of item.files) { // as the log will have them
    parts.push({ type: "file", name, size });
    if (url) parts.push({ type: "image", url });
  }
  const node = said(parts);
  if (!item.turn) node.lastChild.append(make("small", { className: "late", textContent: "waits for the gateway" }));
  return node;
}
