"""Compare `fluence resource-query` with a real Fluxion on random sessions: `make compare AGAINST=PROGRAM`.

Each session that is answered differently is made as small as possible and printed with the commands that
show the difference, in a folder that is kept. What docs/matcher.md lists as a difference is for the reader to
recognise. The exit code is 0 if all sessions are equal.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import sys
import tempfile
from pathlib import Path

from tests.conformance.generate import generate
from tests.conformance.sessions import QuerySession, Run, difference, program, smallest


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", required=True, help="the resource-query of a Fluxion, with its arguments"
    )
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first session")
    parser.add_argument("--keep", type=Path, help="where differing sessions are written; a new folder")
    options = parser.parse_args()
    theirs = program(shlex.split(options.against))
    keep = options.keep or Path(tempfile.mkdtemp(prefix="fluence-compare-"))
    differing = 0
    for seed in range(options.seed, options.seed + options.sessions):
        with tempfile.TemporaryDirectory() as scratch:
            session = generate(seed, Path(scratch))
            if not _compare(session, theirs, seed, keep):
                differing += 1
                print(f"{seed - options.seed + 1} sessions, {differing} differ", flush=True)
    print(f"{options.sessions} sessions, {options.sessions - differing} equal")
    return 1 if differing else 0


def _compare(session: QuerySession, theirs: Run, seed: int, keep: Path) -> bool:
    if difference(session, theirs) is None:
        return True
    small = smallest(session, theirs)
    found = difference(small, theirs)
    assert found is not None
    folder = keep / str(seed)
    folder.mkdir(parents=True)
    for name in {word for line in (" ".join(small.arguments), *small.lines) for word in line.split()}:
        if (path := session.folder / name).is_file():
            (folder / name).write_text(path.read_text())
    (folder / "commands").write_text("\n".join((*small.lines, "quit\n")))
    arguments = [argument for argument in small.arguments if argument not in ("-t", "OUT")]
    print(f"--- seed {seed}: cd {folder} && PROGRAM {shlex.join(arguments)} -d < commands")
    for line in small.lines:
        print(f"    {line}")
        for word in line.split():
            if word.startswith("job-"):
                spec = json.loads((session.folder / word).read_text())
                print(f"        {json.dumps(spec['resources'])} {json.dumps(spec['attributes']['system'])}")
    shown = difflib.unified_diff(found.theirs, found.ours, "theirs", "ours", lineterm="", n=2)
    print("\n".join(line[:400] for line in list(shown)[:40]), flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
