/* Disk that fails on request: preloaded into processes, it replaces fsync and fdatasync.
 *
 * For a file in a directory D, or for D itself:
 *   D.eio/ exists     fsync fails with EIO, and nothing becomes durable;
 *   D.synced/ exists  fsync also copies what has become durable there: the content of a file as
 *                     D.synced/<inode>-<birth>, the names of a directory as D.synced/names with a
 *                     line "<inode>-<birth> <name>" for each file.
 * A power loss leaves exactly this, and any part of the later writes.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH (2 * PATH_MAX)

static int exists(const char *directory, const char *suffix, char *out) {
    snprintf(out, LENGTH, "%s%s", directory, suffix);
    return access(out, F_OK) == 0;
}

static int key_of(int at, const char *name, char *out) {
    struct statx found;
    int flags = name[0] ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(at, name, flags, STATX_INO | STATX_BTIME, &found) != 0)
        return -1;
    snprintf(out, 64, "%llu-%lld.%09u", (unsigned long long)found.stx_ino,
             (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    return 0;
}

/* Replace a file atomically: a process may be killed at any time. */
static void copy(int from, const char *synced, const char *key) {
    char fresh[LENGTH], path[LENGTH], block[65536];
    snprintf(fresh, sizeof fresh, "%s/.%s.%ld", synced, key, (long)syscall(SYS_gettid));
    snprintf(path, sizeof path, "%s/%s", synced, key);
    int to = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        return;
    char source[64];
    snprintf(source, sizeof source, "/proc/self/fd/%d", from);
    int again = open(source, O_RDONLY | O_CLOEXEC);
    off_t place = 0;
    ssize_t got = 0;
    while (again >= 0 && (got = pread(again, block, sizeof block, place)) > 0) {
        if (pwrite(to, block, (size_t)got, place) != got)
            break;
        place += got;
    }
    if (again >= 0)
        close(again);
    close(to);
    if (got == 0 && again >= 0)
        rename(fresh, path);
    else
        unlink(fresh);
}

static void list(const char *directory, const char *synced) {
    char fresh[LENGTH], path[LENGTH], key[64];
    snprintf(fresh, sizeof fresh, "%s/.names.%ld", synced, (long)syscall(SYS_gettid));
    snprintf(path, sizeof path, "%s/names", synced);
    DIR *entries = opendir(directory);
    FILE *out = fopen(fresh, "we");
    if (entries != NULL && out != NULL) {
        for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
            if (entry->d_type == DT_REG && key_of(dirfd(entries), entry->d_name, key) == 0)
                fprintf(out, "%s %s\n", key, entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
    if (out != NULL && fclose(out) == 0)
        rename(fresh, path);
}

static int sync_with(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    char link[64], path[PATH_MAX], parent[PATH_MAX], beside[LENGTH], key[64];
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || fstat(fd, &found) != 0)
        return real(fd);
    path[length] = 0;
    memcpy(parent, path, (size_t)length + 1);
    int is_directory = S_ISDIR(found.st_mode);
    const char *directory = is_directory ? path : dirname(parent);
    if (exists(directory, ".eio", beside)) {
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    if (result == 0 && exists(directory, ".synced", beside)) {
        if (is_directory)
            list(directory, beside);
        else if (S_ISREG(found.st_mode) && key_of(fd, "", key) == 0)
            copy(fd, beside, key);
    }
    return result;
}

int fsync(int fd) { return sync_with("fsync", fd); }

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
