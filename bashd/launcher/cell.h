/*
 * What the processes of a cell have in common; who is who: the package's docstring.
 *
 * One static program for all three, executed from a sealed memfd: small, so that a fork
 * costs a tenth of an interpreter's, in time and in memory, and so does being woken. The
 * memfd may be executed and not read, so none of them can be traced or looked into from
 * its first instruction on; see proc_pid(5), "suid_dumpable".
 */

#ifndef BASHD_CELL_H
#define BASHD_CELL_H

#define _GNU_SOURCE
#include <linux/filter.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>

/* Newer than some headers; one number on all architectures (asm-generic/unistd.h). */
#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif

enum {
    /* The socket a process takes its orders from and reports on: of a keeper to the
     * daemon, of a zygote to the keeper, of a spare to the daemon. */
    ORDERS_FD = 3,
    /* Landlock rules for each spare. */
    RULESET_FD = 4,
    /* Landlock rules for the zygote and with it all spares. */
    LAYER_FD = 5,
    /* Folder of the daemon's socket for keepers that have lost theirs. */
    HOME_FD = 6,
    /* What the keeper reads when it starts. */
    CONFIG_FD = 7,
    FILTER_FD = 8,
    SPARE_FILTER_FD = 9,
    /* Where bash reads a command that is too long for an argument. */
    SCRIPT_FD = 9,
};

enum {
    PACKET_BYTES = 64 * 1024,
    MAX_FDS = 5,
    SPARE_FDS = 4,
    FAILED_STATUS = 127,
};

/* Of wire.py. */
enum {
    TAG_HELLO = 'H',
    TAG_SPARE = 'S',
    TAG_EXITED = 'X',
    TAG_FAILED = 'F',
    TAG_ADOPT = 'O',
    TAG_ADOPTED = 'y',
    TAG_TASK = 'T',
    TAG_TASKS_END = 't',
    TAG_HELD = 'h',
    TAG_FORK = 'N',
    TAG_SIGNAL = 'G',
    TAG_KILL = 'K',
    TAG_ACK = 'A',
    TAG_DROP = 'D',
    TAG_HOLD = 'P',
    TAG_END = 'E',
    TAG_CELL = 'Z',
    TAG_REQUEST = 'R',
    TAG_REQUEST_MEMFD = 'M',
    TAG_TERMINAL = 'p',
    TAG_RUNNING = 'x',
    TAG_STEP_FAILED = 'f',
};

/* Between keeper and zygote alone. */
enum {
    TAG_READY = '!',
    TAG_MORE = '+',
    TAG_REFUSED = '-',
};

/* A spare's name; exec gives it another, and a zombie keeps it. */
#define SPARE_NAME "bashd-spare"
#define ZYGOTE_NAME "bashd-zygote"

/* ---- messages.c ------------------------------------------------------------------ */

/* Which message says that this process failed, and what it was doing by default. */
struct role {
    char failure_tag;
    const char *step;
    void (*leave)(void); /* what is to be done before it leaves, if anything */
};
extern struct role role;

struct packet {
    char *text;    /* with a NUL behind it; until the next one is received */
    size_t length; /* 0 at end of file */
    int fds[MAX_FDS];
    int fd_count;
    bool cut_off; /* it did not come whole; its descriptors are closed */
};

struct fields {
    char *at;
    char *end; /* where the last field's NUL is */
    size_t left;
};

_Noreturn void fail(const char *step, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void fail_errno(const char *step, const char *subject);
int must(int result, const char *step, const char *subject);
void *allocate(size_t count, size_t size);
void *resize(void *memory, size_t count, size_t size);

struct fields split(char *text, size_t length);
char *next_field(struct fields *fields);
uint64_t next_number(struct fields *fields);
uint64_t parse_number(const char *text, char stop, const char **rest);

bool receive(int socket_fd, int flags, struct packet *packet);
bool send_with_fds(int socket_fd, const void *text, size_t length, const int *fds,
                   int count);
char *read_payload(int fd, size_t *length);
void close_all(const int *fds, int count);
uint64_t now_ms(void);

/* ---- what the cell is ------------------------------------------------------------- */

struct mount {
    const char *path;
    dev_t device;
    ino_t inode;
    bool read_only;
    uint64_t id; /* as the keeper has found it */
};

/* How to find the daemon that replaces a dead one. */
struct home {
    const char *name; /* of a socket in the folder HOME_FD */
    uid_t uid;
    char *cell;
    char *secret;
    uint64_t timeout_ms;
};

struct cell {
    bool has_ruleset;
    bool has_layer;
    bool has_home;
    bool may_signal_all; /* kill(-1) reaches nothing but the cell */
    unsigned log_flags;
    uint64_t landlock_abi;
    bool landlock_scoped;
    char *bash;
    struct home home;
    struct mount *mounts;
    size_t mount_count;
    struct sock_fprog filter;
    struct sock_fprog spare_filter;
};

/* ---- the three processes, and what the keeper needs ------------------------------- */

/* spare.c */
_Noreturn void become_spare(const struct cell *cell, int request_fd, int out_fd,
                            int err_fd);
void put_on(const struct sock_fprog *filter);

/* mounts.c */
void pin_mounts(struct cell *cell);
void check_mounts(const struct cell *cell);

/* zygote.c */
_Noreturn void become_zygote(const struct cell *cell, int channel_fd);

/* home.c */
int dial_home(const struct home *home);

/* tree.c: see there. */
ssize_t read_proc(pid_t pid, const char *name, char *text, size_t room);
struct pids {
    pid_t *all;
    size_t count;
};
struct markers {
    const char **all;
    size_t count;
};
void kill_trees(struct pids leaders, struct markers markers, struct pids spared,
                bool may_freeze);
void kill_everything(bool may_signal_all, uint64_t deadline_ms);
struct pids children_of_self(void);

#endif
