"""Skills: folders with instructions that people add, and which of them count."""
