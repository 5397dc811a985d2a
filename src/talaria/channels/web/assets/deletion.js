/* Deleting a session: a question, and the reason if the gateway refuses. */

import { ApiError, call } from "./api.js";
import { $ } from "./elements.js";
import { trouble } from "./transcript.js";

/** Asks whether to delete the session. Calls `gone()` when it is deleted, also if another tab was faster. */
export function askToDelete(session, label, gone) {
  $("deletion-name").textContent = label;
  $("deletion-error").replaceChildren();
  $("deletion-do").onclick = async () => {
    $("deletion-do").disabled = true;
    try {
      await call("DELETE", `/api/sessions/${session.id}`);
      leave(gone);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) leave(gone);
      else $("deletion-error").replaceChildren(trouble(error));
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
