"""What `fluence demo` prints, without what differs from run to run."""

import re


def timeline(text: str) -> list[str]:
    """What happens, without times, names that controllers make up, and which of equal nodes it is."""
    lines = text.partition("WHAT HAPPENS\n")[2]
    lines = re.split(r"\n\nWho is where|\n…", lines)[0]
    flat = re.sub(r"\n {18,}", " ", lines)
    flat = re.sub(r"^ *[\d.]+s  ", "", flat, flags=re.M)
    flat = re.sub(r"training-\w+-\w+", "training-#", flat)
    flat = re.sub(r"(solver-b-0|huge-0)-\w{5}", r"\1-#", flat)
    flat = re.sub(r"[a-z]{3}-\d{3}", "node", flat)
    flat = re.sub(r"\b\d\d:\d\d\b", "then", flat)
    return [" ".join(line.split()) for line in flat.splitlines()]
