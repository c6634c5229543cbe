/*
 * The keeper: first process of a cell; see the package's docstring for the whole.
 *
 * keeper.py has put it behind the cell's outer walls. One epoll loop, no threads. It holds
 * what must outlive everything else in the cell: the children's pids (pinned by not
 * reaping), their exit statuses and copies of the read ends of their pipes.
 */

#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    /* How long the end of a cell waits for processes outside a pid namespace. */
    END_DEADLINE_MS = 5000,
    /* About what the socket holds. */
    MESSAGES_A_TURN = 300,
    EVENTS_A_TURN = 64,
    /* How long orphans may stay zombies: one look at all children serves many. */
    REAP_MS = 50,
    /* After a refused fork: a limit on processes is reached, and lasts while it lasts. */
    RETRY_MS = 100,
    /* Orders the zygote is asked at the same time. More would fill its socket and that of
     * its answers, and each of us would wait for the other to read. */
    AT_ONCE = 16,
    /* The zygote has nothing to load and is ready within milliseconds. */
    START_MS = 5000,
    /* Between looks whether one that starts was stopped: the loop does not run then. */
    START_LOOK_MS = 20,
    /* How long the new daemon may take to make room for the descriptors of all tasks. */
    HAND_OVER_MS = 5000,
    SEND_AGAIN_NS = 5000000,
    /* A folder and a file in it. */
    ROOM_FDS = 2,
};

#define NEVER UINT64_MAX

/* A spare or the command it became. */
struct child {
    struct child *next;
    uint64_t serial; /* the daemon's name for it */
    pid_t pid;
    int pidfd;
    int pipes[2];  /* copies of the read ends of stdout and stderr; -1: dropped */
    int seconds[2]; /* of the pipes that take over from them; -1: none */
    bool is_task;  /* it is to survive the daemon's death: the daemon said so */
    bool reported; /* the daemon was told of its end */
    bool doomed;   /* its tree is to end */
    char *marker;  /* what marks those of its tree who hide; "" for none */
    bool done;     /* the daemon has taken note of its end */
};

/* One spare that the daemon has asked for. */
struct order {
    struct order *next;
    uint64_t serial;
    int group_fd;   /* folder of the cgroup it is to be born in; -1: none */
    bool withdrawn; /* whoever asked is gone; so will the spare be, when it sees that */
};

/* First in, first out. */
struct queue {
    struct order *first;
    struct order *last;
    size_t count;
};

static struct cell cell;
static struct child *children;
static int epoll_fd, signal_fd;
static uint64_t reap_at = NEVER; /* when orphans are to be reaped: one may have ended */
static bool ended;
/* However many descriptors the children take, trees must be found and ended: without
 * room the process table would be empty, and the frozen would stay so. */
static int room[ROOM_FDS];

/*
 * The zygote answers in the order it was asked. It may be stopped or killed by a command
 * of its own cell at any moment, while it starts too, or refused a fork by a limit on
 * processes; in all cases what was asked of it is asked again, at once or a moment later,
 * so the daemon gets every spare it ordered.
 */
static struct {
    pid_t pid;
    int channel;          /* -1 without a zygote */
    struct queue asked;   /* what it has not answered */
    struct queue pending; /* to be asked when there is room, and not before `again_at` */
    uint64_t again_at;
} zygote = {.channel = -1};

/* ---- small things ----------------------------------------------------------------- */

static void
push(struct queue *queue, struct order *order)
{
    order->next = NULL;
    if (queue->last)
        queue->last->next = order;
    else
        queue->first = order;
    queue->last = order;
    queue->count++;
}

static struct order *
pop(struct queue *queue)
{
    struct order *order = queue->first;
    queue->first = order->next;
    if (!queue->first)
        queue->last = NULL;
    queue->count--;
    return order;
}

static void
free_order(struct order *order)
{
    close_all(&order->group_fd, 1);
    free(order);
}

/* What an event of the loop is about: a child's serial, or one of these. */
enum { ABOUT_CONTROL, ABOUT_SIGNAL, ABOUT_ZYGOTE, ABOUT_CHILD };

