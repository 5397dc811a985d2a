"""The browser of a session: a Chromium in a sandbox of its own, its tabs, and the state that outlives it."""
