"""Commands in a sandbox: the port, its backends, and the canary that proves them."""
