"""Jobs: their schedules in words and fields, which slots they owe, and what people do with them."""
