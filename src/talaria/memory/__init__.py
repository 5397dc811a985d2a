"""Memory in files: the text of pages, and where each place has its own."""
