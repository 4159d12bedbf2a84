"""One module a framework: `write(folder)` calls the framework's own writer and returns what it called, by subfolder."""
