"""What keeps a program from everything but its own folder: three kernel mechanisms, no privileges needed.

* resource limits: processor time, address space, size of a file, open files, processes;
* Landlock: only the standard library and shared libraries can be read, only the program's folder can be
  written; ``/proc`` and so the environment of other processes is out of reach;
* seccomp: no new process or thread, no other program, no socket, no signal to anybody, no other process
  group, no change of modes or owners.

A process without sockets needs no network namespace, one that can't start others none of processes: so
kernels that forbid user namespaces to users will do.

Used by the child on itself, before it looks at the program. Only the standard library; Linux on x86-64 and
arm64. A kernel without seccomp is refused, one without Landlock, too, unless the order says otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Iterable, Mapping

LANDLOCK_ABI = 3
"""The first that guards truncation as well (Linux 6.2)."""


class ConfinementError(Exception):
    """This kernel can't confine a program; the message says what it lacks."""


def confine(folder: str, limits: Mapping[str, int]) -> None:
    """Confine this process to ``folder``, for good. It must have one thread.

    limits: ``cpu_s``, ``memory_bytes``, ``file_bytes``, ``open_files``, and ``require_landlock``: 0 goes on
        without Landlock where the kernel has none; files are then guarded by their owners and modes alone.

    Raises:
        ConfinementError: the kernel refused; the process must not go on to run anything.
    """
    system, *_, machine = os.uname()
    if system != "Linux" or machine not in _SYSTEM_CALLS:
        raise ConfinementError(
            f"programs are confined on Linux on {' and '.join(_SYSTEM_CALLS)} only, "
            f"this is {system} on {machine}"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    # SIGXCPU first: it says which limit it was. It can be ignored, the SIGKILL a second later can't.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
    for which, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(which, (most, most))
    _done(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    if limits["require_landlock"] or _landlock_abi(libc) >= LANDLOCK_ABI:
        _restrict_files(libc, folder)
    _restrict_calls(libc, machine)


def _done(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise ConfinementError(f"{what} was refused: {os.strerror(number)}")
    return answer


_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9

# --- files: Landlock ----------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_EVERYTHING = (1 << 15) - 1
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _READ_FILE | _READ_DIR | _EXECUTE

_LIBRARIES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/urandom",
)


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _landlock_abi(libc: ctypes.CDLL) -> int:
    return libc.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION)


def _restrict_files(libc: ctypes.CDLL, folder: str) -> None:
    abi = _landlock_abi(libc)
    if abi < LANDLOCK_ABI:
        has = f"has its ABI {abi}" if abi > 0 else "has none, or it is turned off"
        raise ConfinementError(
            f"Landlock, ABI {LANDLOCK_ABI} or later, is needed (Linux 6.2); this kernel {has}"
        )
    handled = _Ruleset(handled_access_fs=_EVERYTHING)
    rules = _done(
        libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0),
        "landlock_create_ruleset",
    )
    for path in (*sys.path, f"{sys.base_prefix}/lib", *_LIBRARIES):
        _allow(libc, rules, path, _READ)
    _allow(libc, rules, os.devnull, _READ_FILE | _WRITE_FILE)
    _allow(libc, rules, folder, _EVERYTHING)
    _done(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # not every system has every place
    if not os.path.isdir(path):
        rights &= _FILE_RIGHTS
    rule = _PathBeneath(allowed_access=rights, parent_fd=place)
    _done(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0), "landlock_add_rule")
    os.close(place)


# --- system calls: seccomp ----------------------------------------------------------------

_SYSTEM_CALLS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            **{"fork": 57, "vfork": 58, "clone": 56, "clone3": 435, "execve": 59, "execveat": 322},
            **{"socket": 41, "io_uring_setup": 425},
            **{"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
            **{"pidfd_open": 434, "pidfd_send_signal": 424, "ptrace": 101, "prlimit64": 302},
            **{
                "process_vm_readv": 310,
                "process_vm_writev": 311,
                "setpriority": 141,
                "sched_setaffinity": 203,
            },
            **{
                "setpgid": 109,
                "setsid": 112,
                "unshare": 272,
                "setns": 308,
                "mount": 165,
                "umount2": 166,
                "bpf": 321,
                "perf_event_open": 298,
            },
            **{"add_key": 248, "request_key": 249, "keyctl": 250},
            **{"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319},
            **{"chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452},
            **{"chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260},
            **{"utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280},
            **{"setxattr": 188, "lsetxattr": 189, "fsetxattr": 190},
            **{"removexattr": 197, "lremovexattr": 198, "fremovexattr": 199},
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            **{"clone": 220, "clone3": 435, "execve": 221, "execveat": 281},
            **{"socket": 198, "io_uring_setup": 425},
            **{"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
            **{"pidfd_open": 434, "pidfd_send_signal": 424, "ptrace": 117, "prlimit64": 261},
            **{
                "process_vm_readv": 270,
                "process_vm_writev": 271,
                "setpriority": 140,
                "sched_setaffinity": 122,
            },
            **{"setpgid": 154, "setsid": 157},
            **{"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "bpf": 280, "perf_event_open": 241},
            **{"add_key": 217, "request_key": 218, "keyctl": 219},
            **{"shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279},
            **{"fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "utimensat": 88},
            **{"setxattr": 5, "lsetxattr": 6, "fsetxattr": 7},
            **{"removexattr": 14, "lremovexattr": 15, "fremovexattr": 16},
        },
    ),
}
"""Machine → its audit number, and the numbers of the system calls that are refused (EPERM)."""

_X32 = 0x4000_0000
"""Set in the numbers of x86-64's second ABI, under which every call has another number."""

_SECCOMP_MODE_FILTER = 2
_LOAD, _IF_EQUAL, _IF_NOT_BELOW, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_ALLOW, _REFUSE, _KILL = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x8000_0000


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def _restrict_calls(libc: ctypes.CDLL, machine: str) -> None:
    audit_number, refused = _SYSTEM_CALLS[machine]
    instructions = list(_filter(audit_number, sorted(refused.values())))
    array = (_Instruction * len(instructions))(*instructions)
    program = _Program(length=len(instructions), instructions=array)
    _done(
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
        "prctl(PR_SET_SECCOMP)",
    )


def _filter(machine: int, refused: list[int]) -> Iterable[_Instruction]:
    """Kill on another machine's calls, refuse those listed and those of x32, allow the rest."""
    yield _Instruction(_LOAD, 0, 0, _MACHINE_AT)
    yield _Instruction(_IF_EQUAL, 1, 0, machine)
    yield _Instruction(_RETURN, 0, 0, _KILL)
    yield _Instruction(_LOAD, 0, 0, _NUMBER_AT)
    yield _Instruction(_IF_NOT_BELOW, len(refused) + 1, 0, _X32)
    for place, number in enumerate(refused):
        yield _Instruction(_IF_EQUAL, len(refused) - place, 0, number)
    yield _Instruction(_RETURN, 0, 0, _ALLOW)
    yield _Instruction(_RETURN, 0, 0, _REFUSE)
