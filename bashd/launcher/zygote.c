/*
 * The zygote of a cell: forks spares, and nothing else.
 *
 * The keeper forks it, behind the cell's outer walls. It is a process of its own because
 * it wears what no keeper may: the seccomp filter, once for all its spares, and the layer
 * that keeps their signals from the keeper. Its channel brings one order at a time, with
 * the folder of a cgroup perhaps; it answers each with one spare.
 */

#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void
do_nothing(int number)
{
    (void)number;
}

/*
 * Catch every signal and do nothing.
 *
 * As good as ignoring while a spare waits, and better at its end: execve gives a caught
 * signal its default by itself, where an ignored one would stay ignored and take a system
 * call of its own. A command must see SIGPIPE and all others at their default. Source:
 * execve(2). SIGKILL and SIGSTOP nobody can change, and two are glibc's own.
 */
static void
catch_signals(void)
{
    struct sigaction action = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &action, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * Fork a child whose parent is the keeper.
 *
 * Returns its pid, 0 in itself, -1 when there is no process to be had. `grouped` says
 * whether it was born in the cgroup whose folder is `group_fd`, which costs nothing,
 * where moving it later waits for an RCU grace period. Source: clone(2), Linux 5.7.
 */
static pid_t
clone_sibling(int group_fd, bool *grouped)
{
    *grouped = group_fd >= 0;
    if (group_fd >= 0) {
        /* With CLONE_PARENT the exit signal is the zygote's own. */
        struct clone_args arguments = {
            .flags = CLONE_PARENT | CLONE_INTO_CGROUP,
            .cgroup = (unsigned)group_fd,
        };
        pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
        if (pid >= 0 || errno == EAGAIN || errno == ENOMEM)
            return pid;
        *grouped = false;
    }
    return (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
}

/* Fork one spare and hand it to the keeper; false where a limit is reached. */
static bool
deliver(const struct cell *cell, int group_fd)
{
    int request[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, pidfd = -1;
    bool grouped = false, delivered = false;
    pid_t pid = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, request) == 0 &&
        pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0)
        pid = clone_sibling(group_fd, &grouped);
    if (pid == 0)
        become_spare(cell, request[1], out[1], err[1]);
    if (pid > 0)
        pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) {
        char text[64];
        int length =
            snprintf(text, sizeof text, "%c%d%c%d", TAG_SPARE, pid, 0, grouped);
        int fds[] = {request[0], out[0], err[0], pidfd};
        delivered = send_with_fds(ORDERS_FD, text, (size_t)length, fds, 4);
    }
    /* A spare that was not delivered sees the end of its request socket. */
    close_all(request, 2);
    close_all(out, 2);
    close_all(err, 2);
    close_all(&pidfd, 1);
    return delivered;
}

static void
say(char tag)
{
    if (send(ORDERS_FD, &tag, 1, MSG_NOSIGNAL) < 0)
        _exit(1);
}

/* Put on what a zygote wears, and serve until the keeper is gone. */
void
become_zygote(const struct cell *cell, int channel_fd)
{
    role.leave = NULL; /* the keeper's */
    catch_signals();
    prctl(PR_SET_NAME, ZYGOTE_NAME);
    prctl(PR_SET_DUMPABLE, 0);
    /* Whoever knows it could pass for the keeper. */
    if (cell->has_home)
        explicit_bzero(cell->home.secret, strlen(cell->home.secret));
    if (dup3(channel_fd, ORDERS_FD, O_CLOEXEC) < 0)
        _exit(1);
    if (cell->has_layer)
        must((int)syscall(SYS_landlock_restrict_self, LAYER_FD, cell->log_flags),
             "landlock-zygote", "");
    close_range(cell->has_ruleset ? RULESET_FD + 1 : RULESET_FD, ~0U, 0);
    put_on(&cell->filter);
    say(TAG_READY);
    struct packet order;
    while (receive(ORDERS_FD, 0, &order) && order.length > 0) {
        if (!deliver(cell, order.fd_count > 0 ? order.fds[0] : -1))
            say(TAG_REFUSED);
        close_all(order.fds, order.fd_count);
    }
    _exit(0);
}