static void
watch(int fd, unsigned about, uint64_t serial)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = serial << 2 | about};
    if (about == ABOUT_CHILD)
        /* The end of one that is traced can be seen before there is a status: that the
         * tracer gets first, and its wait is one more event. */
        event.events |= EPOLLET;
    must(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event), "launcher", "epoll");
}

static void
unwatch(int fd)
{
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* Send to the daemon; a daemon that is gone is noticed by the loop.
 *
 * False when too many descriptors are on their way: a user's commands can see to that.
 * Source: unix(7), ETOOMANYREFS.
 */
static bool
send_home(const char *text, int length, const int *fds, int fd_count)
{
    return send_with_fds(ORDERS_FD, text, (size_t)length, fds, fd_count) ||
           errno != ETOOMANYREFS;
}

static struct child *
find_child(uint64_t serial)
{
    struct child *child = children;
    while (child && child->serial != serial)
        child = child->next;
    return child;
}

static bool
is_child(pid_t pid)
{
    for (struct child *child = children; child; child = child->next)
        if (child->pid == pid)
            return true;
    return false;
}

/* Close the copies, so that a writer can meet EPIPE. */
static void
drop_pipes(struct child *child)
{
    close_all(child->pipes, 2);
    close_all(child->seconds, 2);
    for (int i = 0; i < 2; i++)
        child->pipes[i] = child->seconds[i] = -1;
}

/* Free what belongs to a reaped child. */
static void
release(struct child *child)
{
    struct child **link = &children;
    while (*link != child)
        link = &(*link)->next;
    *link = child->next;
    drop_pipes(child);
    close(child->pidfd);
    free(child->marker);
    free(child);
}

/* Keep room for what looking through the process table opens. */
static void
keep_room(void)
{
    for (int i = 0; i < ROOM_FDS; i++)
        room[i] = fcntl(epoll_fd, F_DUPFD_CLOEXEC, ORDERS_FD + 1);
}

static void
use_room(void)
{
    close_all(room, ROOM_FDS);
}

/* Whether a process, dead or alive, has not become a command. */
static bool
is_spare(pid_t pid)
{
    char name[64] = "";
    use_room();
    read_proc(pid, "comm", name, sizeof name);
    keep_room();
    /* It has the zygote's for its first moments. */
    return strcmp(name, SPARE_NAME "\n") == 0 || strcmp(name, ZYGOTE_NAME "\n") == 0;
}

/* ---- the zygote ------------------------------------------------------------------- */

/* Whether the process is gone; it is continued if it is only stopped. */
static bool
zygote_has_ended(void)
{
    siginfo_t seen = {0};
    int how = WSTOPPED | WEXITED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, (id_t)zygote.pid, &seen, how) < 0)
        return true;
    if (seen.si_pid == 0)
        return false;
    if (seen.si_code != CLD_STOPPED)
        return true;
    kill(zygote.pid, SIGCONT);
    return false;
}

/*
 * Wait until the zygote says that its layers are on.
 *
 * False, with its words in `said` if it had any, where one of them could not be put on.
 */
static bool
zygote_is_ready(int channel, struct packet *said)
{
    struct pollfd readable = {.fd = channel, .events = POLLIN};
    uint64_t until = now_ms() + START_MS;
    *said = (struct packet){0};
    while (poll(&readable, 1, START_LOOK_MS) <= 0) {
        if (now_ms() > until) {
            kill(zygote.pid, SIGKILL);
            return false;
        }
        if (zygote_has_ended())
            /* Its end of the channel may live on in a copy. */
            break;
    }
    return receive(channel, MSG_DONTWAIT, said) && said->length > 0 &&
           *said->text == TAG_READY;
}

/* Fork a zygote; false, with what it `said`, when there is none.
 *
 * Then errno is 0 where there was one. */
static bool
start_zygote(struct packet *said)
{
    int channel[2];
    *said = (struct packet){0};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) < 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        become_zygote(&cell, channel[1]);
    /* Succeeds, so errno stays. */
    close(channel[1]);
    if (pid > 0)
        zygote.pid = pid;
    if (pid < 0 || !zygote_is_ready(channel[0], said)) {
        int number = pid < 0 ? errno : 0;
        close(channel[0]);
        errno = number;
        return false;
    }
    zygote.channel = channel[0];
    watch(zygote.channel, ABOUT_ZYGOTE, 0);
    return true;
}

