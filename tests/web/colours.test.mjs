/* Colours for code: the pieces are the code, whatever it is. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { pieces } = await import(`${process.env.ASSETS}/colours.js`);
const kinds = (code, name) => pieces(code, name).filter(([kind]) => kind).map(([kind, text]) => `${kind} ${text}`);

test("comments, texts, numbers and words are found", () => {
  assert.deepEqual(kinds('const x = "a // b"; // 1\n/* two\nlines */ 0xff', "js"), ["word const", 'text "a // b"', "comment // 1", "comment /* two\nlines */", "number 0xff"]);
  assert.deepEqual(kinds('"""doc\n# no"""\nif x: pass', "python"), ['text """doc\n# no"""', "word if", "word pass"]);
  assert.deepEqual(kinds("SELECT a FROM b -- all", "sql"), ["word SELECT", "word FROM", "comment -- all"]);
  assert.deepEqual(kinds('echo "$#" # count', "sh"), ["word echo", 'text "$#"', "comment # count"]);
  assert.equal(pieces("x", "brainfuck"), null);
});

test("no character is lost, and code made to be slow is not", () => {
  const pieceOf = ["/*", '"', "'", "`", '"""', "# ", "\\\\'", "//\n", "${`"];
  for (const name of ["js", "py", "sh", "sql", "css", "yaml"]) {
    for (const each of pieceOf) {
      const code = each.repeat(90_000 / each.length);
      assert.equal(pieces(code, name).map(([, text]) => text).join(""), code);
    }
  }
});
