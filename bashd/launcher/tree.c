/*
 * Finding and ending the whole process tree of one task, without a cgroup.
 *
 * Exact where a task has a cgroup (the daemon does that); this is the way without one.
 *
 * The tree is frozen before it is looked at: scanning and stopping one by one loses to a
 * growing fork bomb, one kill(-1, SIGSTOP) does not (3,000 processes in 29 ms). That is
 * only allowed where -1 cannot reach beyond the cell: as pid 1 of a pid namespace, or
 * behind a Landlock signal scope. A process that cut every tie (new session, parent gone,
 * environment cleared) is not found here; it ends with its cell.
 *
 * No signal goes to a number that was looked up: a pidfd is opened, and the process
 * behind it must be the one that was found.
 */

#include "cell.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    /* Bound on the slow path; each pass that finds nothing new ends it. */
    PASSES = 200,
    STAT_BYTES = 1024,
    READ_BYTES = 64 * 1024,
    /* More than execve takes; but a process may say that its environment is any part of
     * its memory, terabytes of it. Source: prctl(2), PR_SET_MM_MAP. */
    MAX_ENVIRON_BYTES = 8 * 1024 * 1024,
    END_LOOK_NS = 2000000,
};

/* One line of the process table. */
struct process {
    pid_t pid;
    pid_t parent;
    pid_t group;
    pid_t session;
    char state;
    bool found;
    unsigned long long started; /* ticks since boot; with the pid a name for good */
};

struct table {
    struct process *all;
    size_t count;
};

static int
open_proc(pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Read a short file of a process, with a NUL behind it; returns its length, 0 for none. */
ssize_t
read_proc(pid_t pid, const char *name, char *text, size_t room)
{
    int fd = open_proc(pid, name);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, room - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    return length;
}

/* Read /proc/PID/stat; false when it is gone. Source: proc_pid_stat(5). */
static bool
read_process(pid_t pid, struct process *process)
{
    char text[STAT_BYTES];
    if (!read_proc(pid, "stat", text, sizeof text))
        return false;
    /* The name in parentheses may itself hold spaces and parentheses. */
    char *behind = strrchr(text, ')');
    *process = (struct process){.pid = pid};
    return behind &&
           sscanf(behind + 1,
                  " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d"
                  " %*d %llu",
                  &process->state, &process->parent, &process->group, &process->session,
                  &process->started) == 5;
}

static int
by_pid(const void *one, const void *other)
{
    pid_t a = ((const struct process *)one)->pid;
    pid_t b = ((const struct process *)other)->pid;
    return (a > b) - (a < b);
}

/* Return every process this process can see, by pid. */
static struct table
process_table(void)
{
    struct table table = {0};
    size_t room = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (table.count == room) {
            room = room ? 2 * room : 256;
            table.all = resize(table.all, room, sizeof *table.all);
        }
        table.count += read_process(atoi(entry->d_name), &table.all[table.count]);
    }
    if (proc)
        closedir(proc);
    if (table.count)
        qsort(table.all, table.count, sizeof *table.all, by_pid);
    return table;
}

static struct process *
look_up(const struct table *table, pid_t pid)
{
    struct process wanted = {.pid = pid};
    return table->count
               ? bsearch(&wanted, table->all, table->count, sizeof wanted, by_pid)
               : NULL;
}

static bool
has(struct pids pids, pid_t pid)
{
    for (size_t i = 0; i < pids.count; i++)
        if (pids.all[i] == pid)
            return true;
    return false;
}

/* Whether the process was started with one of the markers in its environment. */
static bool
has_marker(pid_t pid, struct markers markers)
{
    int fd = open_proc(pid, "environ");
    if (fd < 0)
        return false;
    char *text = NULL;
    size_t length = 0;
    while (length < MAX_ENVIRON_BYTES) {
        text = resize(text, length + READ_BYTES + 1, 1);
        ssize_t got = read(fd, text + length, READ_BYTES);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    close(fd);
    text[length] = 0;
    bool found = false;
    for (char *at = text; at < text + length && !found; at += strlen(at) + 1)
        for (size_t i = 0; i < markers.count && !found; i++)
            found = strcmp(at, markers.all[i]) == 0;
    free(text);
    return found;
}

/*
 * Mark as found the processes of the tasks led by `leaders`.
 *
 * By session, by group, by descent, and by a run's marker for processes whose parent is
 * gone. `spared` are the cell's own processes and other tasks' leaders.
 */
static void
find_members(struct table *table, struct pids leaders, struct markers markers,
             struct pids spared)
{
    for (size_t i = 0; i < table->count; i++) {
        struct process *process = &table->all[i];
        if (has(spared, process->pid))
            continue;
        process->found = has(leaders, process->pid) || has(leaders, process->session) ||
                         has(leaders, process->group) ||
                         (markers.count && has_marker(process->pid, markers));
    }
    /* A child mostly comes behind its parent, so one pass mostly does. */
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < table->count; i++) {
            struct process *process = &table->all[i];
            struct process *parent = look_up(table, process->parent);
            if (process->found || !parent || !parent->found ||
                has(spared, process->pid))
                continue;
            process->found = more = true;
        }
    }
}

