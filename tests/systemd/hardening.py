"""What ``systemd-analyze security`` asks of the service and it does not do, and why.

Recorded with systemd 252: overall exposure 9.6. The figure says how much the *daemon*
may do, and it must be able to become any user and to build cells; what confines the
commands is bashd. `tests/systemd/test_service.py` fails when the list and the tool
disagree, in either direction.
"""

from __future__ import annotations

_INHERITED = (
    "commands in danger-full-access mode are children of the service and inherit it,"
    " so the mode would not be what it says"
)
_BECOMES_USERS = "the daemon becomes whoever calls, and reaches what they reach"
_CELLS = "bubblewrap builds cells out of namespaces and mounts"
_TOOLS = "breaks programs that developers run: JITs, setarch, 32-bit builds, audio"
_NET = "commands whose policy grants the network use the service's"

_CAPABILITIES = (
    *("SYS_TIME", "SYS_PACCT", "KILL", "WAKE_ALARM", "DAC_FOWNER_IPC_OWNER"),
    *("LINUX_IMMUTABLE", "IPC_LOCK", "SYS_MODULE", "BPF", "SYS_TTY_CONFIG", "SYS_BOOT"),
    *("SYS_CHROOT", "BLOCK_SUSPEND", "LEASE", "MKNOD", "CHOWN_FSETID_SETFCAP", "MAC"),
    *("SET_UID_GID_PCAP", "SYS_RAWIO", "SYS_PTRACE", "SYS_NICE_RESOURCE", "NET_ADMIN"),
    *("NET_BIND_SERVICE_BROADCAST_RAW)", "AUDIT", "SYS_ADMIN", "SYSLOG"),
)
_CALLS = (
    *("clock", "cpu_emulation", "debug", "module", "mount", "obsolete", "privileged"),
    *("raw_io", "reboot", "resources", "swap"),
)

NOT_TAKEN: dict[str, str] = {
    # sudo under danger-full-access raises what the bounding set leaves.
    **{f"CapabilityBoundingSet_CAP_{name}": _INHERITED for name in _CAPABILITIES},
    **{f"SystemCallFilter_{name}": _INHERITED for name in _CALLS},
    **{
        f"RestrictNamespaces_{name}": _CELLS
        for name in ("user", "pid", "net", "uts", "mnt", "cgroup", "ipc")
    },
    **{
        f"RestrictAddressFamilies_{name}": _INHERITED
        for name in ("AF_PACKET", "AF_NETLINK", "AF_UNIX", "OTHER", "AF_INET_INET6")
    },
    "Delegate": "exact kills and limits need a cgroup for each command",
    "DeviceAllow": _INHERITED,
    "IPAddressDeny": _NET,
    "LockPersonality": _TOOLS,
    "MemoryDenyWriteExecute": _TOOLS,
    "NoNewPrivileges": "sudo works in danger-full-access mode",
    "PrivateDevices": _INHERITED,
    "PrivateMounts": "a disk that a command in full access mounts is for all to see",
    "PrivateNetwork": _NET,
    "PrivateTmp": "full access means the /tmp that the caller sees",
    "PrivateUsers": _BECOMES_USERS,
    "ProcSubset": "keeps bubblewrap from mounting /proc in a cell",
    "ProtectClock": _INHERITED,
    "ProtectControlGroups": "it makes the cgroups that Delegate= is for",
    "ProtectHome": "workspaces lie in /home",
    "ProtectHostname": _INHERITED,
    "ProtectKernelLogs": "breaks bubblewrap's /proc (Debian 13)",
    "ProtectKernelModules": _INHERITED,
    "ProtectKernelTunables": "breaks bubblewrap's /proc (Debian 13)",
    "ProtectProc": _INHERITED,
    "ProtectSystem": _INHERITED,
    "RestrictRealtime": _TOOLS,
    "RestrictSUIDSGID": "breaks bubblewrap (Debian 13)",
    "RootDirectoryOrRootImage": _BECOMES_USERS,
    "SystemCallArchitectures": _TOOLS,
    "UMask": "commands would inherit it; what the daemon itself makes has its own mode",
    "UserOrDynamicUser": _BECOMES_USERS,
}
"""Field of ``systemd-analyze security --json=short`` to the reason."""
