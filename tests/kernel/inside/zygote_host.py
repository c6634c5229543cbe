"""Become the zygote of a cell that is not there: argv holds settings and descriptors.

Its spares are children of whoever started this.
"""

import json
import socket
import sys

from bashd.launcher import confine, zygote
from bashd.launcher.confine import Settings

settings, channel_fd, *program = sys.argv[1:]
confine.seal_process(confined=True)
zygote.become_zygote(
    socket.socket(fileno=int(channel_fd)),
    Settings(**json.loads(settings)),
    zygote.Program(*map(int, program)),
)