/*
 * Forget a zygote that is gone; another one will do what it was asked.
 *
 * What it had made and nobody received ends by itself: its request socket closes.
 */
static void
lose_zygote(void)
{
    if (zygote.channel >= 0) {
        unwatch(zygote.channel);
        close(zygote.channel);
        zygote.channel = -1;
    }
    struct queue again = {0};
    while (zygote.asked.count) {
        struct order *order = pop(&zygote.asked);
        if (order->withdrawn)
            free_order(order);
        else
            push(&again, order);
    }
    while (zygote.pending.count)
        push(&again, pop(&zygote.pending));
    zygote.pending = again;
}

static void
wait_a_while(void)
{
    zygote.again_at = now_ms() + RETRY_MS;
}

/* Whether there are orders that the zygote may be asked. */
static bool
has_to_ask(void)
{
    return zygote.pending.count && zygote.asked.count < AT_ONCE;
}

/* Ask for what is pending, as far as that can be done now. */
static void
ask_zygote(void)
{
    while (has_to_ask() && (!zygote.again_at || now_ms() >= zygote.again_at)) {
        zygote.again_at = 0;
        struct packet said;
        const int *group_fd = &zygote.pending.first->group_fd;
        char tag = TAG_MORE;
        if ((zygote.channel >= 0 || start_zygote(&said)) &&
            send_with_fds(zygote.channel, &tag, 1, group_fd, *group_fd >= 0)) {
            push(&zygote.asked, pop(&zygote.pending));
        } else {
            /* It has ended, perhaps while it started; or there is no process to be had.
             * The cell's tasks are not to suffer. */
            lose_zygote();
            wait_a_while();
        }
    }
}

/* Pass a new spare on to the daemon and register it; false where that cannot be done. */
static bool
deliver(const struct order *order, struct packet *answer)
{
    struct fields fields = split(answer->text + 1, answer->length - 1);
    pid_t pid = (pid_t)next_number(&fields);
    char text[96];
    int length =
        snprintf(text, sizeof text, "%c%llu%c%d%c%s", TAG_SPARE,
                 (unsigned long long)order->serial, 0, pid, 0, next_field(&fields));
    if (!send_home(text, length, answer->fds, SPARE_FDS))
        return false;
    struct child *child = allocate(1, sizeof *child);
    child->serial = order->serial;
    child->pid = pid;
    child->pipes[0] = answer->fds[1];
    child->pipes[1] = answer->fds[2];
    child->seconds[0] = child->seconds[1] = -1;
    child->pidfd = answer->fds[3];
    child->next = children;
    children = child;
    close(answer->fds[0]);
    watch(child->pidfd, ABOUT_CHILD, child->serial);
    return true;
}

/* Deliver a new spare, or notice that the zygote is gone. */
static void
on_zygote(void)
{
    struct packet answer;
    if (zygote.channel < 0)
        return;
    if (!receive(zygote.channel, MSG_DONTWAIT, &answer)) {
        if (errno == EAGAIN)
            /* The event was of one that is gone. */
            return;
        answer.length = 0;
    }
    if (answer.length == 0 || zygote.asked.count == 0) {
        close_all(answer.fds, answer.fd_count);
        lose_zygote();
        ask_zygote();
        return;
    }
    struct order *order = pop(&zygote.asked);
    if (order->withdrawn) {
        close_all(answer.fds, answer.fd_count);
        free_order(order);
    } else if (*answer.text == TAG_SPARE && answer.fd_count == SPARE_FDS &&
               deliver(order, &answer)) {
        free_order(order);
    } else {
        /* Refused, or there was no room for its descriptors here or on the way. */
        close_all(answer.fds, answer.fd_count);
        push(&zygote.pending, order);
        wait_a_while();
    }
    ask_zygote();
}

/*
 * Continue a zygote that was stopped, replace one that has ended.
 *
 * The kernel tells a parent of both. SIGSTOP no process can refuse. The end of the channel
 * comes late or never where a spare still has a copy of it: one that was stopped before it
 * could close what is not its own.
 */
static void
look_after_zygote(void)
{
    if (zygote.channel >= 0 && zygote_has_ended()) {
        lose_zygote();
        ask_zygote();
    }
}

