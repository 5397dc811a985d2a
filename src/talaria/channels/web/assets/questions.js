/* Questions of a turn: a card with all that is asked, and the buttons that decide. */

import { call } from "./api.js";
import { html, useState } from "./preact.js";

const TITLES = {
  approval: "May this run?",
  host: "May commands reach this host?",
  answer: "An answer is needed",
};
const SPANS = { once: "Approved, once.", session: "Approved for this session.", always: "Approved for always." };
export const decisions = new EventTarget(); // "decided" when a decision was made on this page

/** A card for a question. Every character of the text is shown; none of it is taken for markup. `decided` is
 * { text, span, by, at }, once it is. */
export function Question({ question, decided }) {
  const [trouble, setTrouble] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isAnswer = question.kind === "answer";
  const title = TITLES[question.kind] ?? TITLES.approval;
  if (decided && !isAnswer) {
    return html`<details class="tool question" data-decided=""><summary><span class="brief">${title}</span> <${Decided} question=${question} decided=${decided} /></summary><pre>${question.text}</pre></details>`;
  }
  const decide = async (body) => {
    setBusy(true);
    setTrouble("");
    try {
      await call("POST", `/api/approvals/${encodeURIComponent(question.id)}`, { body: JSON.stringify(body) });
      decisions.dispatchEvent(new CustomEvent("decided", { detail: { question, body } }));
    } catch (error) {
      if (error.status === 401) throw error;
      setTrouble([error.message, error.hint].filter(Boolean).join(" "));
      setBusy(false);
    }
  };
  return html`<section class="question" aria-label=${title} data-decided=${decided ? "" : undefined}>
    <strong>${title}</strong>
    ${isAnswer ? html`<p class="asked" dir="auto">${question.text}</p>` : html`<pre class="asked" tabindex="0" aria-label="What is asked">${question.text}</pre>`}
    ${decided ? html`<${Decided} question=${question} decided=${decided} />` : html`<${Choices} question=${question} decide=${decide} isBusy=${isBusy} />`}
    <p class="refusal" role="status" hidden=${!trouble}>${trouble}</p>
  </section>`;
}

/** What was decided, by whom and when. */
export function Decided({ question, decided }) {
  const { text, span, at } = decided;
  const by = personOf(decided.by);
  const words = text === "approve" ? SPANS[span] ?? SPANS.once : "Denied.";
  const when = at ? new Date(at * 1000).toLocaleTimeString([], { timeStyle: "short" }) : "";
  return html`<span class="decided" role="status">${question.kind === "answer" ? `Answered: ${text}` : words}
    ${(by || when) && html` <small>${[by, when].filter(Boolean).join(" · ")}</small>`}</span>`;
}

/** The gateway's owner, who is logged in here, has the sender of the API. */
export function personOf(sender) {
  return sender?.toLowerCase() === "api" ? "you" : sender;
}

/** Deny and Once come before what lasts longer; only one button is filled. */
function Choices({ question, decide, isBusy }) {
  const button = (label, body, kind = "") => html`<button type="button" class=${kind} disabled=${isBusy} onClick=${() => decide(body)}>${label}</button>`;
  if (question.kind === "answer") {
    const choices = question.choices ?? [];
    return html`<div class="choices">${choices.map((choice) => button(choice, { answer: choice }))}
      ${choices.length === 0 && html`<${Answer} decide=${decide} isBusy=${isBusy} />`}</div>`;
  }
  return html`<div class="choices">
    ${button("Deny", { decision: "deny" })}
    ${button("Approve once", { decision: "approve", for: "once" }, "primary")}
    ${button("Approve for the session", { decision: "approve", for: "session" }, "plain")}
    ${question.kind === "host" && button("Approve always", { decision: "approve", for: "always" }, "plain")}
  </div>`;
}

function Answer({ decide, isBusy }) {
  const [text, setText] = useState("");
  const submit = (event) => { event.preventDefault(); if (text.trim()) decide({ answer: text.trim() }); };
  return html`<form class="row" onSubmit=${submit}>
    <input aria-label="Your answer" placeholder="Your answer" autocomplete="off" dir="auto" value=${text} onInput=${(event) => setText(event.target.value)} />
    <button class="primary" disabled=${isBusy || !text.trim()}>Answer</button>
  </form>`;
}
