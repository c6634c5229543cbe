/*
 * Whether a cell still has the mounts it was built with.
 *
 * A rename on the host over a masked or read-only-bound file silently drops the mount
 * inside a running cell, so each spare looks before its command runs.
 */

#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

static _Noreturn void
fail_changed(const struct mount *mount)
{
    fail("mounts", "%s is no longer what was mounted there", mount->path);
}

/* One system call says all: statx(2), STATX_MNT_ID, Linux 5.8. */
static void
look_at(const struct mount *mount, struct statx *found)
{
    unsigned wanted = STATX_INO | STATX_MNT_ID;
    if (statx(AT_FDCWD, mount->path, AT_SYMLINK_NOFOLLOW, wanted, found) < 0)
        fail("mounts", "%s: %s", mount->path, strerror(errno));
    if (makedev(found->stx_dev_major, found->stx_dev_minor) != mount->device ||
        found->stx_ino != mount->inode)
        fail_changed(mount);
}

/*
 * Check the mounts once, whole, and keep their numbers.
 *
 * An inode often gets the number of the one it replaces; whether the path is read-only
 * tells a mount from what lies under it until its own number is known.
 */
void
pin_mounts(struct cell *cell)
{
    for (size_t i = 0; i < cell->mount_count; i++) {
        struct mount *mount = &cell->mounts[i];
        struct statx found;
        struct statvfs system;
        look_at(mount, &found);
        if (statvfs(mount->path, &system) < 0)
            fail("mounts", "%s: %s", mount->path, strerror(errno));
        if (!!(system.f_flag & ST_RDONLY) != mount->read_only)
            fail_changed(mount);
        mount->id = found.stx_mnt_id;
    }
}

void
check_mounts(const struct cell *cell)
{
    for (size_t i = 0; i < cell->mount_count; i++) {
        struct statx found;
        look_at(&cell->mounts[i], &found);
        if (found.stx_mnt_id != cell->mounts[i].id)
            fail_changed(&cell->mounts[i]);
    }
}