/* Drop what was asked for: whoever asked is gone. */
static void
forget_orders(void)
{
    for (struct order *order = zygote.asked.first; order; order = order->next) {
        order->withdrawn = true;
        close_all(&order->group_fd, 1);
        order->group_fd = -1;
    }
    while (zygote.pending.count)
        free_order(pop(&zygote.pending));
}

/* ---- children --------------------------------------------------------------------- */

/* Tell the daemon how a child ended; it stays a zombie until ACK. */
static void
report_exit(struct child *child)
{
    siginfo_t seen = {0};
    struct rusage usage = {0};
    /* The fifth argument is the raw system call's; waitid(2). */
    if (syscall(SYS_waitid, P_PID, child->pid, &seen, WEXITED | WNOHANG | WNOWAIT,
                &usage) < 0 ||
        seen.si_pid == 0)
        return;
    int status = seen.si_code == CLD_EXITED
                     ? seen.si_status << 8
                     : seen.si_status | (seen.si_code == CLD_DUMPED ? 0x80 : 0);
    long long cpu_us =
        (long long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
        usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    bool ran = !(child->is_task && is_spare(child->pid));
    char text[128];
    int length = snprintf(text, sizeof text, "%c%llu%c%d%c%lld%c%ld%c%d", TAG_EXITED,
                          (unsigned long long)child->serial, 0, status, 0, cpu_us, 0,
                          usage.ru_maxrss, 0, ran);
    send_home(text, length, NULL, 0);
    child->reported = true;
    unwatch(child->pidfd);
}

/* Return the pids of the children that are doomed, or of those that are not. */
static struct pids
pids_of(bool doomed)
{
    struct pids found = {0};
    size_t most = 2;
    for (struct child *child = children; child; child = child->next)
        most++;
    found.all = allocate(most, sizeof *found.all);
    for (struct child *child = children; child; child = child->next)
        if (child->doomed == doomed)
            found.all[found.count++] = child->pid;
    return found;
}

/* End the whole trees of the doomed children, if there are any; markers find those who hide. */
static void
kill_doomed(void)
{
    struct pids leaders = pids_of(true);
    if (!leaders.count) {
        free(leaders.all);
        return;
    }
    struct pids spared = pids_of(false);
    struct markers markers = {allocate(leaders.count, sizeof *markers.all), 0};
    for (struct child *child = children; child; child = child->next)
        if (child->doomed && child->marker && *child->marker)
            markers.all[markers.count++] = child->marker;
    spared.all[spared.count++] = getpid();
    spared.all[spared.count++] = zygote.pid;
    use_room();
    kill_trees(leaders, markers, spared, cell.may_signal_all);
    keep_room();
    for (struct child *child = children; child; child = child->next)
        child->doomed = false;
    free(leaders.all);
    free(spared.all);
    free(markers.all);
}

/* End the trees that were named, then forget the children that are done. */
static void
finish_kills(void)
{
    kill_doomed();
    for (struct child *child = children, *next; child; child = next) {
        next = child->next;
        if (child->done && child->reported) {
            waitpid(child->pid, NULL, 0);
            release(child);
        } else {
            child->done = false;
        }
    }
}

/* Reap what is ours by adoption; a child that is a task stays pinned. */
static void
reap_orphans(void)
{
    if (zygote.asked.count) {
        /* A spare may exist that we have not been told of yet. */
        reap_at = now_ms() + REAP_MS;
        return;
    }
    reap_at = NEVER;
    use_room();
    struct pids found = children_of_self();
    keep_room();
    for (size_t i = 0; i < found.count; i++)
        if (!is_child(found.all[i]))
            waitpid(found.all[i], NULL, WNOHANG);
    free(found.all);
}

/* Signal the task's process group; the leader alone if there is none yet. */
static void
signal_group(const struct child *child, int number)
{
    if (killpg(child->pid, number) < 0 && errno == ESRCH && !child->reported)
        syscall(SYS_pidfd_send_signal, child->pidfd, number, NULL, 0);
}

/* ---- the daemon ------------------------------------------------------------------- */

/* Handle the messages that name a child by its serial. */
static void
on_child_message(char tag, struct fields *fields)
{
    uint64_t serial = next_number(fields);
    struct child *child = find_child(serial);
    if (!child)
        return;
    switch (tag) {
    case TAG_KILL:
        child->doomed = true;
        free(child->marker);
        child->marker = strdup(next_field(fields));
        return;
    case TAG_ACK:
        /* A kill that was asked for before needs its pid. */
        child->done = true;
        return;
    }
    finish_kills();
    /* It may have been forgotten by that. */
    child = find_child(serial);
    if (!child)
        return;
    if (tag == TAG_SIGNAL)
        signal_group(child, (int)next_number(fields));
    else if (tag == TAG_TASK)
        child->is_task = true;
    else if (tag == TAG_DROP)
        drop_pipes(child);
}

static bool
is_kept(const struct child *child)
{
    return child->is_task && child->pipes[0] >= 0;
}

/*
 * End the children that nobody will ask for.
 *
 * Spares; foreground runs, whose callers went with the daemon; and a task whose pipes the
 * daemon had dropped, which holds nothing to hand over. One that has not ended yet is
 * reaped as an orphan, for it may take long: it waits for a disk, has another user's
 * rights by now, or is traced by a task that goes on.
 */
static void
forget_spares(void)
{
    for (struct child *child = children; child; child = child->next) {
        child->doomed = !is_kept(child);
        free(child->marker);
        child->marker = NULL;
    }
    kill_doomed();
    for (struct child *child = children, *next; child; child = next) {
        next = child->next;
        if (is_kept(child))
            continue;
        if (!child->reported)
            unwatch(child->pidfd);
        waitpid(child->pid, NULL, WNOHANG);
        release(child);
    }
}

/* Give a task to the new daemon. */
static void
hand_over(const struct child *child, uint64_t until_ms)
{
    char text[64];
    int length = snprintf(text, sizeof text, "%c%llu%c%d%c%d%c%d", TAG_TASK,
                          (unsigned long long)child->serial, 0, child->pid, 0,
                          child->seconds[0] >= 0, 0, child->seconds[1] >= 0);
    int fds[MAX_FDS] = {child->pipes[0], child->pipes[1], child->pidfd};
    int count = 3;
    for (int i = 0; i < 2; i++)
        if (child->seconds[i] >= 0)
            fds[count++] = child->seconds[i];
    /* A task that is not told of is lost; all cells of a user come home at once. */
    while (!send_home(text, length, fds, count) && now_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = SEND_AGAIN_NS}, NULL);
}

