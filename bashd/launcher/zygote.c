/*
 * The zygote of a cell, which forks, and the spare, which becomes one command.
 *
 * The keeper puts itself behind the cell's outer walls, forks, and executes this program
 * from a sealed memfd: small, so that a spare costs a tenth of what a forked interpreter
 * does, in time and in memory. The zygote answers each order on its channel with one
 * spare. A spare adds the inner Landlock layer (without scopes, so that the kernel's
 * records name the command while the session's other tasks stay reachable) and a seccomp
 * filter for what only the zygote needs, waits for one request, and becomes bash.
 *
 * The memfd may be executed and not read, so the process can be neither traced nor looked
 * into from its first instruction on; see proc_pid(5), "suid_dumpable".
 *
 * Messages are those of wire.py: a tag, then fields with a NUL between them.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than some headers; one number on all architectures (asm-generic/unistd.h). */
#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif

enum {
    /* Of the zygote, as the keeper has arranged them. */
    CHANNEL_FD = 3,
    RULESET_FD = 4,
    CONFIG_FD = 5,
    FILTER_FD = 6,
    SPARE_FILTER_FD = 7,
    /* Of a spare. */
    REQUEST_FD = 3,
    /* Where bash reads a command that is too long for an argument. */
    SCRIPT_FD = 9,
};

enum {
    PACKET_BYTES = 64 * 1024,
    MAX_PAYLOAD_BYTES = 32 * 1024 * 1024,
    REASON_BYTES = 2000,
    MAX_FDS = 4,
    MAX_DIGITS = 20,
    FAILED_STATUS = 127,
};

/* Of wire.py. */
enum {
    TAG_FAILED = 'F',
    TAG_STEP_FAILED = 'f',
    TAG_ZYGOTE = 'Z',
    TAG_REQUEST = 'R',
    TAG_REQUEST_MEMFD = 'M',
    TAG_TERMINAL = 'p',
    TAG_RUNNING = 'x',
};

/* Reads by itself, no program of the caller's PATH, and by name, so from the start. */
static char LONG_COMMAND[] = "eval -- \"$(</dev/fd/9)\" 9<&-";

static char packet[PACKET_BYTES];

/* The channel of a zygote and the request socket of a spare have the same number. */
static char failure_tag = TAG_FAILED;

/* Say which step failed, and why, and leave. Never an exit code: nothing has run. */
static _Noreturn __attribute__((format(printf, 2, 3))) void
fail(const char *step, const char *format, ...)
{
    char message[REASON_BYTES];
    message[0] = failure_tag;
    size_t length = 1 + (size_t)snprintf(message + 1, 64, "%s", step) + 1;
    va_list arguments;
    va_start(arguments, format);
    int reason = vsnprintf(message + length, sizeof message - length, format, arguments);
    va_end(arguments);
    if (reason > 0) {
        size_t room = sizeof message - length - 1;
        length += (size_t)reason < room ? (size_t)reason : room;
    }
    send(CHANNEL_FD, message, length, MSG_NOSIGNAL);
    _exit(FAILED_STATUS);
}

static _Noreturn void
fail_errno(const char *step, const char *subject)
{
    int number = errno;
    const char *name = strerrorname_np(number);
    fail(step, "%s%s%s: %s", subject, *subject ? ": " : "", name ? name : "EIO",
         strerror(number));
}

/* Return `result`, or fail with errno if it is negative. */
static int
must(int result, const char *step, const char *subject)
{
    if (result < 0)
        fail_errno(step, subject);
    return result;
}

/* ---- messages -------------------------------------------------------------------- */

struct fields {
    char *at;
    char *end; /* where the last field's NUL is */
    size_t left;
};

/* Look at `length` bytes behind a tag; `text[length]` is a NUL. */
static struct fields
split(char *text, size_t length)
{
    struct fields fields = {text, text + length, length > 0};
    for (char *nul = text; (nul = memchr(nul, 0, (size_t)(fields.end - nul))); nul++)
        fields.left++;
    return fields;
}

static char *
next_field(struct fields *fields)
{
    if (fields->left == 0)
        fail("spare", "a field is missing");
    char *field = fields->at;
    fields->at += strlen(field) + 1;
    fields->left--;
    return field;
}

