/* Questions of a turn: a card with all that is asked, and the buttons that decide. */

import { call } from "./api.js";
import { make } from "./elements.js";

const TITLES = {
  approval: "May this run?",
  host: "May commands reach this host?",
  answer: "An answer is needed",
};
const SPANS = { once: "Approved, once.", session: "Approved for this session.", always: "Approved for always." };

let open = new Map(); // the cards of `drawOpen`, by the id of the question

/** Shows in `box` the questions about hosts that are open in a session and that no running turn shows, such as those
 * of background processes. No event tells their decisions. */
export async function drawOpen(box, session, isShown) {
  const { items } = await call("GET", "/api/approvals?limit=500");
  const isDue = (item) => item.kind === "host" && item.session_id === session() && !isShown(item.id);
  const cards = items.filter(isDue).map((item) => [item.id, open.get(item.id) ?? openCard(item)]);
  open = new Map(cards);
  box.replaceChildren(...open.values());
}

function openCard({ id, ...more }) {
  const node = question({ ...more, question_id: id }, (body) => {
    decided(node, { decision: body.decision, span: body.for });
  });
  return node;
}

/** A card for the event `approval`. Every character of the text is shown; none of it is taken for markup. `after` is
 * called with a decision that was made on the card. */
export function question(event, after = () => {}) {
  const isAnswer = event.kind === "answer";
  const text = make(isAnswer ? "p" : "pre", { className: "asked", textContent: event.text });
  if (!isAnswer) text.tabIndex = 0; // it may scroll
  const note = make("p", { className: "decided", hidden: true });
  note.setAttribute("role", "status");
  const title = make("strong", { textContent: TITLES[event.kind] ?? TITLES.approval });
  const node = make("section", { className: "question" }, title, text, choices(event, note, after), note);
  node.ariaLabel = title.textContent;
  return node;
}

/** Shows the decision in the card and takes the buttons away. */
export function decided(node, { decision, span }) {
  const isAnswer = node.querySelector("p.asked") !== null;
  const words = decision === "approve" ? SPANS[span] ?? SPANS.once : "Denied.";
  node.querySelector(".choices")?.remove();
  tell(node.querySelector(".decided"), isAnswer ? `Answered: ${decision}` : words);
}

function choices(event, note, after) {
  const decide = (body) => act(event.question_id, body, note, after);
  const button = (textContent, body) => make("button", { type: "button", textContent, onclick: () => decide(body) });
  const row = make("div", { className: "choices" });
  if (event.kind === "answer") {
    row.append(...(event.choices ?? []).map((choice) => button(choice, { answer: choice })));
    if (!row.children.length) row.append("Your next message is the answer.");
    return row;
  }
  row.append(
    button("Approve once", { decision: "approve", for: "once" }),
    button("Approve for the session", { decision: "approve", for: "session" }),
    ...(event.kind === "host" ? [button("Approve always", { decision: "approve", for: "always" })] : []),
    button("Deny", { decision: "deny" }),
  );
  return row;
}

/** The gateway tells the decision with an event, so that every open page shows it; here only trouble is shown. */
async function act(id, body, note, after) {
  const buttons = [...note.parentNode.querySelectorAll("button")];
  buttons.forEach((button) => { button.disabled = true; });
  try {
    await call("POST", `/api/approvals/${encodeURIComponent(id)}`, { body: JSON.stringify(body) });
    after(body);
  } catch (error) {
    tell(note, [error.message, error.hint].filter(Boolean).join(" "));
    buttons.forEach((button) => { button.disabled = false; });
  }
}

function tell(note, text) {
  note.hidden = false;
  note.textContent = text;
}
