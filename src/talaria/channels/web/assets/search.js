/* Searching all conversations: the field above the list of chats, and the hits that take the list's place. */

import { ApiError, attempt } from "./api.js";
import { toggleSide } from "./chats.js";
import { $, make } from "./elements.js";
import { listed } from "./reading.js";

const PAUSE_MS = 200; // after the last key
const PAGE = 20;
const MOST_MARKS = 50; // in one excerpt
let asked = new AbortController();
let timer;
let wanted = ""; // the words whose hits are shown

/** The words in the field have changed. */
export function changed() {
  clearTimeout(timer);
  const words = $("find").value.trim();
  if (words === wanted) return;
  if (!words) leave();
  else timer = setTimeout(() => search(words, null), PAUSE_MS);
}

/** Shows the hits for `words`. `after` is the place of a later page, which is put below the first ones. */
async function search(words, after) {
  asked.abort();
  asked = new AbortController();
  wanted = words;
  const place = after ? `&after=${encodeURIComponent(after)}` : "";
  const path = `/api/search?limit=${PAGE}&q=${encodeURIComponent(words)}${place}`;
  document.body.dataset.finding = "";
  $("found").ariaBusy = "true";
  try {
    const page = await attempt("GET", path, { signal: asked.signal });
    show(page, words, after);
  } catch (error) {
    if (error.name === "AbortError") return;
    tell(error instanceof ApiError ? `${error.message} ${error.hint}` : "The gateway does not answer.");
    if (!(error instanceof ApiError)) wanted = ""; // the same words can be tried again
  }
  $("found").ariaBusy = "false";
}

function show(page, words, after) {
  const marks = marker(words);
  const rows = page.items.map((hit) => row(hit, marks));
  if (!after) $("found").replaceChildren();
  $("found-more")?.remove();
  $("found").append(...rows);
  $("found").dataset.words = words;
  const count = $("found").children.length;
  const counted = count === 1 ? "1 place" : `${count}${page.next ? " or more" : ""} places`;
  const building = page.is_complete ? "" : " Older conversations are still being indexed.";
  tell((count ? `Found ${counted}.` : "Nothing was found.") + building);
  if (page.next) {
    const more = make("button", { id: "found-more", type: "button", textContent: "More" });
    more.onclick = () => { rows.at(-1)?.querySelector("a").focus(); search(words, page.next); };
    $("found").after(more);
  }
}

function row(hit, marks) {
  const when = new Date(hit.at * 1000);
  const time = make("time", { textContent: day(when), dateTime: when.toISOString(), title: when.toLocaleString() });
  const title = make("span", { textContent: hit.title || hit.name || hit.chat_key.split(":").slice(2).join(" ") });
  const speaker = hit.speaker === "user" ? "You" : hit.speaker === "assistant" ? "Answer" : hit.speaker;
  const excerpt = make("q", {}, ...marked(hit.excerpt, marks));
  const ref = hit.name && listed(hit.name)?.id === hit.session_id ? hit.name : hit.session_id; // as in the list
  const link = make("a", { href: `#chat=${ref}&at=${hit.seq}` }, title, time, make("small", {}, `${speaker}: `, excerpt));
  return make("li", {}, link);
}

/** Matches the words that were looked for, with other endings. A word of one letter is not marked. */
function marker(words) {
  const parts = words.match(/[\p{L}\p{N}]{2,}/gu) ?? [];
  const stems = parts.map((part) => part.replace(/(?<=\p{Script=Latin}{4})(?:ing|ed|es|s|e)$/u, ""));
  return stems.length ? new RegExp(`(${stems.join("|")})`, "giu") : null;
}

function marked(text, marks) {
  if (!marks) return [text];
  const pieces = text.split(marks); // every second piece is a match
  if (pieces.length > 2 * MOST_MARKS) return [text];
  return pieces.map((piece, index) => (index % 2 ? make("mark", { textContent: piece }) : piece));
}

function day(date) {
  const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  const isToday = date.toDateString() === new Date().toDateString();
  if (isToday) return date.toLocaleTimeString([], { timeStyle: "short" });
  return date.toLocaleDateString([], { day: "numeric", month: "short", year });
}

function tell(text) {
  $("found-note").textContent = text;
}

/** Shows the list of chats again. */
export function leave() {
  clearTimeout(timer);
  asked.abort();
  wanted = "";
  $("find").value = "";
  $("found").replaceChildren();
  $("found-more")?.remove();
  tell("");
  delete document.body.dataset.finding;
}

/** Moves the focus through the field and the hits. */
function move(event) {
  if (!["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key) || event.isComposing) return;
  const stops = [$("find"), ...$("found").querySelectorAll("a"), ...($("found-more") ? [$("found-more")] : [])];
  const at = stops.indexOf(document.activeElement);
  if (at < 0 || (at === 0 && event.key !== "ArrowDown")) return;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 1, End: stops.length - 1 }[event.key];
  event.preventDefault();
  stops[Math.max(0, Math.min(to, stops.length - 1))].focus();
}

$("find").oninput = changed;
$("find-form").onsubmit = (event) => {
  event.preventDefault();
  const first = $("found").querySelector("a");
  if (first && $("find").value.trim() === wanted) first.click();
  else if ($("find").value.trim()) { clearTimeout(timer); search($("find").value.trim(), null); }
};
$("search").onkeydown = (event) => {
  move(event);
  if (event.key !== "Escape" || !(wanted || $("find").value)) return;
  event.stopPropagation(); // a drawer stays open
  leave();
  $("find").focus();
};
$("found").onclick = (event) => { if (event.target.closest("a")) toggleSide(false); };
