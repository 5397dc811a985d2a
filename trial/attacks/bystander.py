"""A client that chats while others attack: `python -m trial.attacks.bystander URL TOKEN [CHATS]`.

It runs in a process of its own, so that the attackers' work does not count as the gateway's. For each turn it
prints a line: when the turn began (CLOCK_MONOTONIC), how many seconds it took, and its state.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp

CHATS = 2
CALM = "calm"  # the provider of the bystanders of attacks, whose server no attack uses
_PAUSE = 0.01
_TURNS_PER_SESSION = 200


async def chat(client: aiohttp.ClientSession, url: str, name: str, model: str) -> None:
    turns = 0
    while True:
        turns += 1
        text = "/new" if turns % _TURNS_PER_SESSION == 0 else "hello"
        message = {"text": text} | ({"model": model} if model else {})
        begin = time.monotonic()
        try:
            async with client.post(f"{url}/api/sessions/{name}/messages?wait=60", json=message) as answer:
                state = (await answer.json()).get("state", str(answer.status))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            state = type(error).__name__
        sys.stdout.write(f"{begin:.6f} {time.monotonic() - begin:.6f} {state}\n")
        sys.stdout.flush()
        await asyncio.sleep(_PAUSE)


async def main(url: str, token: str, chats: str = str(CHATS), model: str = "") -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as client:
        await asyncio.gather(*(chat(client, url, f"bystander{n}", model) for n in range(int(chats))))


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
