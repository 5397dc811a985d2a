/* All files that the agent sent in a chat, in a dialog. */

import { call } from "./api.js";
import { $, make } from "./elements.js";
import { card } from "./files.js";
import { showProblem } from "./blocks.js";

const PAGE = 50;

export async function showFiles(session) {
  $("sent-list").replaceChildren(make("p", { className: "quiet" }, "Reading …"));
  showProblem($("sent-error"), null);
  $("sent").showModal();
  try {
    const files = [];
    for (let after = ""; after !== null; ) {
      const page = await call("GET", `/api/sessions/${session.id}/files?limit=${PAGE}${after && `&after=${encodeURIComponent(after)}`}`);
      files.push(...page.items);
      after = page.next;
    }
    const none = make("p", { className: "quiet" }, "The agent has sent no files in this chat.");
    $("sent-list").replaceChildren(...(files.length ? files.reverse().map(card) : [none]));
  } catch (error) {
    $("sent-list").replaceChildren();
    showProblem($("sent-error"), error);
  }
}

$("sent-close").onclick = () => $("sent").close();
