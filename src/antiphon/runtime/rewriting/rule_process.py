"""
The process that applies rules.

A regular expression can take longer than the universe lasts, and Python runs it in one call that no other thread of its
process interrupts. So it runs in a process of its own, which is killed when it takes too long.

Standard input is a socket: one line of JSON for each text, and one for each answer.
"""

import functools
import json
import re
import resource
import sys
from typing import Any

from antiphon.runtime.rewriting.replacements import Replacement, TextTooLong, apply_rules
from antiphon.subprocesses import end_with_parent, take_parent_socket

MEMORY_BYTES = 1 << 30
"""More than any rule needs. A replacement that grows a text without end exhausts this process, and not the machine."""


@functools.lru_cache(maxsize=4096)
def _rule(pattern: str, template: str, ignore_case: bool) -> Replacement:
    return Replacement(re.compile(pattern, re.IGNORECASE if ignore_case else 0), template)


def answer(line: bytes) -> dict[str, Any]:
    """The answer to one line: `text` and `edits`, or `error`."""
    request = json.loads(line)
    rules = [_rule(*rule) for rule in request["rules"]]
    try:
        text, edits = apply_rules(request["text"], rules, request["skip_code"], request["max_chars"])
    except TextTooLong:
        return {"error": "it made the text too long"}
    return {"text": text, "edits": edits}


def main() -> None:
    """Answer until the server is gone."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with take_parent_socket() as link, link.makefile("rb") as lines:
        for line in lines:
            link.sendall(json.dumps(answer(line)).encode() + b"\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
