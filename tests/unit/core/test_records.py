"""Audit records as the kernel writes them, and as nobody would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.records import (
    CONFIG_CHANGE,
    LANDLOCK_ACCESS,
    LANDLOCK_DOMAIN,
    SECCOMP,
    SYSCALL,
    Access,
    Call,
    DomainEnded,
    DomainMade,
    LayerAdded,
    Reconfigured,
    event_of,
    is_noise,
    names_folder,
    operation_of,
    parse_record,
)

HEAD = "audit(1796034871.145:4): "


def kernel_string(raw: bytes) -> str:
    """Spell a string from outside as audit_log_untrustedstring() does."""
    if any(byte < 0x21 or byte > 0x7E or byte == 0x22 for byte in raw):
        return raw.hex().upper()
    return f'"{raw.decode()}"'


@pytest.mark.parametrize(
    ("kind", "text", "record"),
    [
        (
            LANDLOCK_ACCESS,
            'domain=109e527fd blockers=fs.make_reg path="/etc" dev="vda" ino=19',
            Access(4, 0x109E527FD, ("fs.make_reg",), "/etc"),
        ),
        (
            LANDLOCK_ACCESS,
            'domain=1a blockers=fs.remove_file,fs.refer path="/opt" dev="vda" ino=2',
            Access(4, 0x1A, ("fs.remove_file", "fs.refer"), "/opt"),
        ),
        (
            LANDLOCK_ACCESS,
            'domain=1a blockers=scope.signal opid=1 ocomm="systemd"',
            Access(4, 0x1A, ("scope.signal",), "systemd"),
        ),
        (
            LANDLOCK_ACCESS,
            "domain=1a blockers=scope.abstract_unix_socket path=00626173686400",
            Access(4, 0x1A, ("scope.abstract_unix_socket",), "@bashd"),
        ),
        (
            LANDLOCK_ACCESS,
            "domain=1a blockers=net.connect_tcp daddr=127.0.0.1 dest=80",
            Access(4, 0x1A, ("net.connect_tcp",), "127.0.0.1:80"),
        ),
        (
            LANDLOCK_DOMAIN,
            "domain=1a status=allocated mode=enforcing pid=11830 uid=0"
            ' exe="/usr/bin/python3.11" comm="python"',
            DomainMade(4, 0x1A, 11830),
        ),
        (
            LANDLOCK_DOMAIN,
            "domain=1a status=deallocated denials=7",
            DomainEnded(4, 0x1A, 7),
        ),
        (
            SYSCALL,
            "arch=c000003e syscall=83 success=no exit=-13 a0=7ffd a1=1ff a2=0 a3=7f"
            " items=0 ppid=11830 pid=11831 auid=4294967295 uid=0 gid=0 euid=0 tty=(none)"
            ' ses=4294967295 comm="mkdir" exe="/usr/bin/mkdir" key=(null)',
            Call(4, 11831, 11830, "mkdir"),
        ),
        (
            SECCOMP,
            "auid=4294967295 uid=0 gid=0 ses=4294967295 pid=77 comm=6120622E6F"
            ' exe="/x" sig=0 arch=c000003e syscall=446 compat=0 ip=0x7f code=0x7ffc0000',
            LayerAdded(4, 77),
        ),
        (
            CONFIG_CHANGE,
            "op=set audit_enabled=0 old=1 auid=4294967295 ses=4294967295 res=1",
            Reconfigured(4),
        ),
    ],
)
def test_what_the_kernel_writes_is_understood(kind, text, record):
    assert parse_record(kind, HEAD + text) == record
    assert event_of(HEAD + text) == 4


@given(st.binary(min_size=1, max_size=80).filter(lambda raw: b"\0" not in raw))
def test_a_path_of_any_bytes_comes_back_and_forges_no_field(raw):
    text = f"{HEAD}domain=1a blockers=fs.write_file path={kernel_string(raw)} ino=3"
    record = parse_record(LANDLOCK_ACCESS, text)
    assert record == Access(4, 0x1A, ("fs.write_file",), raw.decode(errors="replace"))


@given(st.sampled_from([1300, 1305, 1326, 1423, 1424, 1327]), st.text(max_size=200))
def test_no_text_is_too_strange(kind, text):
    parse_record(kind, text)
    record = parse_record(kind, HEAD + text)
    assert record is None or record.event == 4


@given(
    st.sampled_from([1300, 1326, 1423, 1424]),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["domain", "blockers", "path", "pid", "ppid", "status", "denials"]
            ),
            st.text(st.characters(codec="ascii"), max_size=20),
        )
    ),
)
def test_no_field_is_too_strange(kind, fields):
    parse_record(kind, HEAD + " ".join(f"{name}={value}" for name, value in fields))


@pytest.mark.parametrize(
    ("blockers", "operation"),
    [
        ("fs.make_reg", "create"),
        ("fs.make_dir", "create"),
        ("fs.make_sym", "create"),
        ("fs.remove_file", "remove"),
        ("fs.remove_file,fs.make_reg", "rename"),
        ("fs.make_reg,fs.refer", "rename"),
        ("fs.refer", "link"),
        ("fs.write_file", "write"),
        ("fs.write_file,fs.read_file", "write"),
        ("fs.truncate", "write"),
        ("fs.read_file", "read"),
        ("fs.read_dir", "read"),
        ("fs.execute", "execute"),
        ("fs.ioctl_dev", "control"),
        ("scope.signal", "signal"),
        ("scope.abstract_unix_socket", "connect"),
        ("net.connect_tcp", "connect"),
        ("net.bind_tcp", "bind"),
        ("ptrace", "trace"),
    ],
)
def test_missing_rights_become_one_word(blockers, operation):
    assert operation_of(tuple(blockers.split(","))) == operation


def test_bash_looking_for_a_terminal_is_noise_and_nothing_else_is():
    tty = Access(1, 2, ("fs.write_file", "fs.read_file"), "/dev/tty")
    assert is_noise(tty)
    assert not is_noise(Access(1, 2, ("fs.write_file",), "/dev/tty2"))
    assert not is_noise(Access(1, 2, ("fs.remove_file",), "/dev/tty"))


def test_a_file_that_nobody_could_make_in_proc_is_noise():
    assert is_noise(Access(1, 2, ("fs.make_reg",), "/proc/7/fd"))
    assert not is_noise(Access(1, 2, ("fs.make_reg",), "/process/7"))
    assert not is_noise(Access(1, 2, ("fs.make_dir",), "/proc/7/fd"))
    assert not is_noise(Access(1, 2, ("fs.write_file",), "/proc/sys/kernel/hostname"))


def test_the_folder_is_named_where_an_entry_is_meant():
    assert names_folder(("fs.make_reg",))
    assert names_folder(("fs.remove_dir",))
    assert not names_folder(("fs.write_file",))
