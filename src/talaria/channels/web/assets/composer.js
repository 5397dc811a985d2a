/* The message field: a text that is kept as a draft, files, and what the keys do. */

import { $, make } from "./elements.js";
import { drafts } from "./keep.js";
import { call } from "./net.js";

const UPLOAD_MS = 600_000;

/** `send(text, files)` gets what was written; `fail(error)` what could not be uploaded. */
export class Composer {
  #chat = null; // its name; null: nothing can be written here
  #files = []; // { name, size, url, ready, id? }

  constructor(send, fail) {
    this.send = send;
    this.fail = fail;
    $("text").oninput = () => this.#changed();
    $("text").onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      $("composer").requestSubmit();
    };
    $("composer").onsubmit = (event) => {
      event.preventDefault();
      this.#submit();
    };
    this.#takeFiles();
  }

  open(chat) {
    this.#chat = chat;
    this.#files = [];
    $("composer").hidden = !chat;
    this.refill();
    this.#drawFiles();
  }

  /** With the draft as it is kept. */
  refill() {
    $("text").value = this.#chat ? drafts.of(this.#chat) : "";
    this.#changed();
  }

  #changed() {
    $("text").style.height = "auto";
    $("text").style.height = `${$("text").scrollHeight}px`;
    if (this.#chat) drafts.set(this.#chat, $("text").value);
  }

  async #submit() {
    const chat = this.#chat;
    await Promise.all(this.#files.map((file) => file.ready)); // those that failed have taken themselves away
    const [text, files] = [$("text").value, this.#files];
    if (chat !== this.#chat || !(text.trim() || files.length)) return;
    drafts.set(chat, "");
    this.open(chat);
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
      app.dataset.drop = "";
    };
    app.ondragleave = (event) => { if (!app.contains(event.relatedTarget)) delete app.dataset.drop; };
    app.ondrop = (event) => {
      event.preventDefault();
      delete app.dataset.drop;
      this.#attach(event.dataTransfer.files);
    };
  }

  #attach(given) {
    for (const file of this.#chat ? given : []) {
      const url = file.type.startsWith("image/") ? URL.createObjectURL(file) : "";
      const entry = { name: file.name || "picture.png", size: file.size, url };
      entry.ready = this.#upload(entry, file).catch((error) => { this.#detach(entry); this.fail(error); });
      this.#files.push(entry);
    }
    this.#drawFiles();
  }

  async #upload(entry, file) {
    const headers = { "Content-Type": file.type || "application/octet-stream" };
    const path = `/api/files?name=${encodeURIComponent(entry.name)}`;
    entry.id = (await call("POST", path, { body: file, headers, ms: UPLOAD_MS })).id;
    this.#drawFiles();
  }

  #detach(entry) {
    this.#files = this.#files.filter((other) => other !== entry);
    this.#drawFiles();
  }

  #drawFiles() {
    $("files").replaceChildren(...this.#files.map((file) => {
      const onclick = () => { this.#detach(file); $("text").focus(); };
      const remove = make("button", { type: "button", className: "plain", textContent: "×", onclick });
      remove.ariaLabel = `Remove ${file.name}`;
      const picture = file.url ? [make("img", { src: file.url, alt: "" })] : [];
      return make("li", { className: file.id ? "" : "loading" }, ...picture, file.name, remove);
    }));
  }
}
