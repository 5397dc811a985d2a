"""Search ranking: the order of hits in a fixed corpus, for queries that each use other features."""

from __future__ import annotations

from pathlib import Path

from contracts.store_orders import new_clock
from golden.golden_files import Golden
from support.search_world import SearchWorld, said
from talaria.core.access import EVERYTHING
from talaria.core.messages import AssistantMessage
from talaria.store.in_memory import MemoryStore

DAY = 86_400.0
# One session per paragraph. Ada speaks first, then the agent, and so on.
CORPUS = """\
My sister moved to Lisbon last spring.
How nice! Does she like Lisbon?
She likes the light there.
When did she move?
On 3 April, with her dog.

We need a new roof before winter.
What does the roof cost?
The offer says 12,000 for the roof.
Is the garage roof included?
No, the garage is not part of the offer.

Remind me of the dentist on Friday.
At what time is the dentist?
At ten in the morning.

The build fails with error E1234.
Which step fails?
The linker step; the log says E1234 again.
E1234 means that a library is missing.
Installing libfoo fixed the build.

I want to learn the cello.
A cello teacher in Lisbon is expensive.
My sister plays the cello too.

Plan a trip to Porto and Lisbon.
How many days in each city?
Two days in Porto, three in Lisbon.
Porto has the bridge; Lisbon has the trams.
Book the train from Porto to Lisbon.

The dog is ill.
What does the vet say?
The vet says it is the food.
Change the dog food, then.

What is in the roof box of the car?
Skis, and the dog blanket.
Put the cello there too?
"""
QUERIES = (
    "Lisbon", "sister", "Where does the sister live?", "When did she move?", "roof", "roof offer cost",
    "What does the roof cost?", '"garage roof"', "dentist friday time", "E1234", "error build library",
    "cello", "cello teacher", "Porto Lisbon train", "days in Porto", "dog", "dog food", "vet",
    "what did Ada say about the cello", "January roof", "April", "skis car",
)  # fmt: skip


async def test_the_order_of_hits(tmp_path: Path, golden: Golden) -> None:
    clock = new_clock()
    store = MemoryStore(clock)
    world = SearchWorld(store, tmp_path, clock)
    names = {}
    for number, paragraph in enumerate(CORPUS.strip().split("\n\n"), 1):
        lines = paragraph.splitlines()
        bodies = [said(text, "Ada") if n % 2 == 0 else AssistantMessage(text) for n, text in enumerate(lines)]
        names[await world.talk(*bodies)] = number
        clock.advance(DAY)
    told = []
    for query in QUERIES:
        page = await world.index.search(query, EVERYTHING)
        hits = [f"  {names[hit.session_id]}.{hit.seq} {hit.excerpt}" for hit in page.hits]
        told += [f"? {query}", *hits]
    await world.close()
    await store.close()
    golden.check("search-ranking.txt", "\n".join(told) + "\n")
