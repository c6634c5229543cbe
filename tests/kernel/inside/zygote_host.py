"""Become the zygote of a cell that is not there: argv holds settings and descriptors.

Its spares are children of whoever started this.
"""

import json
import socket
import sys

from bashd.launcher import kernel, zygote
from bashd.launcher.confine import Settings

settings, channel_fd, *program = sys.argv[1:]
kernel.set_no_new_privs()
zygote.become_zygote(
    socket.socket(fileno=int(channel_fd)),
    Settings(**json.loads(settings)),
    zygote.Program(*map(int, program)),
)
