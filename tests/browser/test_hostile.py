"""Two hundred texts and file names that were made to run something or to reach another host."""

from __future__ import annotations

from browser.visitor import Visitor

TAGS = (
    "<script>ran()</script>",
    "<img src=x onerror=ran()>",
    "<svg onload=ran()>",
    "<style>*{display:none}</style>",
    "<iframe srcdoc='<script>parent.ran()</script>'></iframe>",
    "<a href=javascript:ran()>x</a>",
    "<math><mtext></p><img src=x onerror=ran()>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
)
FRAMES = (
    "{}",
    "# {}",
    "- [x] {}",
    "> {}",
    "| {} | b |\n|--:|---|\n| {} | c |",
    "```html\n{}\n```",
    "```{}\nx\n```",
    "**{}** _{}_ ~~{}~~",
    r"${}_1$ \({}\)",
    '[{}](https://example.org/"onmouseover=ran())',
    "![{}](//evil.example/x.png)",
    "\u202e{}\u0000",
)
HREFS = (
    *("javascript:ran()", "JaVaScRiPt:ran()", "java\tscript:ran()", "data:text/html,<script>ran()</script>"),
    *(
        "vbscript:ran()",
        "file:///etc/passwd",
        "blob:x",
        "//evil.example/",
        "\\\\evil.example\\x",
        "http:/\\evil",
    ),
    *("http://127.0.0.1/api/logout", "http://[::1]/", "http://10.0.0.1/", "http://0x7f000001/"),
    *("https://user:pass@evil.example/", "http://evil.example%2f@x/", "http:evil.example", "about:blank"),
    *("ftp://evil.example/", "ws://evil.example/", "http://2130706433/", "http://localhost/"),
)
FORMULAS = (
    r"$\href{javascript:ran()}{x_1}$",
    r"$\includegraphics[x_1]{//evil.example/x.png}$",
    r"$\style{color:red}{x_1}$",
)
TEXTS = [
    *(frame.replace("{}", tag) for tag in TAGS for frame in FRAMES),
    *(frame.replace("{}", href) for href in HREFS for frame in ("[x]({})", "![x]({})", "<{}>", "{}")),
    *FORMULAS,
]
NEVER = (
    "script, style, iframe, object, link, base, meta, svg, img, mglyph, maction, math [href], math [style], "
    "[onerror], [onload], [onmouseover]"
)
DRAW = """async ([texts, never]) => {
  const base = document.querySelector("script[type=module]").src.replace("app.js", "");
  const [{ show }, { card }, { html, render }, { Said }] = await Promise.all(
    ["markdown.js", "files.js", "preact.js", "blocks.js", "math.js"].map((name) => import(base + name)));
  window.ran = () => { document.title = "ran"; };
  const place = document.getElementById("log");
  for (const text of texts) {
    const [node, said] = [document.createElement("div"), document.createElement("div")];
    place.append(node, said);
    show(node, text);
    const parts = [{ type: "text", text }, { type: "image", url: text }];
    render(html`<${Said} parts=${parts} turn=${null} name=${text} />`, said);
    const name = text.slice(0, 200);
    place.append(card({ id: "f", name, type: "application/octet-stream", size: 1 }));
  }
  await new Promise((resolve) => setTimeout(resolve, 0));
  const links = [...place.querySelectorAll("a")].map((link) => link.protocol + link.host);
  const found = [place.querySelectorAll(never).length, [...new Set(links)], document.title.includes("ran")];
  place.replaceChildren();
  return found;
}"""


async def test_nothing_runs_and_nothing_is_fetched(visitor: Visitor) -> None:
    assert len(TEXTS) >= 200
    before = len(visitor.requests)
    made, links, has_run = await visitor.page.evaluate(DRAW, [TEXTS, NEVER])
    assert made == 0
    assert links == ["https:example.org"], "only plainly public hosts are links"
    assert not has_run
    await visitor.at_rest()
    assert [each for each in visitor.requests[before:] if not each.startswith(visitor.url)] == []
