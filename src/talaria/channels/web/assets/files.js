/* Files that the agent sent: a card with a preview and a download. What they contain is shown as a picture or as
   text, never as a part of the page. */

import { readFile } from "./api.js";
import { make } from "./elements.js";
import { size } from "./texts.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const TEXTS = ["text/plain", "text/markdown", "text/csv", "application/json"];
const MAX_PICTURE = 10e6; // bytes; a larger picture is not loaded for its preview
const TEXT_BYTES = 2_000;
const TEXT_ROWS = 12;

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    target.load();
  }
}, { rootMargin: "400px" });

/** `file` is { id, name, type, size }. The preview is loaded when the card comes into sight. */
export function card(file) {
  const name = make("bdi", { textContent: file.name, title: file.name });
  const button = make("button", { type: "button", textContent: "Download" });
  button.ariaLabel = `Download ${file.name}`;
  const note = make("small", { textContent: size(file.size) });
  const row = make("div", { className: "about-file" }, name, note, button);
  const node = make("figure", { className: "sent" }, row);
  button.onclick = async () => {
    button.disabled = true;
    await save(file).catch((error) => { note.textContent = [error.message, error.hint].filter(Boolean).join(" "); });
    button.disabled = false;
  };
  const preview = previewOf(file);
  if (preview) seen.observe(Object.assign(node, { load: () => preview(file).then((shown) => node.prepend(shown), () => {}) }));
  return node;
}

function previewOf({ type, size: bytes }) {
  if (PICTURES.includes(type) && bytes <= MAX_PICTURE) return picture;
  return TEXTS.includes(type) ? text : null;
}

async function picture(file) {
  const url = URL.createObjectURL(new Blob([await readFile(file.id)], { type: file.type }));
  const image = make("img", { src: url, alt: `Preview of ${file.name}` });
  await image.decode().finally(() => URL.revokeObjectURL(url));
  return image;
}

async function text(file) {
  const start = new TextDecoder().decode(await readFile(file.id, { Range: `bytes=0-${TEXT_BYTES - 1}` }));
  const rows = start.split("\n").slice(0, TEXT_ROWS).join("\n");
  const isWhole = rows === start && file.size <= TEXT_BYTES;
  return make("pre", { textContent: isWhole ? start : `${rows}\n…`, tabIndex: 0, ariaLabel: `Beginning of ${file.name}` });
}

/** A link cannot send the login's second secret, so the file is fetched and then handed to the browser. */
async function save(file) {
  const url = URL.createObjectURL(new Blob([await readFile(file.id)], { type: "application/octet-stream" }));
  make("a", { href: url, download: file.name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
