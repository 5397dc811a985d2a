"""The words of a request, read without a model: a picture is meant, a file is named, a text is wanted.

The built-in models take "write a poem" for a file to be written. So these few kinds of words are looked for
by the program, in the languages that the models speak best.
"""

from __future__ import annotations

import re
from functools import cache

from talaria.models.local.local_chat import UNSEEN

_MOST_READ = 700  # characters from the beginning of a request
_PICTURE = re.compile(  # one that the person points at
    r"\b(?:this|attached|dies\w*|angehängte\w*|cette|est[ae]|questa)\s(?:picture|pic|photo|image|screenshot|selfie"
    r"|bild|foto|imagen|immagine)\b",
    re.IGNORECASE,
)
_FILE = re.compile(
    r"\w\.[a-z]\w{0,4}\b|file|folder|\b(?:save|store|download)|datei|ordner|speicher|fichier|dossier|enregistr"
    r"|archivo|carpeta|guarda",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w./@-])[\w-]{1,60}\.[a-z]{2,4}\b(?![\w/@-]|\.\w)")
_MAKE = (
    r"write|make|create|compose|draft|generate|invent|give|tell|schreib\w*|verfass\w*|dichte|erfinde|erstell\w*"
    r"|mach\w*|écri\w*|ecri\w*|rédige\w*|invente\w*|fais|escrib\w*|redacta\w*|inventa\w*|haz|scrivi\w*|crea"
)
_FOR = r"(?:up|me|us|mir|uns|moi|nous)"
_SOME = (
    r"(?:an?|some|another|one|two|three|four|five|six|seven|eight|nine|ten|\d{1,3}|eine?n?|une?|una|uno"
    r"|zwei|drei|deux|trois|dos|tres)"
)
_INVENTED = (
    r"poems?|haikus?|limericks?|sonnets?|ballads?|verses?|rhymes?|songs?|lyrics|stor(?:y|ies)|tales?|fables?"
    r"|jokes?|riddles?|letters?|e-?mails?|messages?|greetings?|invitations?|speech(?:es)?|toasts?|essays?"
    r"|dialogues?|slogans?|lullab(?:y|ies)"
    r"|gedichte?|reime?|lied(?:er)?|geschichten?|märchen|witze?|rätsel|briefe?|nachricht|rede"
    r"|poèmes?|chansons?|histoires?|contes?|blagues?|lettres?|discours|poemas?|canci(?:ón|ones)|cuentos?"
    r"|historias?|chistes?|cartas?|discurso|poesi[ae]|storia|lettera"
)
_OTHER = (
    r"articles?|paragraphs?|sentences?|texts?|words?|names?|ideas?|tips?|examples?|lists?|tables?|recipes?"
    r"|plans?|menus?|descriptions?|functions?|scripts?|programs?|code|class(?:es)?|quer(?:y|ies)|regex\w*"
    r"|loops?|snippets?"
    r"|aufsatz|absatz|sätze?|satz|namen|ideen|beispiele?|listen?|tabelle|rezepte?|funktion|skript"
    r"|phrases?|noms|listes?|recettes?|fonctions?|frases?|listas?|recetas?|funci(?:ón|ones)|ricetta"
)
# "Write me a short poem", not "write down my poem": a text that there is has to be looked up.
_WANTED = (
    rf"\b(?:{_MAKE})(?:\s{_FOR})*\s{_SOME}\s(?:[\w'-]{{1,30}}\s){{0,4}}?"
    rf"(?:(?P<invented>{_INVENTED})|{_OTHER})\b"
)


def asks_to_see(text: str) -> bool:
    """Return whether a request is about a picture: one that came with it, or one that did not."""
    return UNSEEN in text or _PICTURE.search(text) is not None


def names_file(text: str) -> bool:
    """Return whether a request has the name of a file, or a word for files."""
    return _FILE.search(text) is not None


def file_names(text: str) -> list[str]:
    """Return the names of files in a request, each once."""
    return list(dict.fromkeys(_NAME.findall(text[:_MOST_READ])))


def asks_for_text(text: str) -> bool:
    """Return whether a request wants a text or code as its answer, and names no file for it."""
    return _find_wanted(text) is not None


def asks_to_invent(text: str) -> bool:
    """Return whether the wanted text is free invention, such as a poem or a letter: it has no facts."""
    return (found := _find_wanted(text)) is not None and found["invented"] is not None


def _find_wanted(text: str) -> re.Match[str] | None:
    return None if names_file(text) else _wanted().search(" ".join(text[:_MOST_READ].split()))


@cache
def _wanted() -> re.Pattern[str]:
    """Compiled on first use: it takes ten milliseconds, and few gateways run a built-in model."""
    return re.compile(_WANTED, re.IGNORECASE)
