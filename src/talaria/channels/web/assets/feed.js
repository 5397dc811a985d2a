/* What the gateway tells about all chats as it happens. One tab of the browser listens and tells the others, because a
   browser opens only a few connections to one host. */

import { followAll } from "./api.js";
import { feedPlace } from "./storage.js";

const LOCK = "talaria.feed";

/** Passes each change to `take(name, data, id)` until `signal` is aborted. Throws what `followAll` throws. */
export async function followFeed(take, signal) {
  const others = "BroadcastChannel" in window ? new BroadcastChannel(LOCK) : null;
  if (others) others.onmessage = ({ data: [name, data, id] }) => { feedPlace.set(id); take(name, data, id); };
  const lead = () => followAll(feedPlace.get(), (name, data, id) => {
    feedPlace.set(id);
    others?.postMessage([name, data, id]);
    take(name, data, id);
  }, signal);
  try {
    if (!navigator.locks) { // without TLS a browser has no locks, so each tab listens
      await lead();
      return;
    }
    const isFirst = await navigator.locks.request(LOCK, { ifAvailable: true }, async (lock) => { if (lock) await lead(); return lock !== null; });
    if (isFirst) return;
    take("ready", {}); // another tab listens: the lists are read now, and changes come from there
    await navigator.locks.request(LOCK, { signal }, lead);
  } finally {
    others?.close();
  }
}
