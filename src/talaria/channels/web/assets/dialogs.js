/* Deleting and renaming a session: a question, and the reason if the gateway refuses. */

import { ApiError, call } from "./api.js";
import { $ } from "./elements.js";
import { showProblem } from "./blocks.js";

/** Asks whether to delete the session. Calls `gone()` when it is deleted, also if another tab was faster. */
export function askToDelete(session, label, gone) {
  $("deletion-name").textContent = label;
  showProblem($("deletion-error"), null);
  $("deletion-do").onclick = async () => {
    $("deletion-do").disabled = true;
    try {
      await call("DELETE", `/api/sessions/${session.id}`);
      leave(gone);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) leave(gone);
      else showProblem($("deletion-error"), error);
    } finally {
      $("deletion-do").disabled = false;
    }
  };
  $("deletion").showModal();
}

function leave(gone) {
  $("deletion").close();
  gone();
}

$("deletion-keep").onclick = () => $("deletion").close();

// -- renaming

/** Asks for another title of the session. The feed tells it to every page. */
export function askToRename(session, label) {
  $("renaming-title").value = label;
  showProblem($("renaming-error"), null);
  $("renaming-form").onsubmit = async (event) => {
    event.preventDefault();
    try {
      await call("PATCH", `/api/sessions/${session.id}`, { body: JSON.stringify({ title: $("renaming-title").value }) });
      $("renaming").close();
    } catch (error) {
      showProblem($("renaming-error"), error);
    }
  };
  $("renaming").showModal();
  $("renaming-title").select();
}

$("renaming-keep").onclick = () => $("renaming").close();
