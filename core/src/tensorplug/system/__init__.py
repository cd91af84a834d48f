"""What the operating system gives: forks, files written whole, and a cache of files."""