/* Signal a process that was found, unless its pid is another's by now. */
static void
signal_process(const struct process *process, int number)
{
    int pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (pidfd < 0)
        return;
    struct process now;
    if (read_process(process->pid, &now) && now.started == process->started)
        syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
    close(pidfd);
}

static bool
has_ended(const struct process *process)
{
    return process->state == 'Z' || process->state == 'X';
}

static void
kill_frozen(struct pids leaders, struct markers markers, struct pids spared)
{
    pid_t me = getpid();
    struct table before = process_table();
    kill(-1, SIGSTOP);
    struct table table = process_table();
    find_members(&table, leaders, markers, spared);
    for (size_t i = 0; i < table.count; i++)
        if (table.all[i].found && table.all[i].pid != me)
            signal_process(&table.all[i], SIGKILL);
    free(table.all);
    table = process_table();
    if (!table.count)
        /* It cannot be read. Rather some too many go on than none. */
        kill(-1, SIGCONT);
    for (size_t i = 0; i < table.count; i++) {
        const struct process *was = look_up(&before, table.all[i].pid);
        bool was_stopped = was && (was->state == 'T' || was->state == 't');
        if (!was_stopped && table.all[i].pid != me)
            signal_process(&table.all[i], SIGCONT);
    }
    free(table.all);
    free(before.all);
}

static void
stop_and_kill(struct pids leaders, struct markers markers, struct pids spared)
{
    struct table stopped = {0};
    for (int pass = 0; pass < PASSES; pass++) {
        struct table table = process_table();
        find_members(&table, leaders, markers, spared);
        size_t known = stopped.count;
        stopped.all =
            resize(stopped.all, known + table.count + 1, sizeof *stopped.all);
        for (size_t i = 0; i < table.count; i++) {
            struct process *process = &table.all[i];
            struct table older = {stopped.all, known};
            if (!process->found || has_ended(process) || look_up(&older, process->pid))
                continue;
            signal_process(process, SIGSTOP);
            stopped.all[stopped.count++] = *process;
        }
        free(table.all);
        if (stopped.count == known)
            break;
        qsort(stopped.all, stopped.count, sizeof *stopped.all, by_pid);
    }
    for (size_t i = 0; i < stopped.count; i++)
        signal_process(&stopped.all[i], SIGKILL);
    free(stopped.all);
}

/*
 * Send SIGKILL to every process of the tasks.
 *
 * `leaders` must be pinned (unreaped) children, so that no number is reused.
 */
void
kill_trees(struct pids leaders, struct markers markers, struct pids spared,
           bool may_freeze)
{
    if (may_freeze)
        kill_frozen(leaders, markers, spared);
    else
        stop_and_kill(leaders, markers, spared);
}

static void
kill_descendants(void)
{
    pid_t own = getpid();
    struct table table = process_table();
    find_members(&table, (struct pids){&own, 1}, (struct markers){0}, (struct pids){0});
    for (size_t i = 0; i < table.count; i++)
        if (table.all[i].found && table.all[i].pid != own)
            signal_process(&table.all[i], SIGKILL);
    free(table.all);
}

/*
 * End every descendant, at the end of a cell outside a pid namespace.
 *
 * As a child subreaper this process inherits every orphan, so killing children until
 * there are none ends the tree; with a signal scope one kill(-1) does.
 */
void
kill_everything(bool may_signal_all, uint64_t deadline_ms)
{
    uint64_t until = now_ms() + deadline_ms;
    while (now_ms() < until) {
        if (may_signal_all)
            kill(-1, SIGKILL);
        kill_descendants();
        pid_t reaped;
        while ((reaped = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (reaped < 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = END_LOOK_NS}, NULL);
    }
}

/*
 * Return the children of this single-threaded process, zombies included; to be freed.
 *
 * Source: proc_tid_children(5), Linux 3.5 with CONFIG_PROC_CHILDREN.
 */
struct pids
children_of_self(void)
{
    struct pids found = {0};
    size_t room = 0;
    pid_t own = getpid();
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", own, own);
    FILE *file = fopen(path, "re");
    struct table table = {0};
    if (!file)
        table = process_table();
    pid_t pid;
    for (size_t i = 0; file ? fscanf(file, "%d", &pid) == 1 : i < table.count; i++) {
        if (!file && table.all[i].parent != own)
            continue;
        if (found.count == room) {
            room = room ? 2 * room : 64;
            found.all = resize(found.all, room, sizeof *found.all);
        }
        found.all[found.count++] = file ? pid : table.all[i].pid;
    }
    if (file)
        fclose(file);
    free(table.all);
    return found;
}
