/*
 * Dialling home: how a keeper finds the daemon that replaces a dead one.
 *
 * The keeper never listens: a listening socket in a launcher would let a confined command
 * drive it. It connects, by a name relative to a folder it was given as a descriptor,
 * which works from inside private mounts and behind Landlock while the same socket has no
 * path in the cell. It checks the uid of whoever answers; the daemon checks the secret.
 */

#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    RETRY_MS = 200,
    ANSWER_S = 10,
};

/* Connect to whoever listens at home, if that is the daemon's user; -1: nobody. */
static int
connect_home(const struct home *home)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(home->name) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, home->name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    struct timeval patience = {.tv_sec = ANSWER_S};
    struct ucred peer; /* who called listen() on the other end; unix(7) */
    socklen_t size = sizeof peer;
    bool connected =
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
        fchdir(HOME_FD) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
        peer.uid == home->uid;
    if (chdir("/") < 0 || !connected) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Introduce the cell; true when the daemon wants it, `refused` when it does not.
 *
 * With a timeout even what was only stopped and continued is interrupted; the daemon may
 * have taken the cell by then. Source: signal(7).
 */
static bool
introduce(int fd, const struct home *home, bool *refused)
{
    char message[512];
    int length = snprintf(message, sizeof message, "%c%s%c%s", TAG_ADOPT, home->cell, 0,
                          home->secret);
    char answer = 0;
    ssize_t got = -1;
    if (length > 0 && (size_t)length < sizeof message &&
        send_with_fds(fd, message, (size_t)length, NULL, 0))
        do
            got = recv(fd, &answer, 1, 0);
        while (got < 0 && errno == EINTR);
    /* The next zygote will be a copy, of the stack as well. */
    explicit_bzero(message, sizeof message);
    *refused = got == 1 && answer != TAG_ADOPTED;
    return got == 1 && answer == TAG_ADOPTED;
}

/*
 * Connect to a new daemon within the orphan timeout.
 *
 * Returns the control socket, accepted by the daemon; -1 when nobody came in time or the
 * daemon does not want this cell.
 */
int
dial_home(const struct home *home)
{
    uint64_t deadline = now_ms() + home->timeout_ms;
    while (now_ms() < deadline) {
        int fd = connect_home(home);
        if (fd >= 0) {
            bool refused;
            if (introduce(fd, home, &refused)) {
                struct timeval forever = {0};
                setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
                setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &forever, sizeof forever);
                return fd;
            }
            close(fd);
            if (refused)
                return -1;
            /* It died, too, before it answered, or was replaced. */
        }
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    }
    return -1;
}
