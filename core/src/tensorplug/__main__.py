"""`python -m tensorplug`."""

from tensorplug_console import main

if __name__ == "__main__":
    main()
