"""One module a framework: how its own advantage functions are called. None holds a framework's arithmetic."""
