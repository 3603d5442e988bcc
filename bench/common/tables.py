"""
Run benchmarks and write the tables that they print into docs/reference/benchmarks.md.

    python bench/common/tables.py [NAME ...]

Each table of the page stands between a comment with its command, `<!-- python bench/queue.py -->`, and `<!-- end -->`. NAME is that of a
program, such as `queue`; without names all tables are made anew, which takes an hour. A line below each table says when and on which
machine it was measured, and how busy the machine was with other programs. What else a program prints goes to the terminal.
"""

import argparse
import datetime
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

from measuring import busy_s

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"
BLOCK = re.compile(r"^<!-- python (bench/(\w+)\.py[^\n]*) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def model_of_cpu():
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else "unknown CPU"


def children_s():
    """Seconds that the programs which this one started have used, once they have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(command):
    """The lines of the tables that a program prints, and a line on the machine."""
    began, busy, ours, load = time.monotonic(), busy_s(), children_s(), os.getloadavg()[0]
    lines, is_between = [], True
    with subprocess.Popen([sys.executable, *shlex.split(command)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("|"):
                lines += ["\n"] * (is_between and bool(lines))  # another table
                lines.append(line)
            is_between = not line.startswith("|")
    if process.returncode or not lines:
        raise SystemExit(f"{command} ended with {process.returncode} and printed {len(lines)} lines of a table.")
    others = max(0.0, busy_s() - busy - (children_s() - ours)) / (time.monotonic() - began)
    machine = f"{model_of_cpu()}, {os.cpu_count()} cores; load {load:.1f} before, other programs used {others:.1f} cores"
    return "".join(lines), f"\n*{datetime.date.today()}, {machine}.*\n"


def update(page, names, measure):
    """The text of the page with the tables of these programs made anew; all tables where no names are given."""

    def replaced(found):
        command, name, _ = found.groups()
        if names and name not in names:
            return found[0]
        table, note = measure(command)
        return f"<!-- python {command} -->\n{table}{note}\n<!-- end -->"

    return BLOCK.sub(replaced, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a program of bench/, without `.py`")
    names = parser.parse_args().names
    known = {name for _, name, _ in BLOCK.findall(PAGE.read_text())}
    if unknown := sorted({*names} - known):
        raise SystemExit(f"the page has no table of {', '.join(unknown)}. It has: {', '.join(sorted(known))}.")
    for name in names or sorted(known):  # each is kept at once: all of them take long
        PAGE.write_text(update(PAGE.read_text(), {name}, measure))


if __name__ == "__main__":
    main()
