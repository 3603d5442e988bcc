"""The filter of system calls, run by a small machine of our own, so that it is tested for architectures that aren't here."""

import errno
import struct

import pytest
from hypothesis import given, strategies

from antiphon.tools.code_interpreter.seccomp import seccomp_filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
OWN_PID = 4321

# Source: asm/unistd_64.h and asm-generic/unistd.h.
NUMBERS = {
    "x86_64": {
        "read": 0, "socket": 41, "socketpair": 53, "clone": 56, "fork": 57, "execve": 59, "kill": 62, "fcntl": 72, "ptrace": 101,
        "chmod": 90, "prctl": 157, "mount": 165, "tgkill": 234, "unshare": 272, "prlimit64": 302, "bpf": 321, "memfd_create": 319,
        "io_uring_setup": 425, "clone3": 435, "ioctl": 16, "landlock_restrict_self": 446, "future": 900,
    },
    "aarch64": {
        "read": 63, "socket": 198, "socketpair": 199, "clone": 220, "execve": 221, "kill": 129, "fcntl": 25, "ptrace": 117,
        "chmod": 53, "prctl": 167, "mount": 40, "tgkill": 131, "unshare": 97, "prlimit64": 261, "bpf": 280, "memfd_create": 279,
        "io_uring_setup": 425, "clone3": 435, "ioctl": 29, "landlock_restrict_self": 446, "future": 900,
    },
}  # fmt: skip


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do with a call. Source: linux/seccomp.h, linux/bpf_common.h."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    call = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    instructions = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    accumulator = position = 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", call, value)
            case 0x54:
                accumulator &= value
            case 0x06:
                return value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x35:
                position += if_true if accumulator >= value else if_false
            case 0x45:
                position += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(code)


@pytest.fixture(params=ARCHITECTURES)
def machine(request):
    return request.param


@pytest.mark.parametrize(("name", "arguments", "inside", "alone", "outside"), [
    ("read", (), ALLOW, ALLOW, ALLOW),
    ("socket", (2, 1), errno.EPERM, errno.EPERM, errno.EPERM),
    ("socketpair", (1, 1), ALLOW, ALLOW, ALLOW),
    ("socketpair", (1, 0o2000001), ALLOW, ALLOW, ALLOW),
    ("socketpair", (1, 2), errno.EPERM, errno.EPERM, errno.EPERM),
    ("socketpair", (2, 1), errno.EPERM, errno.EPERM, errno.EPERM),
    ("clone", (0x003D0F00,), ALLOW, ALLOW, ALLOW),
    ("clone", (17,), ALLOW, errno.EPERM, ALLOW),
    ("clone", (0x10000011,), errno.EPERM, errno.EPERM, errno.EPERM),
    ("execve", (), ALLOW, errno.EPERM, ALLOW),
    ("kill", (OWN_PID, 9), ALLOW, ALLOW, ALLOW),
    ("kill", (1, 9), ALLOW, errno.EPERM, ALLOW),
    ("kill", (0, 9), ALLOW, errno.EPERM, ALLOW),
    ("kill", ((1 << 32) - 1, 9), ALLOW, errno.EPERM, ALLOW),
    ("tgkill", (1, 1, 9), ALLOW, errno.EPERM, ALLOW),
    ("fcntl", (0, 3), ALLOW, ALLOW, ALLOW),
    ("fcntl", (0, 8, 1), errno.EPERM, errno.EPERM, errno.EPERM),
    ("chmod", (), ALLOW, 0, ALLOW),
    ("prctl", (4,), errno.EPERM, errno.EPERM, errno.EPERM),
    ("prctl", (22,), errno.EPERM, errno.EPERM, ALLOW),
    ("landlock_restrict_self", (), errno.ENOSYS, errno.ENOSYS, ALLOW),
    ("prlimit64", (0,), ALLOW, ALLOW, ALLOW),
    ("prlimit64", (1,), errno.EPERM, errno.EPERM, errno.EPERM),
    ("ioctl", (0, 0x5412), errno.ENOTTY, errno.ENOTTY, errno.ENOTTY),
    *((name, (), *[errno.EPERM] * 3) for name in ("ptrace", "mount", "unshare", "bpf", "memfd_create", "io_uring_setup")),
    *((name, (), errno.ENOSYS, errno.ENOSYS, errno.ENOSYS) for name in ("clone3", "future")),
])  # fmt: skip
def test_a_call_is_decided_alike_on_all_architectures(machine, name, arguments, inside, alone, outside):
    number = NUMBERS[machine][name]
    filters = (
        seccomp_filter(machine),
        seccomp_filter(machine, own_pid=OWN_PID),
        seccomp_filter(machine, may_confine=True),
    )
    decisions = [decide(program, ARCHITECTURES[machine], number, *arguments) for program in filters if program is not None]
    assert decisions == [each if each == ALLOW else ERRNO | each for each in (inside, alone, outside)]


def test_another_architecture_ends_the_process(machine):
    program = seccomp_filter(machine)
    assert program is not None
    assert decide(program, 0x40000003, 11) == KILL
    assert decide(program, ARCHITECTURES[machine], 0x40000000 | 59) == KILL


@given(number=strategies.integers(0, 0xFFFFFFFF), arguments=strategies.lists(strategies.integers(0, 2**64 - 1), max_size=6))
def test_every_call_is_decided_and_one_without_a_name_is_refused(number, arguments):
    for machine, architecture in ARCHITECTURES.items():
        for own_pid in (None, OWN_PID):
            program = seccomp_filter(machine, own_pid=own_pid)
            assert program is not None
            decision = decide(program, architecture, number, *arguments)
            assert decision in (ALLOW, KILL) or decision & 0xFFFF0000 == ERRNO
            assert decision != ALLOW or number < 442


def test_an_architecture_that_is_not_known_has_no_filter():
    assert seccomp_filter("riscv64") is None
