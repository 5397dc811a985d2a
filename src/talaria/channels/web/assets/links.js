/* Which addresses in a model's text may become links: the rule of core/links.py, with the browser's own parser.
   A click reaches more than the model does, so only plainly public hosts are links. */

const START = /^https?:\/\/([^/?#]*)/i;
const CONTROLS = /[\u0000-\u0020\u007f\\]/; // browsers drop or replace them
const LABEL = /^[a-z0-9_-]{1,63}$/;
const INNER_NAMES = new Set(["localhost", "local", "internal", "intranet", "private", "corp", "home", "lan",
  "localdomain", "arpa", "test", "invalid"]);
const MIRRORS = new Set(["nip.io", "sslip.io", "xip.io", "localtest.me", "lvh.me"]);
const INNER_V4 = [["0.0.0.0", 8], ["10.0.0.0", 8], ["100.64.0.0", 10], ["127.0.0.0", 8], ["169.254.0.0", 16],
  ["172.16.0.0", 12], ["192.0.0.0", 24], ["192.0.2.0", 24], ["192.88.99.0", 24], ["192.168.0.0", 16],
  ["198.18.0.0", 15], ["198.51.100.0", 24], ["203.0.113.0", 24], ["224.0.0.0", 3]];

/** Returns the URL if it plainly leads to a host of the public internet, else null. `own` is the gateway's host. */
export function outer(href, own = location.hostname) {
  const found = START.exec(href);
  if (!found || CONTROLS.test(href) || /[@%]/.test(found[1]) || !URL.canParse(href)) return null;
  const url = new URL(href);
  const host = url.hostname.replace(/\.$/, "");
  return host === own.replace(/\.$/, "").toLowerCase() || isInner(host) ? null : url;
}

function isInner(host) {
  if (host.startsWith("[")) return isInnerV6(host.slice(1, -1));
  const labels = host.split(".");
  if (host.length > 253 || labels.length === 1 || !labels.every((label) => LABEL.test(label))) return true;
  const last = labels.at(-1);
  if (/^\d+$/.test(last)) return INNER_V4.some(([block, bits]) => number(host) >>> (32 - bits) === number(block) >>> (32 - bits));
  return INNER_NAMES.has(last) || MIRRORS.has(labels.slice(-2).join("."));
}

function number(v4) {
  return v4.split(".").reduce((sum, byte) => sum * 256 + Number(byte), 0);
}

/** Only 2000::/3 is global. Within it: Teredo, documentation, and 6to4, which contains an IPv4 address. */
function isInnerV6(v6) {
  const [first, second] = v6.split(":").map((group) => parseInt(group || "0", 16));
  if (first < 0x2000 || first > 0x3fff || first === 0x2002) return true;
  return (first === 0x2001 && (second < 0x200 || second === 0xdb8)) || (first === 0x3fff && second < 0x1000);
}
