/* The inspector is loaded when it is first opened. */

let loaded = null;

/** Shows the story of a turn beside the chat. */
export async function openInspector(id) {
  loaded ??= await import("./inspector.js");
  await loaded.open(id);
}

/** Reads the open story again, for example when its turn has a new state. What is shown stays meanwhile. */
export const renewInspector = (id) => loaded?.renew(id);

export const closeInspector = () => loaded?.close();
