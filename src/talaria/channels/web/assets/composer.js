/* The message field: its text, which is stored as a draft, its files, and its keys. */

import { call } from "./api.js";
import { $, make } from "./elements.js";
import { drafts } from "./storage.js";

const UPLOAD_MS = 600_000;
let completion = null; // the module, once a command was begun
const DRAFT_MS = 300; // after the last key; a long text takes a while to be stored
const GROWS = CSS.supports("field-sizing", "content"); // then the field grows without us

/** Calls `send(text, files)` for a message and `fail(error)` for a file that could not be uploaded.
 * A file is { name, size, url, ready, abort, id?, isLost? }. `ready` is the promise of its upload; a message may be
 * sent before. */
export class Composer {
  #chat = null; // the name of the open chat, or null if it can only be read
  commands = []; // of the open chat: { name, arguments, help, origin }
  #attached = new Map(); // files by chat
  #timer = null; // until the draft is stored
  #recalled = null; // the message that was brought back: its text, and its place in the history

  /** `history()` returns the messages that were sent in the open chat, the last one at the end. */
  constructor(send, fail, history) {
    this.send = send;
    this.fail = fail;
    this.history = history;
    $("text").oninput = () => this.#changed();
    $("text").onkeydown = (event) => {
      if (completion?.completeByKey(event)) return;
      if (["ArrowUp", "ArrowDown"].includes(event.key) && !event.shiftKey) this.#recall(event);
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      $("composer").requestSubmit();
    };
    $("composer").onsubmit = (event) => {
      event.preventDefault();
      this.#submit();
    };
    addEventListener("pagehide", () => this.keep());
    document.addEventListener("visibilitychange", () => this.keep());
    this.#takeFiles();
  }

  open(chat) {
    this.keep();
    this.#chat = chat;
    $("composer").hidden = !chat;
    this.#fill(chat ? drafts.of(chat) : "");
  }

  /** Stores the text of the field as the chat's draft now. */
  keep() {
    if (this.#timer === null) return;
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#chat) drafts.set(this.#chat, $("text").value);
  }

  #fill(text) {
    $("text").value = text;
    this.#changed();
    this.keep();
    this.#drawFiles();
  }

  /** Puts an unsent message back into the field, below the text that was written since. */
  giveBack({ chat, text, files }) {
    const isOpen = chat === this.#chat;
    const both = [isOpen ? $("text").value : drafts.of(chat), text].filter(Boolean).join("\n\n");
    this.#attached.set(chat, [...this.#of(chat), ...files.filter((file) => file.id || (file.ready && !file.isLost))]);
    if (isOpen) this.#fill(both);
    else drafts.set(chat, both);
  }

  #of(chat) {
    return this.#attached.get(chat) ?? [];
  }

  #changed() {
    if (!GROWS) {
      $("text").style.height = "auto";
      $("text").style.height = `${$("text").scrollHeight}px`;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.keep(), DRAFT_MS);
    this.#complete();
  }

  /** Offers the commands that fit. */
  async #complete() {
    if (!completion && !$("text").value.startsWith("/")) return;
    completion ??= await import("./completion.js");
    completion.complete(this.commands);
  }

  /** Brings earlier messages back into an empty field, and goes through them. */
  #recall(event) {
    const { value } = $("text");
    const isRecalled = this.#recalled !== null && value === this.#recalled.text;
    if (value && !isRecalled) return;
    const texts = this.history();
    const place = (isRecalled ? this.#recalled.place : texts.length) + (event.key === "ArrowUp" ? -1 : 1);
    if (place < 0 || place > texts.length || (!isRecalled && place > texts.length - 1)) return;
    event.preventDefault();
    this.#recalled = { text: texts[place] ?? "", place };
    this.#fill(this.#recalled.text);
  }

  /** Puts a text into the field. */
  write(text) {
    this.#fill(text);
    $("text").focus();
  }

  #submit() {
    const [text, files] = [$("text").value, this.#of(this.#chat)];
    if (!(text.trim() || files.length)) return;
    this.#attached.delete(this.#chat);
    this.#fill("");
    this.send(text, files);
  }

  // -- files

  #takeFiles() {
    const app = $("app");
    $("attach").onclick = () => $("file").click();
    $("file").onchange = () => { this.#attach($("file").files); $("file").value = ""; $("text").focus(); };
    $("text").onpaste = (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.#attach(event.clipboardData.files);
    };
    app.ondragover = (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      if (this.#chat) app.dataset.drop = "";
      else event.dataTransfer.dropEffect = "none"; // nothing can be sent to this chat
    };
    app.ondragleave = (event) => { if (!app.contains(event.relatedTarget)) delete app.dataset.drop; };
    app.ondrop = (event) => {
      event.preventDefault();
      delete app.dataset.drop;
      this.#attach(event.dataTransfer.files);
    };
  }

  #attach(given) {
    const chat = this.#chat;
    for (const file of chat ? given : []) {
      const url = file.type.startsWith("image/") ? URL.createObjectURL(file) : "";
      const entry = { name: file.name || "picture.png", size: file.size, url, abort: new AbortController() };
      entry.ready = this.#upload(entry, file);
      entry.ready.catch((error) => {
        entry.isLost = true;
        if (this.#detach(chat, entry)) this.fail(error);
      });
      this.#attached.set(chat, [...this.#of(chat), entry]);
    }
    this.#drawFiles();
  }

  async #upload(entry, file) {
    const headers = { "Content-Type": file.type || "application/octet-stream" };
    const path = `/api/files?name=${encodeURIComponent(entry.name)}`;
    entry.id = (await call("POST", path, { body: file, headers, ms: UPLOAD_MS, signal: entry.abort.signal })).id;
    this.#drawFiles();
  }

  /** Removes a file from the field. Returns false if it was sent already: then it belongs to its message. */
  #detach(chat, entry) {
    const files = this.#of(chat);
    if (!files.includes(entry)) return false;
    this.#attached.set(chat, files.filter((other) => other !== entry));
    entry.abort?.abort();
    URL.revokeObjectURL(entry.url);
    this.#drawFiles();
    return true;
  }

  #drawFiles() {
    const chat = this.#chat;
    $("files").replaceChildren(...this.#of(chat).map((file) => {
      const onclick = () => { this.#detach(chat, file); $("text").focus(); };
      const remove = make("button", { type: "button", className: "plain", textContent: "×", onclick });
      remove.ariaLabel = `Remove ${file.name}`;
      const picture = file.url ? [make("img", { src: file.url, alt: "" })] : [];
      return make("li", { className: file.id ? "" : "loading" }, ...picture, file.name, remove);
    }));
  }
}
