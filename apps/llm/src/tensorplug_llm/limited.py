"""Runs one function of a file as a program of its own, under limits of time and memory.

`python limited.py FILE` reads requests from its input, an object of JSON in each line, calls the
function `answer` of FILE with the object's values by name, and writes what it returns, a line each.
`tensorplug_llm.confined` starts it for what models and clients bring. It imports nothing of the
package: that would take longer than most requests.
"""

import json
import runpy
import signal
import sys

SECONDS = 2
"""Processor time that one request may take."""
MEMORY = 512 << 20
"""Bytes of address space that the process may have."""


def main() -> None:
    """Answer requests under the system's limits."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        limited = False
    else:
        limited = True
        for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
            hard = resource.getrlimit(what)[1]
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (least, least))
    # A terminal sends Ctrl-C to all its processes, and this one must answer the next request.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = runpy.run_path(sys.argv[1])["answer"]
    for line in sys.stdin:
        request = json.loads(line)
        if limited:
            # Its signal ends the process: nothing that a request does can catch it.
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found = json.dumps(answer(**request))
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{found}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
