"""What holds when processes are killed, paused and given_up to stop: `./dev chaos`."""