/* Parse a decimal number that ends at `stop`; a negative one wraps, as rlim_t does. */
static uint64_t
parse_number(const char *text, char stop, const char **rest)
{
    bool negative = *text == '-';
    const char *digit = text + negative;
    uint64_t value = 0;
    int count = 0;
    for (; *digit >= '0' && *digit <= '9' && count < MAX_DIGITS; digit++, count++)
        value = value * 10 + (uint64_t)(*digit - '0');
    if (count == 0 || *digit != stop)
        fail("spare", "not a number: %.32s", text);
    if (rest)
        *rest = digit + 1;
    return negative ? -value : value;
}

static uint64_t
next_number(struct fields *fields)
{
    return parse_number(next_field(fields), 0, NULL);
}

static void
close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/*
 * Receive one packet into `packet` and up to MAX_FDS descriptors, close-on-exec from the
 * start. Returns its length; 0 at end of file.
 */
static size_t
receive(int socket_fd, int fds[MAX_FDS], int *count)
{
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec data = {packet, sizeof packet - 1};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    ssize_t length;
    do
        length = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    *count = 0;
    if (length < 0)
        return 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), (size_t)*count * sizeof(int));
    }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        close_all(fds, *count);
        fail("spare", "packet cut off");
    }
    packet[length] = 0;
    return (size_t)length;
}

/* Send a packet with descriptors; false when it cannot be delivered. */
static bool
send_with_fds(int socket_fd, const void *text, size_t length, const int *fds, int count)
{
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec data = {(void *)text, length};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int)),
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
    ssize_t sent;
    do
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

/* Read a sealed memfd whole, put a NUL behind it, and close it. */
static char *
read_payload(int fd, size_t *length)
{
    struct stat found;
    must(fstat(fd, &found), "spare", "payload");
    if (found.st_size > MAX_PAYLOAD_BYTES)
        fail("spare", "payload of %lld bytes is too long", (long long)found.st_size);
    *length = (size_t)found.st_size;
    char *text = malloc(*length + 1);
    if (!text)
        fail_errno("spare", "payload");
    for (size_t done = 0; done < *length;) {
        ssize_t got = pread(fd, text + done, *length - done, (off_t)done);
        if (got <= 0)
            fail("spare", "payload is cut off");
        done += (size_t)got;
    }
    text[*length] = 0;
    close(fd);
    return text;
}

/* ---- what the cell is --------------------------------------------------------------- */

struct mount {
    const char *path;
    dev_t device;
    ino_t inode;
    bool read_only;
};

struct cell {
    bool has_layer;
    unsigned log_flags;
    char *bash;
    struct mount *mounts;
    size_t mount_count;
    struct sock_fprog filter;
    struct sock_fprog spare_filter;
};

static void
read_filter(int fd, struct sock_fprog *filter)
{
    size_t length;
    char *program = read_payload(fd, &length);
    if (length % sizeof(struct sock_filter))
        fail("seccomp", "not a BPF program");
    filter->len = (unsigned short)(length / sizeof(struct sock_filter));
    filter->filter = (struct sock_filter *)program;
}

/* Put a filter on, if it is not empty. Needs no_new_privs. Source: seccomp(2). */
static void
put_on(const struct sock_fprog *filter)
{
    if (filter->len)
        must((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter), "seccomp", "");
}

static void
read_cell(struct cell *cell)
{
    size_t length;
    char *text = read_payload(CONFIG_FD, &length);
    if (*text != TAG_ZYGOTE)
        fail("zygote", "not a configuration");
    struct fields fields = split(text + 1, length - 1);
    cell->has_layer = next_number(&fields);
    cell->log_flags = (unsigned)next_number(&fields);
    cell->bash = next_field(&fields);
    cell->mount_count = fields.left / 4;
    cell->mounts = calloc(cell->mount_count + 1, sizeof *cell->mounts);
    if (!cell->mounts)
        fail_errno("zygote", "mounts");
    for (size_t i = 0; i < cell->mount_count; i++) {
        struct mount *mount = &cell->mounts[i];
        mount->path = next_field(&fields);
        mount->device = next_number(&fields);
        mount->inode = next_number(&fields);
        mount->read_only = next_number(&fields);
    }
    read_filter(FILTER_FD, &cell->filter);
    read_filter(SPARE_FILTER_FD, &cell->spare_filter);
}

/* ---- the spare -------------------------------------------------------------------- */

/*
 * Check that the cell still has the mounts it was built with.
 *
 * A rename on the host over a masked or read-only-bound file silently drops the mount
 * inside a running cell, so this runs before every command. An inode often gets the
 * number of the one it replaces; whether the path is read-only tells a mount from what
 * lies under it.
 */
