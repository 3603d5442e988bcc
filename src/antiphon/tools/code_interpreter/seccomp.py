"""
A seccomp filter: the system calls that code may make, as a BPF program.

What is not listed is refused: no socket of any family but pairs of connected ones, no namespaces, mounts, ptrace, keys, bpf, perf,
io_uring, memfd, userfaultfd, System V memory, splice, and whatever later kernels bring.
Numbers differ by architecture. Source: asm/unistd_64.h and asm-generic/unistd.h of Linux; seccomp(2).
"""

import errno
import struct
from collections.abc import Mapping, Sequence

_ALLOWED = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat close close_range lseek
    stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64 dup
    dup2 dup3 pipe pipe2 flock ftruncate fallocate fadvise64 fsync fdatasync sendfile mkdir mkdirat
    rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat
    getcwd chdir fchdir umask statfs fstatfs mmap mprotect munmap mremap brk
    madvise msync mincore membarrier rseq exit exit_group wait4 waitid getpid getppid gettid getpgrp getpgid
    getsid setsid setpgid getuid geteuid getgid getegid getresuid getresgid getgroups sched_yield
    sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
    getpriority set_tid_address set_robust_list get_robust_list futex arch_prctl rt_sigaction rt_sigprocmask
    rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack pause alarm setitimer getitimer eventfd
    eventfd2 timerfd_create timerfd_settime timerfd_gettime epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait epoll_pwait2 poll ppoll select pselect6 clock_gettime clock_getres clock_nanosleep nanosleep
    gettimeofday time times getrusage getrlimit sysinfo uname getcpu getrandom sendto recvfrom shutdown
    getsockopt getsockname getpeername restart_syscall
