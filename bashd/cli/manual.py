"""The manual pages, made from what the program itself goes by.

bashd(1) comes from the parsers that also write ``--help``; bashd.toml(5) from the
fields of `bashd.core.config`, their defaults and the lines beneath them, and from the
table of policy keys. So a page cannot say what the program does not do.

    python3 -m bashd.cli.manual FOLDER      writes both, for whoever packages bashd
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from bashd import __version__
from bashd.core import config, model
from bashd.core.policy_schema import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ABOUT_CONFIG: Final = """\
A daemon of root's reads /etc/bashd/bashd.toml, any other one
$XDG_CONFIG_HOME/bashd/bashd.toml (~/.config/bashd/bashd.toml). The file is TOML with the
sections below. What is missing has the default given here; an unknown key is an error."""

_FILES: Final = (
    ("/etc/bashd/bashd.toml", "configuration of the machine's daemon, and ceilings"),
    ("/etc/bashd/policies/", "the administrator's policies"),
    ("~/.config/bashd/bashd.toml", "configuration of a daemon of one's own"),
    ("~/.config/bashd/policies/", "one's own policies; they may only narrow"),
    ("/run/bashd/bashd.sock", "socket of the machine's daemon"),
    ("$XDG_RUNTIME_DIR/bashd/bashd.sock", "socket of a daemon of one's own"),
)


def program_page() -> str:
    """Return bashd(1) as roff."""
    from bashd.cli.commands import COMMANDS, build_parser  # noqa: PLC0415 - it loads us

    parser = build_parser(list(COMMANDS))
    return "\n".join(
        [
            _title("BASHD", 1),
            *_section("NAME", ["bashd \\- run bash commands in warm confined cells"]),
            *_section(
                "SYNOPSIS",
                [".B bashd", ".RI [ options ]", ".I command", ".RI [ argument \\ ...]"],
            ),
            *_section("DESCRIPTION", _prose(parser.description)),
            *_section("OPTIONS", _options(parser)),
            ".SH COMMANDS",
            *(line for sub in _commands(parser) for line in _command(*sub)),
            *_section("FILES", _terms(_FILES)),
            *_section("EXAMPLES", _prose(parser.epilog)),
            *_section("SEE ALSO", [".BR bashd.toml (5),", ".BR bwrap (1)"]),
            "",
        ]
    )


def config_page() -> str:
    """Return bashd.toml(5) as roff."""
    lines = [
        _title("BASHD.TOML", 5),
        *_section("NAME", ["bashd.toml \\- configuration and policies of bashd"]),
        *_section("DESCRIPTION", [_text(_ABOUT_CONFIG)]),
    ]
    remarks = _remarks(inspect.getsource(config))
    for section in fields(config.Config):
        if not isinstance(section.default_factory, type):
            continue
        cls = cast("type[Any]", section.default_factory)
        if section.name == "ceilings":
            continue
        lines += [f".SH [{section.name}]", *_prose(_table_text(cls))]
        for key in fields(cls):
            # In the file, None is a key that is not there.
            remark = remarks.get((cls.__name__, key.name), "").replace("None", "Unset")
            lines += [
                ".TP",
                rf"\fB{_text(key.name)}\fR (default: {_text(_default(key))})",
                *(_prose(remark) or [r"\&"]),
            ]
    ceilings = inspect.getdoc(sys.modules[config.Ceilings.__module__]) or ""
    lines += _section("[ceiling]", _prose(ceilings))
    lines += _section(
        "POLICY FILES",
        [
            "A policy is a TOML file of its own with these keys, all optional;",
            ".B bashd policy schema",
            "prints them as JSON Schema.",
            *_terms((name, key.doc) for name, key in KEYS.items()),
        ],
    )
    lines += _section("SEE ALSO", [".BR bashd (1)"])
    return "\n".join([*lines, ""])


def _title(name: str, number: int) -> str:
    return f'.TH {name} {number} "" "bashd {__version__}" "bashd"'


def _section(title: str, body: Iterable[str]) -> list[str]:
    return [f".SH {title}", *body]


def _text(text: str) -> str:
    """Return *text* so that roff prints it as it is."""
    # Emphasis and literals, as docstrings mark them, are plain here.
    plain = re.sub(r"(?<!\w)\*(\w+)\*(?!\w)", r"\1", text).replace("``", "")
    plain = plain.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga")
    plain = plain.replace("'", r"\(aq").replace("~", r"\(ti").replace("^", r"\(ha")
    return "\n".join(
        rf"\&{line}" if line.startswith(".") else line for line in plain.splitlines()
    )


def _prose(text: str | None) -> list[str]:
    """Return paragraphs; what is indented, and what follows a "word:" line, as it is."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", (text or "").strip("\n")):
        if not block.strip():
            continue
        if any(line.startswith(" ") for line in block.splitlines()):
            lines += [".PP", ".nf", _text(block), ".fi"]
        else:
            lines += [".PP", _text(block)]
    return lines[1:] if lines[:2] != [".PP", ".nf"] else lines


def _terms(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [
        line
        for term, text in pairs
        for line in (".TP", rf"\fB{_text(term)}\fR", _text(text))
    ]


def _commands(
    parser: argparse.ArgumentParser, prefix: str = "bashd"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001 - argparse shows them nowhere else
        if action.nargs != argparse.PARSER:
            continue
        choices = cast("dict[str, argparse.ArgumentParser]", action.choices)
        for name, sub in choices.items():
            yield f"{prefix} {name}", sub
            yield from _commands(sub, f"{prefix} {name}")


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = parser.format_usage().removeprefix("usage: ")
    yield f".SS {_text(name)}"
    yield from [".nf", _text(" ".join(usage.split())), ".fi"]
    yield ".PP"
    yield from _prose(parser.description)
    yield from _options(parser)
    if parser.epilog:
        yield ".PP"
        yield from _prose(parser.epilog)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:  # noqa: SLF001
        if action.help == argparse.SUPPRESS or action.nargs == argparse.PARSER:
            continue
        yield ".TP"
        shown = formatter._format_action_invocation(action)  # noqa: SLF001
        yield rf"\fB{_text(shown)}\fR"
        yield _text(formatter._expand_help(action)) if action.help else r"\&"  # noqa: SLF001


def _remarks(source: str) -> dict[tuple[str, str], str]:
    """Return (class, field) to the string that stands below the field."""
    found: dict[tuple[str, str], str] = {}
    for cls in (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)):
        for node, after in zip(cls.body, cls.body[1:], strict=False):
            match node, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[cls.name, name] = inspect.cleandoc(text)
                case _:
                    pass
    return found


def _table_text(cls: type[Any]) -> str:
    """Return what a section is for, without its name, which is the heading."""
    return (inspect.getdoc(cls) or "").partition(": ")[2].capitalize()


def _default(key: Field[object]) -> str:
    value = key.default
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case model.Mode() | str():
            return f'"{value}"'
        case tuple():
            return "[]" if not value else str(list(cast("tuple[str, ...]", value)))
        case _:
            return str(value)


def main(argv: list[str]) -> int:
    """Write the pages to the folder that is the one argument."""
    if len(argv) != 1:
        sys.stderr.write("usage: python3 -m bashd.cli.manual FOLDER\n")
        return 2
    for name, page in (("bashd.1", program_page()), ("bashd.toml.5", config_page())):
        Path(argv[0], name).write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
