"""The process tree inside a cell.  Theory of operation.

Who is who
    The *keeper* is the first process of a cell: pid 1 of its namespaces under the
    bwrap runner, a child subreaper under the landlock runner and in full-access
    cells. It holds the control socket, a copy of the read ends of every task's
    pipes and the exit statuses. Its child, the *zygote*, does nothing but fork
    *spares*: processes that are already behind every wall and wait for one request.
    A spare is cloned with CLONE_PARENT, so the keeper is its parent and the zygote
    can be lost without losing a task.

    A cell starts as Python (``keeper.py``), which gives up privileges, puts on the
    outer layer and executes a static program of 0.8 MB, compiled from this folder's
    ``*.c``, that all three are from then on: forking an interpreter took ten times
    as long and as much memory, and every time one is woken it takes a tenth of a
    millisecond, twice a command.

Messages (`wire`)
    daemon -> keeper   CONFIG (first, once), FORK, SIGNAL, KILL, ACK, DROP, END
    keeper -> daemon   HELLO (proof of life: what is enforced), SPARE (+ 4 fds),
                       EXITED (kernel wait status and rusage), FAILED
    daemon -> spare    one REQUEST; spare -> daemon ``x`` just before execve, or the
                       step that failed
    keeper <-> zygote  one byte asks for a spare; the answer carries its fds

Who closes what
    A spare's request socket is close-on-exec: end of file without ``x`` proves that
    nothing ran. The keeper pins an exited task's pid by not reaping it until ACK, so
    no signal can reach a reused pid. End of file on the control socket ends the cell.

If someone dies
    zygote: the keeper forks another. spare: it is reported and replaced. keeper:
    under bwrap the kernel kills the namespace; elsewhere the daemon sees end of file,
    and the spares' request sockets close. daemon: the control socket closes.

Only the standard library, ``landlock`` and ``prctl`` are imported, all of it before
privileges are given up: afterwards the files may no longer be readable. The program
comes as a descriptor, which needs no permission on a path.
"""