/* Dial home and go on with the running tasks, or end. */
static void
on_daemon_lost(void)
{
    unwatch(ORDERS_FD);
    close(ORDERS_FD);
    forget_orders();
    forget_spares();
    int fd = cell.has_home && children ? dial_home(&cell.home) : -1;
    if (fd < 0 || (fd != ORDERS_FD && dup3(fd, ORDERS_FD, O_CLOEXEC) < 0)) {
        ended = true;
        return;
    }
    if (fd != ORDERS_FD)
        close(fd);
    watch(ORDERS_FD, ABOUT_CONTROL, 0);
    uint64_t until = now_ms() + HAND_OVER_MS;
    for (struct child *child = children; child; child = child->next) {
        hand_over(child, until);
    }
    send_home((char[]){TAG_TASKS_END}, 1, NULL, 0);
    for (struct child *child = children; child; child = child->next) {
        /* An exit that was reported to the dead daemon is reported again. */
        if (child->reported)
            watch(child->pidfd, ABOUT_CHILD, child->serial);
        child->reported = false;
    }
}

static void
on_fork(struct fields *fields, struct packet *packet)
{
    if (packet->fd_count > 1 || fields->left != 1)
        fail("launcher", "fork came with %d descriptors and %zu fields",
             packet->fd_count, fields->left);
    struct order *order = allocate(1, sizeof *order);
    order->serial = next_number(fields);
    order->group_fd = packet->fd_count ? packet->fds[0] : -1;
    push(&zygote.pending, order);
    ask_zygote();
}

/*
 * Hold the second pipe of a task's stream, and say so.
 *
 * In silence where there was no room for its descriptor: the daemon does without.
 */
