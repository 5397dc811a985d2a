"""What holds when processes are killed, paused and told to stop: `./dev chaos`."""