static void
check_mounts(const struct cell *cell)
{
    for (size_t i = 0; i < cell->mount_count; i++) {
        const struct mount *mount = &cell->mounts[i];
        struct stat found;
        struct statvfs system;
        if (lstat(mount->path, &found) < 0 || statvfs(mount->path, &system) < 0)
            fail("mounts", "%s: %s", mount->path, strerror(errno));
        if (found.st_dev != mount->device || found.st_ino != mount->inode ||
            !!(system.f_flag & ST_RDONLY) != mount->read_only)
            fail("mounts", "%s is no longer what was mounted there", mount->path);
    }
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
    if (!send_with_fds(REQUEST_FD, &tag, 1, &master, 1))
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
    char **environment = calloc(fields.left + 1, sizeof *environment);
    if (!environment)
        fail_errno("spare", "environment");
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
    must(close_range(REQUEST_FD + 1, SCRIPT_FD - has_script, 0), "stdio", "");
    must(close_range(SCRIPT_FD + 1, ~0U, 0), "stdio", "");
    char *argv[] = {"bash", "-c", command, NULL};
    char tag = TAG_RUNNING;
    must((int)send(REQUEST_FD, &tag, 1, MSG_NOSIGNAL), "exec", "");
    execve(cell->bash, argv, environment);
    fail_errno("exec", cell->bash);
}

static _Noreturn void
serve_one(const struct cell *cell)
{
    int fds[MAX_FDS], count;
    size_t length = receive(REQUEST_FD, fds, &count);
    if (length == 0)
        _exit(FAILED_STATUS);
    if (*packet == TAG_REQUEST)
        run(cell, packet + 1, length - 1, fds, count);
    if (*packet != TAG_REQUEST_MEMFD || count < 1)
        fail("spare", "not a request");
    char *payload = read_payload(fds[0], &length);
    if (*payload != TAG_REQUEST)
        fail("spare", "not a request");
    run(cell, payload + 1, length - 1, fds + 1, count - 1);
}

/* Arrange the descriptors, put on the inner walls, and wait for the request. */
static _Noreturn void
become_spare(const struct cell *cell, int request_fd, int out_fd, int err_fd)
{
    /* First of all: the keeper tells a spare from a command by this name. */
    prctl(PR_SET_NAME, "bashd-spare");
    int moved = dup3(request_fd, REQUEST_FD, O_CLOEXEC);
    failure_tag = TAG_STEP_FAILED;
    must(moved, "spare", "");
    must(setsid(), "spare", "setsid");
    must(dup2(out_fd, STDOUT_FILENO), "spare", "");
    must(dup2(err_fd, STDERR_FILENO), "spare", "");
    /* An inherited write end would delay end of file of another task, so everything
     * foreign goes now, not at exec. */
    must(close_range(cell->has_layer ? RULESET_FD + 1 : RULESET_FD, ~0U, 0), "spare", "");
    umask(022);
    if (cell->has_layer) {
        must((int)syscall(SYS_landlock_restrict_self, RULESET_FD, cell->log_flags),
             "landlock", "");
        close(RULESET_FD);
    }
    put_on(&cell->spare_filter);
    serve_one(cell);
}

/* ---- the zygote ------------------------------------------------------------------- */

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
        char text[32];
        int length = snprintf(text, sizeof text, "%d %d", grouped, pid);
        int fds[] = {request[0], out[0], err[0], pidfd};
        delivered = send_with_fds(CHANNEL_FD, text, (size_t)length, fds, 4);
    }
    /* A spare that was not delivered sees the end of its request socket. */
    close_all(request, 2);
    close_all(out, 2);
    close_all(err, 2);
    close_all(&pidfd, 1);
    return delivered;
}

int
main(void)
{
    catch_signals();
    prctl(PR_SET_NAME, "bashd-zygote");
    prctl(PR_SET_DUMPABLE, 0);
    struct cell cell = {0};
    read_cell(&cell);
    close_range(cell.has_layer ? RULESET_FD + 1 : RULESET_FD, ~0U, 0);
    put_on(&cell.filter);
    if (send(CHANNEL_FD, "!", 1, MSG_NOSIGNAL) < 0)
        return 1;
    int fds[MAX_FDS], count;
    while (receive(CHANNEL_FD, fds, &count) > 0) {
        /* No descriptors say that no process could be made. */
        if (!deliver(&cell, count > 0 ? fds[0] : -1) &&
            send(CHANNEL_FD, "-", 1, MSG_NOSIGNAL) < 0)
            return 1;
        close_all(fds, count);
    }
    return 0;
}