""".split()

_PROCESS_CALLS = ["fork", "vfork", "execve"]
_CONFINING_CALLS = ["capset", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
_ATTRIBUTE_CALLS = "chmod fchmod fchmodat utimensat utime utimes futimesat truncate".split()
_XATTR_CALLS = "listxattr llistxattr flistxattr getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr".split()


def _numbers(table: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (each.partition("=") for each in table.split())}


_X86_64 = _numbers(
    """
    read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 preadv2=327 pwritev2=328
    open=2 openat=257 close=3 close_range=436 lseek=8 stat=4 fstat=5 lstat=6 newfstatat=262 statx=332 access=21
    faccessat=269 faccessat2=439 readlink=89 readlinkat=267 getdents=78 getdents64=217 dup=32 dup2=33 dup3=292
    pipe=22 pipe2=293 flock=73 ftruncate=77 truncate=76 fallocate=285 fadvise64=221 fsync=74 fdatasync=75
    sendfile=40 mkdir=83 mkdirat=258 rmdir=84 unlink=87 unlinkat=263 rename=82 renameat=264 renameat2=316
    link=86 linkat=265 symlink=88 symlinkat=266 chmod=90 fchmod=91 fchmodat=268 utimensat=280 utime=132
    utimes=235 futimesat=261 getcwd=79 chdir=80 fchdir=81 umask=95 statfs=137 fstatfs=138 mmap=9 mprotect=10
    munmap=11 mremap=25 brk=12 madvise=28 msync=26 mincore=27 membarrier=324 rseq=334 exit=60 exit_group=231
    wait4=61 waitid=247 getpid=39 getppid=110 gettid=186 getpgrp=111 getpgid=121 getsid=124 setsid=112
    setpgid=109 getuid=102 geteuid=107 getgid=104 getegid=108 getresuid=118 getresgid=120 getgroups=115
    sched_yield=24 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 sched_get_priority_max=146
    sched_get_priority_min=147 getpriority=140 set_tid_address=218 set_robust_list=273 get_robust_list=274
    futex=202 arch_prctl=158 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127
    rt_sigsuspend=130 rt_sigtimedwait=128 sigaltstack=131 pause=34 alarm=37 setitimer=38 getitimer=36
    eventfd=284 eventfd2=290 timerfd_create=283 timerfd_settime=286 timerfd_gettime=287 epoll_create=213
    epoll_create1=291 epoll_ctl=233 epoll_wait=232 epoll_pwait=281 epoll_pwait2=441 poll=7 ppoll=271 select=23
    pselect6=270 clock_gettime=228 clock_getres=229 clock_nanosleep=230 nanosleep=35 gettimeofday=96 time=201
    times=100 getrusage=98 getrlimit=97 sysinfo=99 uname=63 getcpu=309 getrandom=318 sendto=44 recvfrom=45
    shutdown=48 getsockopt=55 getsockname=51 getpeername=52 restart_syscall=219 clone=56 fork=57 vfork=58
    execve=59 prctl=157 ioctl=16 socketpair=53 kill=62 tgkill=234 prlimit64=302 fcntl=72
    capset=126 landlock_create_ruleset=444 landlock_add_rule=445 landlock_restrict_self=446 listxattr=194 llistxattr=195
    flistxattr=196 getxattr=191 lgetxattr=192 fgetxattr=193 setxattr=188 lsetxattr=189 fsetxattr=190
    """
)
_AARCH64 = _numbers(
    """
    read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 preadv2=286 pwritev2=287
    openat=56 close=57 close_range=436 lseek=62 fstat=80 newfstatat=79 statx=291 faccessat=48 faccessat2=439
    readlinkat=78 getdents64=61 dup=23 dup3=24 pipe2=59 flock=32 ftruncate=46 truncate=45 fallocate=47
    fadvise64=223 fsync=82 fdatasync=83 sendfile=71 mkdirat=34 unlinkat=35 renameat=38 renameat2=276 linkat=37
    symlinkat=36 fchmod=52 fchmodat=53 utimensat=88 getcwd=17 chdir=49 fchdir=50 umask=166 statfs=43 fstatfs=44
    mmap=222 mprotect=226 munmap=215 mremap=216 brk=214 madvise=233 msync=227 mincore=232 membarrier=283
    rseq=293 exit=93 exit_group=94 wait4=260 waitid=95 getpid=172 getppid=173 gettid=178 getpgid=155 getsid=156
    setsid=157 setpgid=154 getuid=174 geteuid=175 getgid=176 getegid=177 getresuid=148 getresgid=150
    getgroups=158 sched_yield=124 sched_getaffinity=123 sched_getparam=121 sched_getscheduler=120
    sched_get_priority_max=125 sched_get_priority_min=126 getpriority=141 set_tid_address=96 set_robust_list=99
    get_robust_list=100 futex=98 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136
    rt_sigsuspend=133 rt_sigtimedwait=137 sigaltstack=132 setitimer=103 getitimer=102 eventfd2=19
    timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 epoll_create1=20 epoll_ctl=21 epoll_pwait=22
    epoll_pwait2=441 ppoll=73 pselect6=72 clock_gettime=113 clock_getres=114 clock_nanosleep=115 nanosleep=101
    gettimeofday=169 times=153 getrusage=165 getrlimit=163 sysinfo=179 uname=160 getcpu=168 getrandom=278
    sendto=206 recvfrom=207 shutdown=210 getsockopt=209 getsockname=204 getpeername=205 restart_syscall=128
    clone=220 execve=221 prctl=167 ioctl=29 socketpair=199 kill=129 tgkill=131 prlimit64=261 fcntl=25
    capset=91 landlock_create_ruleset=444 landlock_add_rule=445 landlock_restrict_self=446 listxattr=11 llistxattr=12
    flistxattr=13 getxattr=8 lgetxattr=9 fgetxattr=10 setxattr=5 lsetxattr=6 fsetxattr=7
    """
)

_TABLES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
_X32_BIT = 0x40000000

_NEW_CALLS = 435
"""`clone3` and all that came after it: libraries that find them missing (ENOSYS) use what was there before."""

_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW*
_THREAD_FLAG = 0x00010000  # CLONE_THREAD

_PRCTL_OPTIONS = (3, 15, 16, 38, 39, 0x53564D41)  # GET_DUMPABLE, SET_NAME, GET_NAME, SET_ and GET_NO_NEW_PRIVS, SET_VMA
_CONFINING_PRCTL_OPTIONS = (1, 22, 24)  # SET_PDEATHSIG, SET_SECCOMP, CAPBSET_DROP
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)  # none that sets who gets a signal (F_SETOWN), a lease or seals
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _FIRST_ARGUMENT_OFFSET = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

_Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str, *, own_pid: int | None = None, may_confine: bool = False) -> bytes | None:
    """
    The filter for code, as an array of `struct sock_filter`.

    Args:
        machine: as `platform.machine()` has it.
        own_pid: of a process without a PID namespace of its own: it may make threads but no processes, and signal itself
            alone. None for one that has a namespace.
        may_confine: let the process restrict itself further, with Landlock and another filter.

    Returns:
        None for an architecture whose numbers are not known.
    """
    if (table := _TABLES.get(machine)) is None:
        return None
    architecture, numbers = table
    # seccomp(2): the architecture first, as the numbers are those of one only.
    program: list[_Instruction] = [(_LOAD, 0, 0, _ARCH_OFFSET), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    # seccomp(2): calls of the x32 ABI come with the architecture of x86-64, and have this bit in their numbers.
    program += [(_LOAD, 0, 0, _NUMBER_OFFSET), (_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    own_calls = _PROCESS_CALLS + _ATTRIBUTE_CALLS if own_pid is None else []
    calls = [*_ALLOWED, *own_calls, *(_CONFINING_CALLS if may_confine else [])]
    for name in calls:
        if name in numbers:
            program += [(_JUMP_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ALLOW)]
    for name, check in _checks(own_pid, may_confine).items():
        # The check ends the program, so the number need not be loaded again after it.
        program += [(_JUMP_EQUAL, 0, len(check), numbers[name]), *check]
    if own_pid is not None:
        # Landlock lets a path that may not be read still be changed so, and without a mount namespace it may be the
        # server's. These calls do nothing and say that they did, as programs that copy files take no refusal.
        for name in _ATTRIBUTE_CALLS:
            if name in numbers:
                program += [(_JUMP_EQUAL, 0, 1, numbers[name]), _refuse(0)]
    for name in _XATTR_CALLS:  # shutil copies without them where the file system has none, and fails where they are refused
        program += [(_JUMP_EQUAL, 0, 1, numbers[name]), _refuse(errno.ENOTSUP)]
    program += [(_JUMP_AT_LEAST, 0, 1, _NEW_CALLS), _refuse(errno.ENOSYS), _refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _checks(own_pid: int | None, may_confine: bool) -> Mapping[str, Sequence[_Instruction]]:
    options = (*_PRCTL_OPTIONS, *_CONFINING_PRCTL_OPTIONS) if may_confine else _PRCTL_OPTIONS
    pair = [
        *[_load(0), (_JUMP_EQUAL, 1, 0, _AF_UNIX), _refuse(errno.EPERM)],
        *[_load(1), (_AND, 0, 0, _SOCK_TYPE_MASK), (_JUMP_EQUAL, 0, 1, _SOCK_STREAM), (_RETURN, 0, 0, _ALLOW), _refuse(errno.EPERM)],
    ]  # a datagram socket could still send to any address
    checks: dict[str, Sequence[_Instruction]] = {
        "clone": _check_clone(may_fork=own_pid is None),
        "prctl": _one_of(0, options, errno.EPERM),
        "ioctl": _one_of(1, _IOCTL_REQUESTS, errno.ENOTTY),
        "fcntl": _one_of(1, _FCNTL_COMMANDS, errno.EPERM),
        "prlimit64": _one_of(0, (0,), errno.EPERM),  # the caller's own limits alone
        "socketpair": pair,
    }
    for name in ("kill", "tgkill"):
        checks[name] = [(_RETURN, 0, 0, _ALLOW)] if own_pid is None else _one_of(0, (own_pid,), errno.EPERM)
    return checks


def _check_clone(*, may_fork: bool) -> Sequence[_Instruction]:
    check = [_load(0), (_JUMP_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), _refuse(errno.EPERM)]
    if not may_fork:
        check += [(_JUMP_ANY_BIT, 1, 0, _THREAD_FLAG), _refuse(errno.EPERM)]
    return [*check, (_RETURN, 0, 0, _ALLOW)]


def _one_of(argument: int, values: Sequence[int], error: int) -> list[_Instruction]:
    allows = [each for value in values for each in ((_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [_load(argument), *allows, _refuse(error)]


def _load(argument: int) -> _Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET + 8 * argument)  # The lower half, as all arguments that are compared are of the type int.


def _refuse(error: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)
