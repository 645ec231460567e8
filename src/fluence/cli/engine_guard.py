"""Engine guard: runs a program that cannot outlive the process that started it, not even after `kill -9`.

    python -I -S engine_guard.py PIPE FOLDER PROGRAM ARGUMENTS…

The process that starts it keeps the other end of the pipe open. A watcher, in the session of the program,
reads the pipe. Its end comes when the process at the other end is gone: the watcher then removes the folder
and kills the session, with everything that the program has started. Fluxion's resource-query needs it: at
the end of its input it asks for the next line again and again, which takes a whole processor.

It runs as a file, with the standard library alone, because a process with threads must not fork.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    pipe, folder, *command = sys.argv[1:]
    if os.fork() == 0:
        _watch(int(pipe), folder)
    os.close(int(pipe))
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def _watch(pipe: int, folder: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # those of the program must end with it
        os.dup2(null, stream)
    os.read(pipe, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
