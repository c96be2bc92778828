/* Disk that fails on request: preloaded into processes, it replaces fsync, fdatasync and the calls
 * that write at a position.
 *
 * For a file anywhere below a directory D, or for a directory of that tree:
 *   D.eio/ exists      fsync fails with EIO, and nothing becomes durable;
 *   D.torn/ exists     a write at a position writes half of its bytes and fails with EIO;
 *   D.hold/ exists     fsync waits until it is removed; in the main thread it is only slow, so a
 *                      process that syncs small writes there moves the next one to a thread;
 *   D.synced/ exists   fsync also copies what has become durable there: the content of a file as
 *                      D.synced/<inode>-<birth>, the names in a directory as
 *                      D.synced/<inode>-<birth>.names with a line "f <inode>-<birth> <name>" for
 *                      each file and "d <inode>-<birth> <name>" for each directory.
 * A power loss leaves exactly this, and any part of the later writes.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH (2 * PATH_MAX)
#define POLL_US 2000
#define SLOW_US 20000

/* Find the directory D, from the path of a file upwards, that has a marker with this suffix. */
static int marked(const char *path, const char *suffix, char *out) {
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    while (directory[0] == '/' && directory[1]) {
        snprintf(out, LENGTH, "%s%s", directory, suffix);
        if (access(out, F_OK) == 0)
            return 1;
        *strrchr(directory, '/') = 0;
    }
    return 0;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0)
        return -1;
    path[length] = 0;
    return 0;
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
    char fresh[LENGTH + 128], path[LENGTH + 128], block[65536];
    snprintf(fresh, sizeof fresh, "%s/.%s.%ld", synced, key, (long)syscall(SYS_gettid));
    snprintf(path, sizeof path, "%s/%s", synced, key);
    int to = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        return;
    char source[64];
    snprintf(source, sizeof source, "/proc/self/fd/%d", from);
    int again = open(source, O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    int is_whole = again >= 0;
    while (is_whole && (got = read(again, block, sizeof block)) > 0)
        is_whole = write(to, block, (size_t)got) == got;
    if (again >= 0)
        close(again);
    close(to);
    if (is_whole && got == 0)
        rename(fresh, path);
    else
        unlink(fresh);
}

static void list(const char *directory, const char *synced, const char *key) {
    char fresh[LENGTH + 128], path[LENGTH + 128], each[64];
    snprintf(fresh, sizeof fresh, "%s/.%s.names.%ld", synced, key, (long)syscall(SYS_gettid));
    snprintf(path, sizeof path, "%s/%s.names", synced, key);
    DIR *entries = opendir(directory);
    FILE *out = fopen(fresh, "we");
    if (entries != NULL && out != NULL) {
        for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
            int is_directory = entry->d_type == DT_DIR;
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            if (is_directory || entry->d_type == DT_REG)
                if (key_of(dirfd(entries), entry->d_name, each) == 0)
                    fprintf(out, "%c %s %s\n", is_directory ? 'd' : 'f', each, entry->d_name);
        }
    }
    if (entries != NULL)
        closedir(entries);
    if (out != NULL && fclose(out) == 0)
        rename(fresh, path);
}

static int sync_with(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    char path[PATH_MAX], beside[LENGTH], key[64];
    struct stat found;
    if (path_of(fd, path) != 0 || fstat(fd, &found) != 0)
        return real(fd);
    if (marked(path, ".hold", beside) && syscall(SYS_gettid) == getpid())
        usleep(SLOW_US);
    else
        while (marked(path, ".hold", beside))
            usleep(POLL_US);
    if (marked(path, ".eio", beside)) {
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    if (result == 0 && marked(path, ".synced", beside) && key_of(fd, "", key) == 0) {
        if (S_ISDIR(found.st_mode))
            list(path, beside, key);
        else if (S_ISREG(found.st_mode))
            copy(fd, beside, key);
    }
    return result;
}

int fsync(int fd) { return sync_with("fsync", fd); }

int fdatasync(int fd) { return sync_with("fdatasync", fd); }

/* Write half of the bytes and return 1, if the file is below a directory with torn writes. */
static int is_torn(int fd, const struct iovec *parts, int count, off64_t place) {
    char path[PATH_MAX], beside[LENGTH];
    size_t size = 0;
    if (path_of(fd, path) != 0 || !marked(path, ".torn", beside))
        return 0;
    for (int number = 0; number < count; number++)
        size += parts[number].iov_len;
    size /= 2;
    for (int number = 0; number < count && size > 0; number++) {
        size_t some = parts[number].iov_len < size ? parts[number].iov_len : size;
        if (syscall(SYS_pwrite64, fd, parts[number].iov_base, some, place) != (long)some)
            break;
        place += (off64_t)some;
        size -= some;
    }
    errno = EIO;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    struct iovec part = {(void *)data, size};
    return is_torn(fd, &part, 1, place) ? -1 : syscall(SYS_pwrite64, fd, data, size, place);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    return pwrite64(fd, data, size, place);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t place) {
    if (is_torn(fd, parts, count, place))
        return -1;
    return syscall(SYS_pwritev, fd, parts, (long)count, (long)place, 0L);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t place) {
    return pwritev64(fd, parts, count, place);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t place, int flags) {
    if (place != -1 && is_torn(fd, parts, count, place))
        return -1;
    return syscall(SYS_pwritev2, fd, parts, (long)count, (long)place, 0L, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t place, int flags) {
    return pwritev64v2(fd, parts, count, place, flags);
}
