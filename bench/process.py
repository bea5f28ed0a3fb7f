"""Running other programs."""
import shlex
import subprocess


class Failure(Exception):
    """What keeps a model from being measured, in one line."""


def call(command, **options):
    """Runs a command to its end; its standard output. What it says on failing becomes a Failure."""
    words = [str(c) for c in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, **options)
    except OSError as error:
        raise Failure(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise Failure(f"{shlex.join(words[:4])}: exit {done.returncode}: {said[-1]}")
    return done.stdout
