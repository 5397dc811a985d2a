/* The page: the login, the open chat, sending messages, and what the gateway tells about all chats. */

import { ApiError, call, connection, pause } from "./api.js";
import { LiveTurn, Log, Question, Said, decisions, showProblem } from "./blocks.js";
import { Chat, isSteer, transcript, trouble } from "./chat.js";
import { Badge, ChatList, narrow, open, toggleSide } from "./chats.js";
import { Composer } from "./composer.js";
import { partsOf } from "./conversation.js";
import { $, closeInspector, make, renewInspector, spoken } from "./elements.js";
import { show } from "./markdown.js";
import { drawModel, fetchLarger, isDownloading, modelProblem } from "./model.js";
import { effect, html, render, signal } from "./preact.js";
import { began, followFeed, hear, label, listed, readSoon, store } from "./reading.js";
import { drafts, forgetAll, login, newName, outbox, titles } from "./storage.js";
import { needsCount } from "./store.js";
import { tokens } from "./texts.js";

const STATUS_MS = 60_000;
const IDLE_MS = 500; // after which the page has its data
const FAST_MS = 2_000; // while a built-in model is downloaded
const composer = new Composer(send, fail, () => {
  const { blocks, live } = transcript.state.peek();
  const words = (parts) => parts.filter(({ type }) => type === "text").map(({ text }) => text).join("\n");
  return [...blocks.filter(({ kind, name }) => kind === "said" && !name).map(({ parts }) => words(parts)), live?.item?.text ?? ""].filter(Boolean);
});
const waiting = signal([]); // messages of the open chat that wait, each with its note
const isInbox = signal(false); // whether the inbox is shown instead of a chat
const inbox = signal(null); // its component, once it was loaded
const older = signal(false); // whether the log of the open chat has a page that was not read
const page = {
  transcript,
  fail,
  draw,
  began,
  notice: () => chat?.notice(store.peek().sessions),
  ended: (here) => readOptions(here).catch(fail),
  announce: (text) => { $("said").textContent = text; },
};
let chat = null;
let status = null;
let asked = 0; // when the status was read last
let heard = null; // ends the listening to the feed
const posting = new Map(); // for each chat the promise of its last message, so that messages keep their order
const underway = new Set(); // the keys of messages that are being sent
let editing = null; // the message that is edited: its chat and its place in the log, and the draft before
let isPinned = true; // whether the page scrolls along with the end of the conversation

function fail(error) {
  if (error.name === "AbortError") return; // the chat was left
  if (!(error instanceof ApiError)) reportError(error); // a bug of this page, which goes on
  else if (error.status === 401) showLogin(null);
  else transcript.remark(null, trouble(error));
}

addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof TypeError && event.reason.message.includes("module")) { // of another version, or the gateway is away
    event.preventDefault();
    if (document.body.hasAttribute("data-away")) return; // which the line says
    show($("line"), "A part of this page could not be loaded. If the gateway was upgraded, reload the page.");
    return;
  }
  if (!(event.reason instanceof ApiError) && event.reason?.name !== "AbortError") return;
  event.preventDefault();
  fail(event.reason);
});

// -- the login

