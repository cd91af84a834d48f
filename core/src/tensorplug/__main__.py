"""`python -m tensorplug`."""

from tensorplug.cli import main

if __name__ == "__main__":
    main()
