"""Twenty pages as large and as full of links and controls as those that people use, written by rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

WORDS = (
    "the council voted on Tuesday to approve a plan for new bridges across river after months of debate while "
    "residents asked about costs noise and time and engineers promised that work would begin in early spring"
).split()


def words(seed: int, count: int) -> str:
    return " ".join(WORDS[(seed * 7 + n * 5 + n * n) % len(WORDS)] for n in range(count)).capitalize()


def each(count: int, write: Callable[[int], str]) -> str:
    return "".join(map(write, range(1, count + 1)))


def link(n: int, text: str, place: str = "item") -> str:
    return f'<a class="c{n % 9}" href="/{place}/{n}?ref=list&amp;position={n}">{text}</a>'


def page(title: str, body: str) -> str:
    """A page with the header and footer that most sites have."""
    menu = each(12, lambda n: f"<li>{link(n, words(n, 1), 'section')}")
    foot = each(24, lambda n: f"<li>{link(n, words(n, 2), 'about')}")
    return (
        f"<title>{title}</title><header><a href=/>Home</a><nav><ul>{menu}</ul></nav><form action=/search>"
        '<input type=search name=q aria-label="Search"><button>Search</button></form><button>Log in</button>'
        f"</header><main><h1>{title}</h1>{body}</main><footer><ul>{foot}</ul>"
        "<p>Cookies <button>Accept all</button><button>Settings</button></footer>"
    )


def field(name: str, kind: str = "text") -> str:
    return f"<label>{name} <input type={kind} name={name.lower().replace(' ', '_')}></label>"


def buttons(*names: str) -> str:
    return "".join(f"<button type=button>{name}</button>" for name in names)


def rows(count: int, columns: int, *names: str) -> str:
    cells: Callable[[int], str] = lambda n: each(columns, lambda c: f"<td>{n * c} {words(n + c, 1)}</td>")
    return f"<table>{each(count, lambda n: f'<tr>{cells(n)}<td>{buttons(*names)}</td></tr>')}</table>"


def realistic_pages() -> dict[str, str]:
    """Return each page by its kind."""
    story: Callable[[int], str] = lambda n: (
        f"<article><h3>{link(n, words(n, 9))}</h3><p>{words(n, 30)}</p></article>"
    )
    product_card: Callable[[int], str] = lambda n: (
        f"<li><img alt='{words(n, 3)}' src=/none>{link(n, words(n, 7))}<span>{n * 3}.99 €</span>"
        f"<span>{n % 5} stars</span>{buttons('Add to basket', 'Compare')}</li>"
    )
    filters = each(40, lambda n: f"<label><input type=checkbox> {words(n, 2)} ({n * 3})</label>")
    comment: Callable[[int], str] = lambda n: (
        f"<div><a href=/u/{n}>user{n}</a><p>{words(n, 60)}</p>{buttons('Reply', 'Like', 'Report')}</div>"
    )
    years = each(90, lambda n: f"<option>{1935 + n}</option>")
    address = "".join(map(field, ("First name", "Last name", "Street", "Postcode", "City", "Phone")))
    code = each(1200, lambda n: f"<tr><td>{link(n, str(n), 'line')}</td><td>{words(n, 8)}</td></tr>")
    days = "".join(
        f"<td tabindex=0>{day}<a href=/event/{week}-{day}>{week + 8}:00 {words(week * day, 3)}</a></td>"
        for week, day in product(range(5), range(1, 8))
    )
    bodies = {
        "news front page": each(120, story),
        "shop list": f"<aside>{filters}</aside><ul>{each(96, product_card)}</ul>" + each(20, lambda n: link(n, str(n))),
        "product": f"<p>{words(1, 300)}</p><select>{each(30, lambda n: f'<option>Size {n}')}</select>"
        f"{buttons('Buy now', 'Add to basket')}{each(40, comment)}",
        "search results": each(50, lambda n: f"<div><h3>{link(n, words(n, 8))}</h3><p>{words(n, 40)}</p></div>"),
        "wiki article": each(
            60, lambda n: f"<h2>{words(n, 4)}</h2><p>{words(n, 90)} {each(14, lambda m: link(n * m, words(m, 2)))}</p>"
        ),
        "long table": rows(500, 8, "Edit", "Delete"),
        "forum thread": each(150, comment),
        "mail list": each(
            100,
            lambda n: f"<div role=row><input type=checkbox aria-label='Select'>{buttons('Star')}"
            f"{link(n, words(n, 12))}<time>{n}:00</time></div>",
        ),
        "calendar": f"<table><tr>{days}</tr></table>{buttons('Today', 'Next', 'Previous', 'New event')}",
        "form wizard": f"<ol>{each(6, lambda n: f'<li>Step {n}')}</ol><form>{address}<select>{years}</select>"
        f"{each(30, lambda n: field(words(n, 3)))}<textarea></textarea>{buttons('Back', 'Next')}</form>",
        "docs page": f"<nav>{each(220, lambda n: link(n, words(n, 3), 'docs'))}</nav>"
        + each(40, lambda n: f"<h2>{words(n, 3)}</h2><p>{words(n, 120)}</p><pre>{words(n, 40)}</pre>{buttons('Copy')}"),
        "dashboard": each(24, lambda n: f"<section><h2>{words(n, 2)}</h2><svg width=99></svg>{buttons('Export')}</section>")
        + rows(80, 6, "Details"),
        "code view": f"<table>{code}</table>{buttons('Raw', 'Blame', 'Copy', 'Edit')}",
        "bank statement": f"<form>{field('IBAN')}{field('Amount', 'number')}{buttons('Transfer')}</form>"
        + rows(150, 5, "Receipt"),
        "job board": f"<aside>{filters}</aside>" + each(80, story),
        "map": each(300, lambda n: f"<div role=button tabindex=0 aria-label='{words(n, 3)}' style='position:absolute'></div>")
        + buttons("Zoom in", "Zoom out", "Directions"),
        "settings": each(
            80, lambda n: f"<fieldset><legend>{words(n, 2)}</legend><div role=switch tabindex=0 aria-checked=true "
            f"aria-label='{words(n, 4)}'></div><p>{words(n, 20)}</p></fieldset>"
        ),
        "checkout": f"<ul>{each(30, product_card)}</ul><form>{address}{field('Card number')}{field('CVC')}"
        f"<select>{years}</select>{buttons('Pay')}</form>",
        "gallery": each(300, lambda n: f"<a href=/photo/{n}><img alt='{words(n, 5)}' src=/none></a>"),
        "chat": each(200, lambda n: f"<div><b>user{n % 7}</b> <time>{n}</time><p>{words(n, 15)}</p>{buttons('React')}</div>")
        + "<div contenteditable aria-label=Message></div>",
    }  # fmt: skip
    return {kind: page(kind.capitalize(), body) for kind, body in bodies.items()}