/** Returns the code of a link, and removes it from the address bar and the history before anything is sent. */
function takeCode() {
  const code = /^#code=(.+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

/** A browser that has a login shows the page before the status is known, so that its field can be used. A message that is
 * refused because the login has ended is kept. */
async function begin(code) {
  let refusal = null;
  let isShown = false;
  try {
    const body = JSON.stringify({ code });
    const keep = ({ secret }) => login.keep(secret);
    if (code) await call("POST", "/api/login", { body }).then(keep, (error) => { refusal = error; });
    isShown = Boolean(login.secret()) && !refusal;
    if (isShown) enterApp();
    asked = Date.now();
    status = await call("GET", "/api/status");
  } catch (error) {
    showLogin(error.status === 401 ? refusal : error);
    return;
  }
  if (isShown) chat?.draw();
  else enterApp();
}

function enterApp() {
  $("login").hidden = true;
  $("app").hidden = false;
  outbox.dropStale().forEach((item) => composer.giveBack(item));
  route();
  listen();
  outbox.unsent().forEach(post); // including messages of a closed tab
}

/** Shows how to log in, why the last attempt failed, and that nothing is lost. */
function showLogin(refusal) {
  heard?.abort();
  heard = null;
  composer.keep();
  chat?.leave();
  chat = null;
  closeInspector();
  $("app").hidden = true;
  $("login").hidden = false;
  const error = { message: "You are not logged in.", hint: `${refusal?.message} ${refusal?.hint}` };
  showProblem($("login-error"), refusal ? error : null);
  const count = outbox.all().filter((item) => !item.turn).length;
  const kept = count === 1 ? "Your message is kept" : `Your ${count} messages are kept`;
  $("login-kept").textContent = count ? `${kept} in this browser and sent after the login.` : "What you have typed is kept in this browser.";
  $("login-kept").hidden = !count && !drafts.any();
  $("code").value = "";
  $("code").focus();
}

$("login-form").onsubmit = (event) => {
  event.preventDefault();
  const given = $("code").value.trim();
  begin(/#code=(\S+)/.exec(given)?.[1] ?? given);
};

$("logout").onclick = async () => {
  await call("POST", "/api/logout");
  forgetAll();
  location.replace(location.pathname);
};

// -- which view is shown

function route() {
  const wantsInbox = location.hash === "#inbox";
  if (isInbox.peek() !== wantsInbox) closeInspector();
  isInbox.value = wantsInbox;
  const [, ref, at] = /^#chat=([\w.-]{1,128})(?:&at=(\d{1,9}))?$/.exec(location.hash) ?? [];
  toggleSide(false);
  $("inbox").hidden = !wantsInbox;
  $("main").hidden = wantsInbox;
  $("inbox-open").ariaCurrent = wantsInbox ? "page" : null;
  $("menu").ariaCurrent = wantsInbox ? null : "page";
  if (wantsInbox) {
    if (!chat) enter(new Chat(newName(), page), { isNew: true });
    import("./inbox.js").then(({ Inbox }) => { inbox.value = Inbox; });
    open.value = "";
    $("inbox").focus();
  } else if (!ref) openNew("replaceState");
  else if (ref !== chat?.ref) enter(new Chat(ref, page), { at: Number(at) });
  else {
    open.value = ref;
    if (at) pointAt(Number(at)).catch(fail);
  }
  drawTitle();
}

/** Shows an entry of the open chat instead of its end. */
async function pointAt(seq) {
  isPinned = false;
  if (chat.older && chat.older > seq) await chat.readOlder(seq);
  transcript.point(seq);
}

/** `method` is `pushState` if Back shall lead to the chat before, else `replaceState`. */
function openNew(method) {
  const name = newName();
  history[method](null, "", `#chat=${name}`);
  isInbox.value = false;
  $("inbox").hidden = true;
  $("main").hidden = false;
  $("inbox-open").ariaCurrent = null;
  $("menu").ariaCurrent = "page";
  enter(new Chat(name, page), { isNew: true });
}

/** `at` is the entry that is shown first, if it is not the last one. */
function enter(here, { isNew = false, at = 0 }) {
  chat?.leave();
  chat = here;
  open.value = here.ref;
  stopEditing();
  $("meter").hidden = true;
  isPinned = !at;
  transcript.clear();
  composer.open(here.name);
  $("elsewhere").hidden = true;
  closeInspector();
  here.draw();
  if (!narrow.matches) $("text").focus();
  if (!isNew || !composer.commands.length) readOptions(here).catch(fail);
  if (isNew) return;
  $("scroll").dataset.loading = "";
  const arrived = () => { if (chat === here) delete $("scroll").dataset.loading; };
  const read = here.catchUp().then(() => (at && chat === here ? pointAt(at) : null));
  read.then(() => explain(here)).catch(fail).finally(arrived);
}

/** Reads which commands the chat takes, and how full the window of its model is. */
async function readOptions(here) {
  let options;
  try {
    options = await call("GET", `/api/sessions/${here.ref}/options`);
  } catch (error) {
    if (error.status !== 404) throw error; // there is no such chat, which is said elsewhere
    return;
  }
  composer.commands = options.commands;
  if (chat !== here) return;
  const { context_tokens: used, context_window: window } = options;
  $("meter").hidden = !used || !window;
  if ($("meter").hidden) return;
  const share = Math.round((100 * used) / window);
  $("meter").ariaValueNow = String(Math.min(100, share));
  $("meter").replaceChildren(`${share} %`, make("span", {}, " of context"));
  $("meter").title = `The last request filled ${share} % of the model's window (${tokens(used)} of ${tokens(window)} tokens).`;
}

/** Says why a session can only be read: it is not the current one of its chat, or of another channel. */
async function explain(here) {
  const { session } = here;
  if (here.name) return;
  const current = session?.name ? await call("GET", `/api/sessions/${session.name}`) : null;
  if (chat !== here) return;
  const at = /&at=\d+$/.exec(location.hash)?.[0] ?? "";
  const go = () => location.replace(`#chat=${session.name}${at}`); // Back leads to the chat before
  const resume = () => { post(new Chat(session.name, page).send(`/resume ${session.id}`, [])); go(); };
  if (current && current.id === session.id) {
    go();
    return;
  }
  const [, , channel, kind, owner] = session?.chat_key.split(":") ?? [];
  const isOfToken = channel === "http" && kind === "token";
  const place = isOfToken ? `This chat belongs to the token ${owner}.` : `This chat is on ${channel}. Answer it there.`;
  render(current
    ? html`This is an earlier conversation of this chat. <button onClick=${resume}>Continue it</button>`
    : session ? place : html`There is no such chat. <button onClick=${() => openNew("replaceState")}>Begin a new chat</button>`, $("elsewhere"));
  $("app").toggleAttribute("data-missing", !session);
  $("elsewhere").hidden = false;
}

$("menu").onclick = () => {
  if (location.hash === "#inbox") history.back();
  else if (narrow.matches) toggleSide(!("open" in $("side").dataset));
  else leaveSearch();
};
$("inbox-open").onclick = () => { toggleSide(false); };
$("new").onclick = () => {
  toggleSide(false);
  leaveSearch();
  openNew("pushState");
  $("text").focus();
};

// -- messages

function send(text, files) {
  isPinned = true;
  if (editing?.chat === chat) post(chat.send(`/branch @${editing.seq}`, []));
  stopEditing();
  post(chat.send(text, files));
}

function post(item) {
  if (underway.has(item.key)) return;
  underway.add(item.key);
  const before = posting.get(item.chat) ?? Promise.resolve();
  posting.set(item.chat, before.then(() => deliver(item)).catch(fail).finally(() => underway.delete(item.key)));
}

/** Sends a message until the gateway answers, always with the same key: an attempt without an answer may have
 * arrived. */
async function deliver(item) {
  const headers = { "Idempotency-Key": item.key };
  try {
    await Promise.all(item.files.map((file) => file.ready));
    outbox.update(item);
    const body = JSON.stringify({ text: item.text, files: item.files.map((file) => file.id) });
    item.turn = (await call("POST", `/api/sessions/${item.chat}/messages`, { body, headers })).turn_id;
  } catch (error) {
    if (error.status === 401) throw error; // it is sent after the next login
    outbox.drop(item);
    composer.giveBack(item);
    if (chat?.name === item.chat) chat.refused(item, error);
    return;
  }
  outbox.update(item);
  if (chat?.name === item.chat) chat.sent(item);
}

/** Takes back a message that waits, and puts it into the field again. */
async function withdraw(item) {
  try {
    await call("POST", `/api/turns/${item.turn}/cancel`);
    chat?.withdrawn(item);
    composer.giveBack(item);
    $("text").focus();
  } catch (error) {
    fail(error);
  }
}

$("stop").onclick = () => { chat.stop().catch(fail); $("text").focus(); };
$("skip").onclick = () => $("text").focus();

// -- what the gateway tells

function listen() {
  heard?.abort();
  heard = new AbortController();
  followFeed(take, heard.signal).catch(fail);
}

function take(name, data, id) {
  hear(name, data, id, fail);
  const here = chat;
  if (data.state) renewInspector(data.id);
  else if (data.turn_id) renewInspector(data.turn_id);
  if (["ready", "reset"].includes(name)) outbox.unsent().forEach(post); // the gateway is back
  if (!here) return;
  const isOurs = here.session ? data.session_id === here.session.id : here.name && data.channel === "http" && data.chat_key.endsWith(`:api:${here.name}`);
  if (data.state && isOurs) here.hear(data).catch(fail);
  if (name === "session.deleted" && data.id === here.session?.id) forget(here);
}

/** Reads the status, and the lists too unless the feed is about to have them read. */
async function refresh(hasLists = true) {
  try {
    asked = Date.now();
    status = await call("GET", "/api/status");
    outbox.unsent().forEach(post); // including messages of a closed tab
    if (hasLists) await readSoon({ lists: true });
    chat?.draw();
  } catch (error) {
    fail(error);
  }
}

decisions.addEventListener("decided", () => { readSoon({ inbox: true }).catch(fail); });

async function poll() {
  for (;;) {
    await pause(FAST_MS);
    const isDue = Date.now() - asked >= STATUS_MS || isDownloading(status);
    if (chat && !document.hidden && isDue) await refresh(false);
  }
}

// -- drawing

function draw(here, items) {
  if (here !== chat) return;
  waiting.value = items;
  older.value = Boolean(here.older);
  if (here.session) $("app").removeAttribute("data-missing");
  $("stop").hidden = !here.watching;
  $("delete").hidden = !here.session && !here.isBusy;
  $("delete").disabled = !here.session;
  for (const id of ["rename", "export", "pin", "archive", "files-open", "tools-open"]) $(id).hidden = !here.session;
  $("delete").title = here.session ? "Delete this chat" : "This chat can be deleted after its first answer";
  drawTitle();
  if (status) drawStatus(here);
}

function drawStatus(here) {
  $("version").textContent = `Talaria ${status.version}`;
  const model = here.model ?? status.model.default;
  $("model").hidden = !here.name || !model || model.startsWith("local/");
  $("model").textContent = model.slice(model.indexOf("/") + 1);
  drawModel(status, here.model);
  const problem = here.model ? "" : modelProblem(status);
  $("no-model").hidden = !problem;
  $("setup-open").hidden = !problem && !status.model.default.startsWith("local/");
  show($("no-model"), spoken(problem));
  const down = downChannels(status);
  $("down").hidden = !down;
  show($("down"), spoken(down));
}

/** Names the chat platforms that do not work now. Replies to them wait. */
function downChannels({ channels }) {
  const down = Object.entries(channels ?? {}).filter(([, state]) => /^(stopped|waiting)/.test(state));
  return down.map(([name, state]) => `${name} is ${state.replace(/\.$/, "")}. Replies to it wait. \`talaria doctor\` says more.`).join(" ");
}

const MARKS = [["pin", "Pin", "pinned"], ["archive", "Archive", "archived"]];
for (const [id, , mark] of MARKS) {
  $(id).onclick = () => {
    const session = listed(chat.session.id) ?? chat.session;
    const body = JSON.stringify({ mark: session.mark === mark ? "" : mark });
    call("POST", `/api/sessions/${session.id}/mark`, { body }).then((changed) => { chat.session = changed; }).catch(fail);
  };
}

function drawTitle() {
  if (!chat) return;
  const session = chat.session && (listed(chat.session.id) ?? chat.session) || listed(chat.ref); // the list has it before its first answer
  const title = session ? label(session) : "New chat";
  $("title").textContent = title;
  for (const [id, verb, mark] of MARKS) $(id).ariaLabel = $(id).title = `${session?.mark === mark ? `Un${verb.toLowerCase()}` : verb} this chat`;
  const count = needsCount(store.peek());
  document.title = `${count ? `(${count}) ` : ""}${$("main").hidden ? "Inbox" : title} · Talaria`;
}

function stopEditing() {
  editing = null;
  $("editing").hidden = true;
}

$("editing-stop").onclick = () => {
  const { before } = editing;
  stopEditing();
  composer.write(before);
};

const actions = {
  /** Puts a message into the field. It is sent to a copy of the chat that ends before it. */
  edit({ seq, parts }) {
    editing = { chat, seq, before: $("text").value };
    $("editing").hidden = false;
    composer.write(parts.filter(({ type }) => type === "text").map(({ text }) => text).join("\n"));
  },
  branch: (seq) => send(`/branch @${seq}`, []),
};

function Waiting() {
  return waiting.value.map((item) => html`<${Said} key=${item.key} parts=${partsOf(item)} turn=${item.turn} note=${html`
    ${!item.turn && html`<small class="late">waits for the gateway</small>`}
    ${item.turn && !isSteer(item) && html`<small class="waits">waits for the answer before it <button type="button" class="plain" onClick=${() => withdraw(item)}>Withdraw</button></small>`}`} />`);
}

/** Questions about hosts that no running turn shows, such as those of background processes. */
function OpenQuestions() {
  const session = store.value && chat?.session?.id;
  const { live } = transcript.state.value;
  const isShown = (id) => live?.blocks.some((block) => block.key === `question ${id}`);
  const due = store.value.questions.filter((item) => item.session_id === session && !isShown(item.id) && (item.kind === "host" || !live));
  return due.map((item) => html`<${Question} key=${item.id} question=${item} />`);
}

/** Lets the gateway answer the last message again. */
const retry = () => send("/retry", []);
render(html`<${() => html`<${Log} conversation=${transcript.state.value} actions=${waiting.value && chat?.name ? actions : null} retry=${chat?.name && !chat.isBusy ? retry : null} />`} />`, $("log"));
render(html`<${() => html`<${LiveTurn} conversation=${transcript.state.value} />`} />`, $("live"));
render(html`<${OpenQuestions} />`, $("asked"));
render(html`<${Waiting} />`, $("waiting"));
render(html`<${ChatList} />`, $("chats"));
render(html`<${Badge} />`, $("inbox-badge"));
render(html`<${() => isInbox.value && inbox.value && html`<${inbox.value} />`} />`, $("inbox-list"));
render(html`<${() => older.value && html`<button type="button" class="plain" onClick=${readOlder}>Earlier messages</button>`} />`, $("earlier"));

/** Reads earlier messages; what is in sight stays where it is. */
async function readOlder() {
  const scroll = $("scroll");
  const [height, top] = [scroll.scrollHeight, scroll.scrollTop];
  isPinned = false;
  await chat.readOlder().catch(fail);
  requestAnimationFrame(() => { scroll.scrollTop = top + scroll.scrollHeight - height; });
}

effect(() => {
  const { sessions } = store.value;
  chat?.notice(sessions);
});

const CLEAN = $("favicon").href;
let marked = null;
effect(() => {
  const state = store.value;
  const count = needsCount(state);
  const isRunning = Object.keys(state.turns).length > 0;
  drawTitle();
  const mark = count ? "#d97706" : isRunning ? "#0f9d83" : "";
  if (mark === marked) return;
  marked = mark;
  const dot = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#0b6b5d"/><path d="M8 24c8 0 13-4 16-15-4 3-8 4-13 4m-1 5c5 0 8-1 10.5-3" fill="none" stroke="#fff" stroke-width="2.4"/><circle cx="25" cy="7" r="7" fill="${mark}" stroke="#fff" stroke-width="2"/></svg>`;
  $("favicon").href = mark ? `data:image/svg+xml,${encodeURIComponent(dot)}` : CLEAN;
});

// Dialogs are loaded when they are first opened.
$("jobs-open").onclick = () => import("./jobs.js").then(({ showJobs }) => showJobs());
$("memory-open").onclick = () => import("./memory.js").then(({ showMemory }) => showMemory());

$("rename").onclick = async () => {
  const { session } = chat;
  const { askToRename } = await import("./dialogs.js");
  askToRename(session, label(listed(session.id) ?? session));
};

$("model").onclick = async () => {
  const here = chat;
  const { pickModel } = await import("./picker.js");
  pickModel(here.model ?? status.model.default, here.effort, (command) => { if (chat === here) send(command, []); });
};

// The gateway reads its configuration again within seconds.
const lookAgain = () => { for (const ms of [1000, 3000, 6000, 12_000]) setTimeout(() => refresh(false).catch(fail), ms); };
$("setup-open").onclick = () => import("./setup.js").then(({ setUp }) => setUp(lookAgain), fail);

$("export").onclick = () => {
  const { session } = chat;
  const saved = (name) => async () => {
    $("exporting").close();
    const exporting = await import("./exporting.js");
    exporting[name](session, label(listed(session.id) ?? session)).catch(fail);
  };
  $("exporting-markdown").onclick = saved("saveMarkdown");
  $("exporting-html").onclick = saved("saveHtml");
  $("exporting-json").onclick = saved("saveJson");
  $("exporting").showModal();
};
$("exporting-close").onclick = () => $("exporting").close();

$("files-open").onclick = () => import("./sent.js").then(({ showFiles }) => showFiles(chat.session));

/** On a narrow screen the actions of the chat are behind a button. */
function toggleTools(isOpen) {
  $("tools").toggleAttribute("data-open", isOpen);
  $("tools-open").ariaExpanded = String(isOpen);
}
$("tools-open").onclick = () => toggleTools(!$("tools").hasAttribute("data-open"));
document.addEventListener("click", ({ target }) => { if (!target.closest("#tools-open")) toggleTools(false); });
$("tools").onkeydown = ({ key }) => { if (key === "Escape") { toggleTools(false); $("tools-open").focus(); } };

addEventListener("keydown", (event) => {
  if (event.key !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || $("app").hidden) return;
  event.preventDefault();
  const names = { new: "New chat", "inbox-open": "Inbox", "jobs-open": "Jobs", "memory-open": "Memory", model: "Choose the model and reasoning", theme: $("theme").textContent, logout: "Log out" };
  const ofChat = ["rename", "pin", "archive", "files-open", "export", "delete"].map((id) => [id, $(id).ariaLabel]);
  const can = [...Object.entries(names), ...ofChat].filter(([id]) => !$(id).hidden && !$(id).disabled && ($(id).closest("#main")?.hidden !== true));
  if (document.querySelector("dialog[open]")) return;
  const show = (module) => module.openPalette(can.map(([id, name]) => ({ name, run: () => $(id).click() })), find);
  if (palette) show(palette);
  else import("./palette.js").then(show);
});

/** Leads to the search field, and searches for the words if they are other ones. */
function find(words) {
  toggleSide(narrow.matches);
  $("find").value = words;
  $("find").focus();
  $("find").select();
  search().then(({ changed }) => changed());
}
// It opens at once, so no key is lost; so it is loaded before it is asked for.
let palette = null;
setTimeout(() => import("./palette.js").then((module) => { palette = module; }, () => {}), IDLE_MS); // Ctrl+K tries again
$("find-form").onsubmit = (event) => event.preventDefault(); // until the search is loaded
const search = () => import("./search.js");
const leaveSearch = () => { if ($("find").value) search().then(({ leave }) => leave()); };
$("find").addEventListener("focus", () => search().then(({ changed }) => changed()), { once: true });
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (event.key !== "/" || isTyping || event.altKey || $("app").hidden) return;
  event.preventDefault();
  find($("find").value);
});

