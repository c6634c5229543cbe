"""Error lines of real programs: what they complain about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.dialects import Errno, absolute, complaints

LINES = [
    # bash
    ("bash: line 1: /etc/zz: Permission denied", "/etc/zz", None),
    ("bash: line 1: /etc/my file: Permission denied", "/etc/my file", None),
    ("bash: line 3: cd: /root: Permission denied", "/root", None),
    ("./build.sh: line 7: out/log: Read-only file system", "/w/out/log", "write"),
    (
        "bash: line 1: cannot create temp file for here-document: Read-only file system",
        None,
        "create",
    ),
    # coreutils, in the C locale and in UTF-8
    ("touch: cannot touch '/etc/zz': Read-only file system", "/etc/zz", "create"),
    (
        "mkdir: cannot create directory \u2018/opt/q\u2019: Permission denied",
        "/opt/q",
        "create",
    ),
    ("mv: cannot move 'f' to '/etc/f': Permission denied", "/etc/f", "rename"),
    ("rm: cannot remove '/etc/h': Permission denied", "/etc/h", "remove"),
    (
        "mv: inter-device move failed: 'f' to '/etc/f'; unable to remove target:"
        " Read-only file system",
        "/etc/f",
        "rename",
    ),
    (
        "ln: failed to create hard link '/opt/l' => 'f': Permission denied",
        "/opt/l",
        "link",
    ),
    (
        "ln: failed to create symbolic link '/etc/l': Read-only file system",
        "/etc/l",
        "create",
    ),
    (
        "chmod: changing permissions of '/etc/hosts': Read-only file system",
        "/etc/hosts",
        "change",
    ),
    (
        "touch: setting times of '/etc/remove me': Read-only file system",
        "/etc/remove me",
        "change",
    ),
    (
        r"touch: cannot touch '/etc/it'\''s': Read-only file system",
        "/etc/it's",
        "create",
    ),
    ("dd: failed to open '/etc/x': Permission denied", "/etc/x", None),
    ("tee: /etc/x: Read-only file system", "/etc/x", "write"),
    ("cat: /root/x: Permission denied", "/root/x", "read"),
    ("ls: cannot open directory '/root': Permission denied", "/root", "read"),
    ("cp: cannot open 'a' for reading: Permission denied", "/w/a", "read"),
    ("cp: cannot create regular file '../x': Permission denied", "/x", "create"),
    # other tools of every day
    (
        "sed: couldn't open temporary file /etc/sedPZ3: Read-only file system",
        "/etc/sedPZ3",
        "create",
    ),
    ("tar: x/y: Cannot open: Read-only file system", "/w/x/y", "write"),
    ("tar: d: Cannot mkdir: Permission denied", "/w/d", "create"),
    (
        'rsync: [receiver] mkstemp "/etc/.x.a" failed: Read-only file system (30)',
        "/etc/.x.a",
        "create",
    ),
    (
        "/usr/bin/ld: cannot open output file /etc/a.out: Read-only file system",
        "/etc/a.out",
        "write",
    ),
    ("Can't open '/etc/x': Read-only file system at -e line 1.", "/etc/x", "write"),
    # Python
    ("PermissionError: [Errno 13] Permission denied: '/etc/zz'", "/etc/zz", None),
    ('PermissionError: [Errno 13] Permission denied: "/it\'s"', "/it's", None),
    (
        "OSError: [Errno 30] Read-only file system: 'a' -> '/etc/b'",
        "/etc/b",
        "write",
    ),
    # node and npm
    ("Error: EROFS: read-only file system, open '/etc/zz'", "/etc/zz", "write"),
    ("Error: EACCES: permission denied, mkdir '/opt/x'", "/opt/x", "create"),
    ("Error: EACCES: permission denied, rename 'a' -> '/b'", "/b", "rename"),
    (
        "npm error Error: EACCES: permission denied, mkdir '/usr/lib/node_modules/x'",
        "/usr/lib/node_modules/x",
        "create",
    ),
    # git
    (
        "fatal: Unable to create '/w/.git/index.lock': Read-only file system",
        "/w/.git/index.lock",
        "create",
    ),
    (
        "error: could not lock config file .git/config: Read-only file system",
        "/w/.git/config",
        "create",
    ),
    (
        "error: could not write config file .git/config: Device or resource busy",
        "/w/.git/config",
        "write",
    ),
    # Go, Java, Ruby
    ("open /etc/x: read-only file system", "/etc/x", "write"),
    ("go: writing go.mod: open /x/m.tmp: permission denied", "/x/m.tmp", "write"),
    ("rename /a/b /etc/c: permission denied", "/etc/c", "rename"),
    ("java.io.FileNotFoundException: /etc/x (Permission denied)", "/etc/x", None),
    (
        "Read-only file system @ rb_sysopen - /etc/x (Errno::EROFS)",
        "/etc/x",
        "write",
    ),
    ("Permission denied @ dir_s_mkdir - /opt/x (Errno::EACCES)", "/opt/x", "create"),
    # nothing named
    ("READ-ONLY FILE SYSTEM", None, "write"),
    ("sudo: Permission denied", None, None),
    (
        "permission denied while trying to connect to the Docker daemon socket at"
        " unix:///var/run/docker.sock: Get",
        "/var/run/docker.sock",
        "connect",
    ),
]


@pytest.mark.parametrize(("line", "path", "operation"), LINES)
def test_the_line_of_a_real_program_gives_path_and_operation(line, path, operation):
    (found,) = complaints(line, "/w")
    assert (found.path, found.operation) == (path, operation)


def test_a_traceback_tells_what_python_was_doing():
    stderr = (
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        '    os.mkdir("/opt/z")\n'
        "PermissionError: [Errno 13] Permission denied: '/opt/z'\n"
    )
    (found,) = complaints(stderr, "/w")
    assert (found.path, found.operation) == ("/opt/z", "create")


def test_cargo_names_the_path_above_the_cause():
    stderr = (
        "error: failed to create directory `/x/target`\n"
        "\n"
        "Caused by:\n"
        "  Permission denied (os error 13)\n"
    )
    (found,) = complaints(stderr, "/w")
    assert (found.path, found.operation) == ("/x/target", "create")


@pytest.mark.parametrize(
    "line",
    [
        "app: Permission denied (publickey)",
        "git@example.org: Permission denied (publickey,password).",
        "Permission denied, please try again.",
        "ERROR:  permission denied for table users",
        "remote: Permission denied",
    ],
)
def test_a_refusal_by_another_machine_is_no_complaint(line):
    assert not list(complaints(line, "/w"))


@given(st.text(max_size=200), st.sampled_from(list(Errno)), st.text(max_size=200))
def test_any_line_with_the_words_can_be_read(before, errno, after):
    for found in complaints(f"{before}{errno}{after}", "/w"):
        assert found.path is None or found.path.startswith("/")


safe = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["C", "Zl", "Zp"], exclude_characters="'/"
    ),
    min_size=1,
    max_size=30,
).filter(lambda name: name not in (".", ".."))


@given(safe)
def test_a_quoted_name_comes_back_whole(name):
    (found,) = complaints(f"rm: cannot remove '/d/{name}': Permission denied", "/w")
    assert (found.path, found.operation) == (f"/d/{name}", "remove")


# bash quotes nothing, and a colon and a space are what parts its words.
@given(safe.filter(lambda name: ": " not in name))
def test_a_name_that_bash_complains_about_comes_back_whole(name):
    for found in complaints(f"bash: line 1: /d/{name}: Read-only file system", "/w"):
        assert found.path is not None
        assert found.path.startswith("/d")


@given(st.text(max_size=60), st.sampled_from(["/", "/w", "/a/b"]))
def test_absolute_paths_hold_no_dots(name, cwd):
    path = absolute(name, cwd)
    if path is not None:
        assert path.startswith("/")
        assert not path.startswith("//")
        assert not {".", ".."} & set(path.split("/"))
