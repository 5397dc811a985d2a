/* Texts of tool calls: safe, short, and changes as lines. */

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.location = { hostname: "localhost" };
const { diffOf, dollars, duration, plain, pretty, shorten, tokens } = await import(`${process.env.ASSETS}/texts.js`);

test("a replacement is shown as removed and added lines", () => {
  const lines = diffOf({ path: "a", old: "one\ntwo\nthree", new: "one\n2\nthree" });
  assert.deepEqual(lines, [[" ", "one"], ["-", "two"], ["+", "2"], [" ", "three"]]);
  assert.equal(diffOf({ path: "a", content: "x" }), null);
  assert.equal(diffOf(null), null);
  assert.deepEqual(diffOf({ old: "a\na", new: "a" }), [[" ", "a"], ["-", "a"]]);
});

test("output is text without escape sequences and without characters that reverse it", () => {
  assert.equal(plain("\x1b[31mred\x1b[0m\x1b]0;title\x07\n10 %\r99 %\n\u202egnp"), "red\n99 %\ngnp");
});

test("a command is shown without its other arguments, and bad JSON as it is", () => {
  assert.equal(shorten('{"command":"make test","timeout":60}'), "make test");
  assert.equal(shorten("{not json"), "{not json");
  assert.equal(pretty('{"command":"make","timeout":60}'), "$ make\ntimeout: 60");
});

test("times and amounts read as people say them", () => {
  assert.deepEqual([0.004, 0.5, 6.42, 42, 125, 7400, 86_400, 3e5].map(duration), ["4 ms", "0.5 s", "6.4 s", "42 s", "2 min", "2 h 3 min", "24 h", "3 days"]);
  assert.deepEqual([999, 1234, 123_456].map(tokens), ["999", "1.2k", "123k"]);
  assert.deepEqual(["0", "0.0012", "1.5"].map(dollars), ["$0.00", "$0.0012", "$1.50"]);
});