$("delete").onclick = async () => {
  const here = chat;
  const { session } = here;
  const { askToDelete } = await import("./dialogs.js");
  askToDelete(session, label(session), () => forget(here));
};

/** The chat was deleted, on this page or elsewhere. */
function forget(here) {
  composer.keep();
  if (here.name) drafts.set(here.name, "");
  titles.forget(here.session.id);
  if (chat === here) openNew("replaceState");
  readSoon({ lists: true }).catch(fail);
}

$("offer-take").onclick = () => {
  $("text").focus();
  const { name, state } = status.built_in_model.larger;
  if (state === "ready" && status.model.default !== `local/${name}`) send(`/model local/${name}`, []);
  else if (state === "ready") openNew("pushState");
  else fetchLarger(status).then(() => refresh(false), fail);
};

const grown = new ResizeObserver(() => { if (isPinned) $("scroll").scrollTop = $("scroll").scrollHeight; });
["log", "live", "asked", "waiting", "scroll"].forEach((id) => grown.observe($(id)));
let before = { top: 0, height: 0 };
/** A reader leaves the end by scrolling up. The conversation also moves when it grows or shrinks. */
$("scroll").onscroll = () => {
  const { scrollTop: top, scrollHeight: height, clientHeight } = $("scroll");
  const left = height - top - clientHeight;
  if (top > before.top && left < 80) isPinned = true;
  if (top < before.top && left > 2 && height === before.height) isPinned = false;
  before = { top, height };
  $("to-end").hidden = isPinned || left < 200;
};
$("to-end").onclick = () => { isPinned = true; $("scroll").scrollTop = $("scroll").scrollHeight; $("to-end").hidden = true; };
connection.addEventListener("change", ({ detail }) => {
  const kept = "Messages are kept and sent when it is back.";
  const text = detail ? `${detail} ${kept}` : `The gateway does not answer. ${kept} (Is it running? \`talaria serve\`)`;
  show($("line"), detail === null ? "" : spoken(text));
  document.body.toggleAttribute("data-away", detail !== null);
});
addEventListener("storage", ({ key }) => {
  if (login.is(key)) { // another tab has logged in or out
    if (!login.secret()) showLogin(null);
    else if (!chat) begin();
    return;
  }
  if (!chat || !outbox.is(key)) return;
  chat.readOutbox();
});
addEventListener("hashchange", () => {
  const code = takeCode();
  if (code) begin(code);
  else if (chat) route();
});
document.addEventListener("visibilitychange", () => { if (chat && !document.hidden) refresh(); });
begin(takeCode());
poll();
