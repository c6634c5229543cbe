"""bashd: a sandboxing executor for bash commands on Linux.

Floors, read from bottom to top; imports point down only::

    cli/                     talks to people and programs; uses client/ and tools/
    tools/                   the model-facing tools, pure, over the Executor protocol
    client/ | daemon/        either end of the Unix socket; never import each other
    protocol/                bytes to messages and back, pure
    core/                    the rules, pure: policy, modes, output windows, denials
    launcher/                runs inside the cell; imports nothing above itself
"""

__version__ = "0.1.0"