static void
on_hold(struct fields *fields, struct packet *packet)
{
    struct child *child = find_child(next_number(fields));
    uint64_t stream = next_number(fields);
    if (packet->fd_count != 1 || !child || child->pipes[0] < 0 || stream < 1 ||
        stream > 2) {
        close_all(packet->fds, packet->fd_count);
        return;
    }
    int *second = &child->seconds[stream - 1];
    close_all(second, 1);
    *second = packet->fds[0];
    char text[64];
    int length = snprintf(text, sizeof text, "%c%llu%c%d", TAG_HELD,
                          (unsigned long long)child->serial, 0, (int)stream);
    send_home(text, length, NULL, 0);
}

/* Obey one message; false when there is none, or it was this socket's last. */
static bool
obey_one(void)
{
    struct packet packet;
    if (!receive(ORDERS_FD, MSG_DONTWAIT, &packet)) {
        if (errno == EAGAIN)
            return false;
        packet.length = 0;
    }
    char tag = packet.length ? *packet.text : 0;
    struct fields fields = split(packet.text + 1, packet.length ? packet.length - 1 : 0);
    if (tag == TAG_FORK) {
        /* Where its cgroup's descriptor found no room, it is born outside. */
        on_fork(&fields, &packet);
        return true;
    }
    if (tag == TAG_HOLD) {
        on_hold(&fields, &packet);
        return true;
    }
    close_all(packet.fds, packet.fd_count);
    if (packet.cut_off)
        fail("launcher", "packet cut off");
    if (!tag) {
        finish_kills();
        on_daemon_lost();
    } else if (tag == TAG_END) {
        ended = true;
    } else {
        on_child_message(tag, &fields);
        return true;
    }
    return false;
}

/*
 * Obey what the daemon has said; anything malformed ends the cell.
 *
 * Trees that are to end are ended together where nothing else was said in between: a look
 * at the process table takes as long for a hundred as for one.
 */
static void
on_control(void)
{
    for (int left = MESSAGES_A_TURN; left && obey_one(); left--)
        ;
    finish_kills();
}

/* ---- loop ------------------------------------------------------------------------- */

static void
on_signal(void)
{
    struct signalfd_siginfo seen;
    while (read(signal_fd, &seen, sizeof seen) > 0)
        ;
    look_after_zygote();
    if (reap_at == NEVER)
        reap_at = now_ms() + REAP_MS;
}

/* Return in how many milliseconds there is something to do; -1: not by itself. */
static int
timeout_ms(void)
{
    uint64_t at = reap_at;
    if (has_to_ask() && zygote.again_at < at)
        at = zygote.again_at;
    if (at == NEVER)
        return -1;
    uint64_t now = now_ms();
    return at > now ? (int)(at - now) : 0;
}

static void
turn(void)
{
    struct epoll_event events[EVENTS_A_TURN];
    /* Negative, too: a process that was stopped and continued is interrupted. */
    int count = epoll_wait(epoll_fd, events, EVENTS_A_TURN, timeout_ms());
    ask_zygote();
    /* Exits first: somebody waits for them, and orphans can wait. */
    for (int i = 0; i < count; i++) {
        struct child *child = NULL;
        if ((events[i].data.u64 & 3) == ABOUT_CHILD)
            child = find_child(events[i].data.u64 >> 2);
        if (child && !child->reported)
            report_exit(child);
    }
    for (int i = 0; i < count; i++) {
        switch (events[i].data.u64 & 3) {
        case ABOUT_CONTROL:
            on_control();
            break;
        case ABOUT_SIGNAL:
            on_signal();
            break;
        case ABOUT_ZYGOTE:
            on_zygote();
            break;
        }
    }
    if (reap_at != NEVER && now_ms() >= reap_at)
        reap_orphans();
}

/* ---- start ------------------------------------------------------------------------ */

static void
read_filter(int fd, struct sock_fprog *filter)
{
    size_t length;
    char *program = read_payload(fd, &length);
    if (length % sizeof(struct sock_filter) ||
        length / sizeof(struct sock_filter) > BPF_MAXINSNS)
        fail("seccomp", "not a BPF program");
    filter->len = (unsigned short)(length / sizeof(struct sock_filter));
    filter->filter = (struct sock_filter *)program;
}

