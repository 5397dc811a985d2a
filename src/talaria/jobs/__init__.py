"""Jobs: schedules, what people do with jobs, and the scheduler that runs them."""
