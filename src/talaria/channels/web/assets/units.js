/* Times, amounts and sizes as people read them. */

// Making a formatter takes as long as hundreds of its uses.
const [ofDay, whole] = [{ timeStyle: "short" }, { dateStyle: "medium", timeStyle: "medium" }].map((style) => new Intl.DateTimeFormat([], style));

/** "2:16 AM" */
export const clock = (date) => ofDay.format(date);

/** The day and the time. */
export const moment = (date) => whole.format(date);

export function duration(seconds) {
  if (seconds < 0.095) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.5) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours >= 36) return `${Math.round(hours / 24)} days`;
  return minutes >= 600 || minutes % 60 === 0 ? `${hours} h` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function wait(seconds) {
  if (seconds < 1.5) return "in a moment";
  return seconds < 120 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`;
}

export function megabytes(bytes) {
  return Math.round(bytes / 1e6);
}

export function tokens(count) {
  return count < 1000 ? String(count) : count < 99_950 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

export function dollars(text) {
  const amount = Number(text);
  return amount >= 0.01 || amount === 0 ? `$${amount.toFixed(2)}` : `$${amount.toPrecision(2)}`;
}

export function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
