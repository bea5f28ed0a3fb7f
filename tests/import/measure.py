"""Exit code, standard error and largest resident size of a command."""
import subprocess
import sys

# A process of its own: a child inherits the peak of the one that forks it.
SMALL = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def measure(command, timeout=60):
    """(exit code, standard error as text, bytes resident at most); below that of a bare Python
    interpreter, about 16 MB, the size says nothing."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", SMALL, *map(str, command)],
                          capture_output=True, text=True, timeout=timeout, check=True)
    code, kib = done.stdout.split()
    return int(code), done.stderr, int(kib) * 1024
