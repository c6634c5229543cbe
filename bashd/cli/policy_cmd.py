"""``bashd policy``: show, check and explain policies without a daemon.

It reads the files the daemon would read, as the caller, so it shows what holds for the
caller; ``--config`` names the daemon's configuration where it is not in its usual place.
"""

from __future__ import annotations

import argparse
import grp
import json
import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bashd.core.config import Config, parse_config
from bashd.core.errors import BashdError, ConfigError
from bashd.core.policy import values_of
from bashd.core.policy_schema import schema
from bashd.core.policy_text import sources_json, to_json, to_toml
from bashd.daemon.configuration import FILE_NAME, load_config
from bashd.daemon.policies import SYSTEM_DIR, PolicyStore, User
from bashd.daemon.policy_files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_FAILED: Final = 125
_BAD_FILES: Final = 1

_EXAMPLES: Final = """\
examples:
  bashd policy show workspace-write     what the shipped policy says
  bashd policy effective                what holds for you, and which file says so
  bashd policy check                    every file that has a say
  bashd policy check draft.toml         a file before it is put in place
  bashd policy schema > policy.schema.json

exit status:
  0  fine    1  check found a bad file    125  bashd itself failed
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names its type so
    """Add ``policy`` and its verbs to the command line."""
    parser = subparsers.add_parser(
        "policy",
        help="show and check policies",
        description="Show and check policies.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="policy_verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="print a policy as TOML")
    show.add_argument("name", metavar="NAME", help="a policy's or a mode's name")
    check = verbs.add_parser("check", help="check policy files")
    check.add_argument(
        "files",
        metavar="FILE|NAME",
        nargs="*",
        help="files, or names of policies, to check; default: all",
    )
    verbs.add_parser("schema", help="print the JSON Schema of policy files")
    effective = verbs.add_parser(
        "effective", help="print what holds for you, with the source of each value"
    )
    effective.add_argument(
        "name", metavar="NAME", nargs="?", help="default: what a plain call gets"
    )
    for verb in verbs.choices.values():
        verb.add_argument("--json", action="store_true", help="print one JSON object")
        verb.add_argument("--config", metavar="FILE", help="the daemon's bashd.toml")


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit status."""
    try:
        return _run(args)
    except BashdError as error:
        if args.json:
            failure = {"code": error.code, "message": error.message}
            print(json.dumps({"error": failure}))
        else:
            print(f"bashd: {error.message}", file=sys.stderr)
        return _FAILED


def _run(args: argparse.Namespace) -> int:
    if args.policy_verb == "schema":
        print(json.dumps(schema(), indent=2))
        return 0
    desk = _open_desk(args.config)
    if args.policy_verb == "check":
        words: list[str] = args.files
        files = [file for word in words for file in _files_of(word, desk)]
        return _check(files or _all_files(desk), desk, as_json=args.json)
    if args.policy_verb == "show":
        _show(args.name, desk, as_json=args.json)
    else:
        _show_effective(args.name, desk, as_json=args.json)
    return 0


@dataclass(frozen=True, slots=True)
class _Desk:
    """Whose policies are looked at, and where."""

    store: PolicyStore
    user: User
    config: Config


def _open_desk(config_file: str | None) -> _Desk:
    user = _caller()
    config = load_config(
        config_file, root=os.geteuid() == 0, config_home=user.config_home
    )
    return _Desk(PolicyStore(ceilings=config.ceilings), user, config)


def _caller() -> User:
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = str(uid), "/"
    home = os.environ.get("HOME") or home
    return User(
        name,
        tuple(_group_names(os.getgroups())),
        home,
        os.environ.get("XDG_CONFIG_HOME") or f"{home.rstrip('/')}/.config",
        os.environ.get("XDG_RUNTIME_DIR") or None,
    )


def _group_names(gids: Iterable[int]) -> list[str]:
    names: list[str] = []
    for gid in gids:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return names


def _show(name: str, desk: _Desk, *, as_json: bool) -> None:
    policy = desk.store.merged(name, desk.user, bounded=False)
    if as_json:
        print(json.dumps(to_json(policy)))
    else:
        print(to_toml(values_of(policy)), end="")


def _show_effective(name: str | None, desk: _Desk, *, as_json: bool) -> None:
    ceiling = desk.store.ceiling(desk.user)
    chosen = name or desk.config.default_policy(ceiling)
    policy = desk.store.load(chosen, desk.user)
    if as_json:
        print(json.dumps({**to_json(policy), "sources": sources_json(policy)}))
    else:
        print(f"# policy {policy.name}, digest {policy.digest}")
        print(to_toml(values_of(policy), policy.sources), end="")


def _all_files(desk: _Desk) -> list[str]:
    system = Path(desk.store.system)
    own = Path(desk.user.policies)
    configs = [system / FILE_NAME, own.parent / FILE_NAME]
    found = [str(path) for path in configs if path.exists()]
    for folder in (Path(desk.store.shipped), system / "policies", own):
        try:
            found += sorted(str(path) for path in folder.glob("*.toml"))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    return found


def _files_of(word: str, desk: _Desk) -> list[str]:
    """Return the file that *word* is, else those of the policy that it names."""
    if "/" in word or Path(word).is_file():
        return [word]
    found = [f for f in _all_files(desk) if Path(f).name == f"{word}.toml"]
    return found or [word]


def _check(files: Iterable[str], desk: _Desk, *, as_json: bool) -> int:
    results: list[dict[str, Any]] = []
    for file in files:
        try:
            _check_file(file, desk)
            results.append({"path": file, "ok": True, "error": None})
        except BashdError as error:
            results.append({"path": file, "ok": False, "error": error.message})
    if as_json:
        print(json.dumps({"files": results}))
    else:
        for result in results:
            if result["ok"]:
                print(f"{result['path']}: ok")
            else:
                print(result["error"], file=sys.stderr)
    return 0 if all(result["ok"] for result in results) else _BAD_FILES


def _check_file(file: str, desk: _Desk) -> None:
    """Check one file as the daemon would take it where it lies.

    A draft that lies in none of the folders is taken for what its author can make of
    it: root's for an administrator's, anybody else's for a user's.
    """
    path = Path(file)
    text = read_text(file)
    if text is None:
        raise ConfigError(f"{file}: no such file")
    if path.name == FILE_NAME:
        parse_config(text, file)
        return
    folder = str(path.absolute().parent)
    if folder == desk.user.policies:
        desk.store.merged(path.stem, desk.user)
    elif folder in (desk.store.shipped, f"{desk.store.system}/policies"):
        desk.store.merged(path.stem, desk.user, read=lambda _: None, bounded=False)
    else:
        _check_draft(path.stem, text, file, desk)


def _check_draft(name: str, text: str, file: str, desk: _Desk) -> None:
    place = f"{desk.user.policies}/{name}.toml"
    store = desk.store
    if os.geteuid() == 0:
        # As written: without an administrator's folder nothing bounds it.
        store = PolicyStore(shipped=store.shipped, system=f"{SYSTEM_DIR}/none")

    def read(path: str) -> str | None:
        return text if path == place else read_text(path)

    try:
        store.merged(name, desk.user, read=read, bounded=store is desk.store)
    except BashdError as error:
        raise ConfigError(error.message.replace(place, file)) from None