/* Read what keeper.py has written; see `wire.cell_configuration`. */
static void
read_cell(void)
{
    size_t length;
    char *text = read_payload(CONFIG_FD, &length);
    if (*text != TAG_CELL)
        fail("launcher", "not a configuration");
    struct fields fields = split(text + 1, length - 1);
    cell.has_ruleset = next_number(&fields);
    cell.has_layer = next_number(&fields);
    cell.log_flags = (unsigned)next_number(&fields);
    cell.landlock_abi = next_number(&fields);
    cell.landlock_scoped = next_number(&fields);
    cell.may_signal_all = next_number(&fields);
    cell.bash = next_field(&fields);
    cell.has_home = next_number(&fields);
    if (cell.has_home) {
        cell.home.name = next_field(&fields);
        cell.home.uid = (uid_t)next_number(&fields);
        cell.home.cell = next_field(&fields);
        cell.home.secret = next_field(&fields);
        cell.home.timeout_ms = next_number(&fields);
    }
    cell.mount_count = fields.left / 4;
    cell.mounts = allocate(cell.mount_count, sizeof *cell.mounts);
    for (size_t i = 0; i < cell.mount_count; i++) {
        struct mount *mount = &cell.mounts[i];
        mount->path = next_field(&fields);
        mount->device = next_number(&fields);
        mount->inode = next_number(&fields);
        mount->read_only = next_number(&fields);
    }
    read_filter(FILTER_FD, &cell.filter);
    read_filter(SPARE_FILTER_FD, &cell.spare_filter);
}

/* Return the union of the five capability sets. */
static unsigned long long
capabilities(void)
{
    unsigned long long all = 0, set;
    char line[256], which[8];
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        fail_errno("launcher", "/proc/self/status");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Cap%7[A-Za-z]: %llx", which, &set) == 2)
            all |= set;
    fclose(file);
    return all;
}

/* Prove what the cell's processes are really behind. */
static void
say_hello(void)
{
    char text[256];
    int length = snprintf(
        text, sizeof text, "%c%d%c%u%c%u%c%llu%c%d%c%d%c%d%c%llu", TAG_HELLO, getpid(), 0,
        getuid(), 0, getgid(), 0, (unsigned long long)cell.landlock_abi, 0,
        cell.landlock_scoped, 0, cell.filter.len > 0, 0,
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, 0, capabilities());
    send_home(text, length, NULL, 0);
}

/* Every signal but SIGCHLD is ignored since the launcher's first moment. */
static void
take_signals(void)
{
    sigset_t wanted;
    /* Whoever started the daemon may have ignored it, and of children that nobody waits
     * for the kernel keeps no status. Source: wait(2). */
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    must(sigprocmask(SIG_SETMASK, &wanted, NULL), "launcher", "signals");
    signal_fd = must(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC), "launcher",
                     "signals");
    watch(signal_fd, ABOUT_SIGNAL, 0);
}

/* Leave nothing behind; for pid 1 the kernel sees to that when it exits. */
static void
end_all(void)
{
    use_room();
    if (getpid() != 1)
        kill_everything(cell.may_signal_all, END_DEADLINE_MS);
}

int
main(void)
{
    prctl(PR_SET_NAME, "bashd-keeper");
    prctl(PR_SET_DUMPABLE, 0);
    read_cell();
    /* Only the control socket and what the zygote needs stay. */
    close_range(SPARE_FILTER_FD + 1, ~0U, 0);
    pin_mounts(&cell);
    epoll_fd = must(epoll_create1(EPOLL_CLOEXEC), "launcher", "epoll");
    keep_room();
    role.leave = end_all;
    watch(ORDERS_FD, ABOUT_CONTROL, 0);
    take_signals();
    struct packet said;
    if (!start_zygote(&said)) {
        /* In its own words, if it had any. */
        if (said.length > 0 && *said.text == TAG_FAILED)
            send_home(said.text, (int)said.length, NULL, 0);
        else if (errno)
            fail_errno("zygote", "fork");
        else
            fail("zygote", "it ended before it was ready");
        return 1;
    }
    say_hello();
    while (!ended)
        turn();
    role.leave = NULL;
    end_all();
    return 0;
}
