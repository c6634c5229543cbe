/* Messages as wire.py has them: a tag, then fields with a NUL between them. */

#include "cell.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_PAYLOAD_BYTES = 32 * 1024 * 1024,
    REASON_BYTES = 2000,
    MAX_DIGITS = 20,
};

struct role role = {TAG_FAILED, "launcher", NULL};

/* Say which step failed, and why, and leave. Never an exit code: nothing has run. */
void
fail(const char *step, const char *format, ...)
{
    char message[REASON_BYTES];
    message[0] = role.failure_tag;
    size_t length = 1 + (size_t)snprintf(message + 1, 64, "%s", step) + 1;
    va_list arguments;
    va_start(arguments, format);
    int reason = vsnprintf(message + length, sizeof message - length, format, arguments);
    va_end(arguments);
    if (reason > 0) {
        size_t room = sizeof message - length - 1;
        length += (size_t)reason < room ? (size_t)reason : room;
    }
    send(ORDERS_FD, message, length, MSG_NOSIGNAL);
    void (*leave)(void) = role.leave;
    role.leave = NULL; /* that may fail, too */
    if (leave)
        leave();
    _exit(FAILED_STATUS);
}

void
fail_errno(const char *step, const char *subject)
{
    int number = errno;
    const char *name = strerrorname_np(number);
    fail(step, "%s%s%s: %s", subject, *subject ? ": " : "", name ? name : "EIO",
         strerror(number));
}

/* Return `result`, or fail with errno if it is negative. */
int
must(int result, const char *step, const char *subject)
{
    if (result < 0)
        fail_errno(step, subject);
    return result;
}

/* Return zeroed memory; without memory there is no going on. */
void *
allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        fail_errno(role.step, "memory");
    return memory;
}

/* Return `memory` with another size; what is added is not zeroed. */
void *
resize(void *memory, size_t count, size_t size)
{
    void *resized = reallocarray(memory, count, size);
    if (!resized)
        fail_errno(role.step, "memory");
    return resized;
}

/* Look at `length` bytes behind a tag; `text[length]` is a NUL. */
struct fields
split(char *text, size_t length)
{
    struct fields fields = {text, text + length, length > 0};
    for (char *nul = text; (nul = memchr(nul, 0, (size_t)(fields.end - nul))); nul++)
        fields.left++;
    return fields;
}

char *
next_field(struct fields *fields)
{
    if (fields->left == 0)
        fail(role.step, "a field is missing");
    char *field = fields->at;
    fields->at += strlen(field) + 1;
    fields->left--;
    return field;
}

/* Parse a decimal number that ends at `stop`; a negative one wraps, as rlim_t does. */
uint64_t
parse_number(const char *text, char stop, const char **rest)
{
    bool negative = *text == '-';
    const char *digit = text + negative;
    uint64_t value = 0;
    int count = 0;
    for (; *digit >= '0' && *digit <= '9' && count < MAX_DIGITS; digit++, count++)
        value = value * 10 + (uint64_t)(*digit - '0');
    if (count == 0 || *digit != stop)
        fail(role.step, "not a number: %.32s", text);
    if (rest)
        *rest = digit + 1;
    return negative ? -value : value;
}

uint64_t
next_number(struct fields *fields)
{
    return parse_number(next_field(fields), 0, NULL);
}

void
close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/*
 * Receive one packet and up to MAX_FDS descriptors, close-on-exec from the start.
 *
 * False, with errno, where none came: EAGAIN with MSG_DONTWAIT. Descriptors are also cut
 * off where this process may open no more.
 */
bool
receive(int socket_fd, int flags, struct packet *packet)
{
    static char text[PACKET_BYTES];
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec data = {text, sizeof text - 1};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        /* Not CMSG_SPACE: where its padding has room for one more, one more comes. */
        .msg_controllen = CMSG_LEN(MAX_FDS * sizeof(int)),
    };
    ssize_t length;
    do
        length = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | flags);
    while (length < 0 && errno == EINTR);
    *packet = (struct packet){.text = text};
    if (length < 0)
        return false;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        packet->fd_count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(packet->fds, CMSG_DATA(header), (size_t)packet->fd_count * sizeof(int));
    }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        close_all(packet->fds, packet->fd_count);
        packet->fd_count = 0;
        packet->cut_off = true;
    }
    text[length] = 0;
    packet->length = (size_t)length;
    return true;
}

/* Send a packet with descriptors; false when it cannot be delivered. */
bool
send_with_fds(int socket_fd, const void *text, size_t length, const int *fds, int count)
{
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec data = {(void *)text, length};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

/* Read a sealed memfd whole, put a NUL behind it, and close it. */
char *
read_payload(int fd, size_t *length)
{
    struct stat found;
    must(fstat(fd, &found), role.step, "payload");
    if (found.st_size > MAX_PAYLOAD_BYTES)
        fail(role.step, "payload of %lld bytes is too long", (long long)found.st_size);
    *length = (size_t)found.st_size;
    char *text = allocate(*length + 1, 1);
    for (size_t done = 0; done < *length;) {
        ssize_t got = pread(fd, text + done, *length - done, (off_t)done);
        if (got <= 0)
            fail(role.step, "payload is cut off");
        done += (size_t)got;
    }
    close(fd);
    return text;
}

uint64_t
now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
