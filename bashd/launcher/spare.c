/*
 * The spare of a cell, which becomes one command.
 *
 * The zygote forks it. It adds the inner Landlock layer (without scopes, so that the
 * kernel's records name the command while the session's other tasks stay reachable) and a
 * seccomp filter for what only the zygote needs, waits for one request, and becomes bash.
 */

#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads by itself, no program of the caller's PATH, and by name, so from the start. */
static char LONG_COMMAND[] = "eval -- \"$(</dev/fd/9)\" 9<&-";

/* Put a filter on, if it is not empty. Needs no_new_privs. Source: seccomp(2). */
void
put_on(const struct sock_fprog *filter)
{
    if (filter->len)
        must((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter), "seccomp", "");
}

/* Open a folder one component at a time, following no link; takes `path` apart. */
static int
walk(char *path)
{
    int fd = open(*path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (char *rest, *name = strtok_r(path, "/", &rest); name && fd >= 0;
         name = strtok_r(NULL, "/", &rest)) {
        /* Looked at first: with O_DIRECTORY a link would be "not a directory". */
        struct stat found;
        int inner = -1;
        if (fstatat(fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(found.st_mode))
            errno = ELOOP;
        else
            inner = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int number = errno;
        close(fd);
        errno = number;
        fd = inner;
    }
    return fd;
}

/* Change to a folder, following no link, and check that it is the resolved inode.
 *
 * Inode 0 is any: of a folder that only this cell has nobody else can say it.
 */
static void
enter_workdir(char *path, uint64_t device, uint64_t inode)
{
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd < 0 && errno == ENOSYS) {
        /* Under our own filter where Landlock knows no truncation. */
        char *copy = strdup(path);
        fd = copy ? walk(copy) : -1;
    }
    must(fd, "workdir", path);
    struct stat found;
    must(fstat(fd, &found), "workdir", path);
    if (inode && (found.st_dev != device || found.st_ino != inode))
        fail("workdir-changed", "%s is another directory now", path);
    must(fchdir(fd), "workdir", path);
    close(fd);
}

/* Set limits, "kind:soft:hard" with commas between, none above what is allowed. */
static void
set_limits(const char *text)
{
    while (*text) {
        /* The last one ends with the field, every other one with a comma. */
        int kind = (int)parse_number(text, ':', &text);
        rlim_t soft = parse_number(text, ':', &text);
        rlim_t hard = parse_number(text, strchr(text, ',') ? ',' : 0, &text);
        struct rlimit limit;
        must(getrlimit((__rlimit_resource_t)kind, &limit), "rlimits", "");
        /* RLIM_INFINITY is the largest number of all. */
        limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
        limit.rlim_max = hard < limit.rlim_max ? hard : limit.rlim_max;
        must(setrlimit((__rlimit_resource_t)kind, &limit), "rlimits", "");
        if (text[-1] == 0)
            break;
    }
}

/*
 * Make a terminal, send its master to the daemon and take the rest for one's own.
 *
 * Made here, so that it lies in the cell's own /dev/pts and belongs to the peer. A spare
 * is a session leader without a terminal.
 */
static void
take_terminal(const char *size)
{
    struct winsize window = {0};
    window.ws_row = (unsigned short)parse_number(size, ':', &size);
    window.ws_col = (unsigned short)parse_number(size, 0, NULL);
    int master, slave;
    must(openpty(&master, &slave, NULL, NULL, &window), "stdio", "terminal");
    char tag = TAG_TERMINAL;
    if (!send_with_fds(ORDERS_FD, &tag, 1, &master, 1))
        fail_errno("stdio", "terminal");
    must(ioctl(slave, TIOCSCTTY, 0), "stdio", "terminal");
    for (int fd = 0; fd < 3; fd++)
        must(dup2(slave, fd), "stdio", "terminal");
    close(master);
    close(slave);
}

static void
take_stdin(int fd)
{
    if (fd < 0)
        fd = must(open("/dev/null", O_RDONLY | O_CLOEXEC), "stdio", "/dev/null");
    must(dup2(fd, STDIN_FILENO), "stdio", "");
}

/* Become bash. `text` is a request's fields, see `wire.Request`. */
static _Noreturn void
run(const struct cell *cell, char *text, size_t length, const int *fds, int count)
{
    struct fields fields = split(text, length);
    char *command = next_field(&fields);
    char *workdir = next_field(&fields);
    uint64_t device = next_number(&fields);
    uint64_t inode = next_number(&fields);
    bool has_stdin = next_number(&fields);
    bool has_script = next_number(&fields);
    char *limits = next_field(&fields);
    char *terminal = next_field(&fields);
    if (count != has_stdin + has_script)
        fail("spare", "descriptors do not match the request");
    char **environment = allocate(fields.left + 1, sizeof *environment);
    for (size_t i = 0; fields.left > 0; i++)
        environment[i] = next_field(&fields);

    if (*terminal)
        take_terminal(terminal);
    else
        take_stdin(has_stdin ? fds[0] : -1);
    check_mounts(cell);
    enter_workdir(workdir, device, inode);
    set_limits(limits);
    if (has_script) {
        command = LONG_COMMAND;
        int script_fd = fds[count - 1];
        if (script_fd == SCRIPT_FD)
            must(fcntl(script_fd, F_SETFD, 0), "stdio", "script");
        else
            must(dup2(script_fd, SCRIPT_FD), "stdio", "script");
    }
    /* The request socket closes by itself in exec, as the proof that bash runs. */
    must(close_range(ORDERS_FD + 1, SCRIPT_FD - has_script, 0), "stdio", "");
    must(close_range(SCRIPT_FD + 1, ~0U, 0), "stdio", "");
    char *argv[] = {"bash", "-c", command, NULL};
    char tag = TAG_RUNNING;
    must((int)send(ORDERS_FD, &tag, 1, MSG_NOSIGNAL), "exec", "");
    execve(cell->bash, argv, environment);
    fail_errno("exec", cell->bash);
}

static _Noreturn void
serve_one(const struct cell *cell)
{
    struct packet packet;
    if (!receive(ORDERS_FD, 0, &packet) || packet.length == 0)
        _exit(FAILED_STATUS);
    if (packet.cut_off)
        fail("spare", "packet cut off");
    char *text = packet.text;
    size_t length = packet.length;
    int *fds = packet.fds, count = packet.fd_count;
    if (*text == TAG_REQUEST_MEMFD && count > 0) {
        text = read_payload(*fds++, &length);
        count--;
    }
    if (*text != TAG_REQUEST)
        fail("spare", "not a request");
    run(cell, text + 1, length - 1, fds, count);
}

/* Arrange the descriptors, put on the inner walls, and wait for the request. */
void
become_spare(const struct cell *cell, int request_fd, int out_fd, int err_fd)
{
    /* First of all: the keeper tells a spare from a command by this name. */
    prctl(PR_SET_NAME, SPARE_NAME);
    int moved = dup3(request_fd, ORDERS_FD, O_CLOEXEC);
    role = (struct role){TAG_STEP_FAILED, "spare", NULL};
    must(moved, "spare", "");
    must(setsid(), "spare", "setsid");
    must(dup2(out_fd, STDOUT_FILENO), "spare", "");
    must(dup2(err_fd, STDERR_FILENO), "spare", "");
    /* An inherited write end would delay end of file of another task, so everything
     * foreign goes now, not at exec. */
    int first = cell->has_ruleset ? RULESET_FD + 1 : RULESET_FD;
    must(close_range((unsigned)first, ~0U, 0), "spare", "");
    umask(022);
    if (cell->has_ruleset) {
        must((int)syscall(SYS_landlock_restrict_self, RULESET_FD, cell->log_flags),
             "landlock", "");
        close(RULESET_FD);
    }
    put_on(&cell->spare_filter);
    serve_one(cell);
}
