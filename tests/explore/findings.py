"""What a search has tried and found, over all its rounds; and how that is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class Ran(msgspec.Struct, frozen=True):
    """One test in one round."""

    test: str
    examples: int
    seconds: float
    failure: str = ""  # pytest's account of it, with Hypothesis' shortest example; empty: it passed
    where: str = ""  # the line that raised, and what


class Round(msgspec.Struct, frozen=True):
    """One run of pytest on one module."""

    module: str
    seed: int
    hash_seed: int

    def command(self, test: str) -> str:
        """How to see the same once more."""
        return (
            f"PYTHONHASHSEED={self.hash_seed} FLUENCE_SEED={self.seed} FLUENCE_HYPOTHESIS=explore "
            f".venv/bin/pytest -n 0 --hypothesis-seed={self.seed} '{test}'"
        )


class Failure(msgspec.Struct):
    """A test that failed in one way, in one or more rounds; with the shortest account of it."""

    test: str
    where: str
    account: str
    command: str
    rounds: int = 1


class Tried(msgspec.Struct):
    """What was tried of one test."""

    rounds: int = 0
    examples: int = 0
    seconds: float = 0.0
    seeds: list[int] = msgspec.field(default_factory=list)


@dataclass
class Findings:
    """The sum of all rounds."""

    tests: dict[str, Tried] = field(default_factory=dict)
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def add(self, round_: Round, ran: Ran) -> Failure | None:
        """Take one result in; answers the failure, if nobody has seen it before."""
        tried = self.tests.setdefault(ran.test, Tried())
        tried.rounds += 1
        tried.examples += ran.examples
        tried.seconds = round(tried.seconds + ran.seconds, 3)
        tried.seeds.append(round_.seed)
        if not ran.failure:
            return None
        account, key = shortened(ran.failure), (ran.test, ran.where)
        known = self.failures.get(key)
        if known is None:
            found = self.failures[key] = Failure(ran.test, ran.where, account, round_.command(ran.test))
            return found
        known.rounds += 1
        if len(account) < len(known.account):
            known.account, known.command = account, round_.command(ran.test)
        return None

    @property
    def examples(self) -> int:
        return sum(each.examples for each in self.tests.values())

    def summary(self, seconds: float) -> str:
        """One line for the end."""
        minutes, rest = divmod(int(seconds), 60)
        rounds = sum(each.rounds for each in self.tests.values())
        failed = len(self.failures)
        return (
            f"{len(self.tests)} tests, {rounds} runs, {self.examples:,} examples in {minutes}:{rest:02}: "
            + (f"{failed} failure{'s' if failed > 1 else ''}" if failed else "no counterexample")
        )

    def report(self, seconds: float) -> bytes:
        """All of it, as JSON for people."""
        found = {
            "summary": self.summary(seconds),
            "failures": list(self.failures.values()),
            "tests": dict(sorted(self.tests.items())),
        }
        return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def shortened(failure: str) -> str:
    """The error and the example of pytest's account of a failure: the lines that pytest marks with E. All of
    it where there are none."""
    lines = [line[4:] for line in failure.splitlines() if line.startswith(("E   ", "E\t"))]
    return "\n".join(lines) or failure.strip()
