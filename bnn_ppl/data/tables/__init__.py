"""Tables: files read, columns encoded, new rows prepared alike."""
