/* Records what a process does to the files of one folder, in the order in which it happened: a
 * library for LD_PRELOAD. POWER_FOLDER is the folder, POWER_RECORD the file that is written.
 * tests/crash/power.py reads the record, and knows what a loss of power may leave of it.
 *
 * Writes are noted after they were made, and syncs after they returned, under one lock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4096

struct __attribute__((packed)) head {
    uint8_t op;      /* O open, W write, T truncate, S sync, U unlink */
    uint8_t created; /* of an open: whether it made the file */
    uint32_t id;     /* of the open that the call belongs to */
    int64_t offset;  /* of a write; -1 at the end */
    uint64_t length; /* of what follows, or of a file that is truncated */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t ids[MOST]; /* by descriptor; 0 is not ours */
static uint32_t last_id;
static int record_fd = -1;
static char folder[PATH_MAX];

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void start(void) {
    const char *where = getenv("POWER_FOLDER"), *record = getenv("POWER_RECORD");
    if (where == NULL || record == NULL) return;
    strncpy(folder, where, sizeof folder - 1);
    record_fd = syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND, 0644);
}

static int is_ours(const char *path) {
    size_t n = strlen(folder);
    return record_fd >= 0 && n && strncmp(path, folder, n) == 0 && (path[n] == '/' || !path[n]);
}

static uint32_t id_of(int fd) { return fd >= 0 && fd < MOST ? ids[fd] : 0; }

static void note(char op, int created, uint32_t id, int64_t offset, uint64_t length,
                 const void *data, size_t size) {
    struct head head = {op, created, id, offset, length};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
    int kept = errno;
    if (syscall(SYS_writev, record_fd, parts, 2) != (long)(sizeof head + size)) abort();
    errno = kept;
}

static int opened(int fd, const char *path, int existed) {
    if (fd >= 0 && fd < MOST) {
        ids[fd] = ++last_id;
        note('O', !existed, last_id, 0, strlen(path), path, strlen(path));
    }
    return fd;
}

static int open_with(const char *name, const char *path, int flags, mode_t mode) {
    int (*call)(const char *, int, ...) = real(name);
    if (!is_ours(path)) return call(path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat found;
    int existed = stat(path, &found) == 0;
    int fd = opened(call(path, flags, mode), path, existed);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name)                                        \
    int name(const char *path, int flags, ...) {          \
        va_list rest;                                     \
        va_start(rest, flags);                            \
        mode_t mode = flags & O_CREAT ? va_arg(rest, int) : 0; \
        va_end(rest);                                     \
        return open_with(#name, path, flags, mode);       \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    int (*call)(int) = real("close");
    if (id_of(fd)) {
        pthread_mutex_lock(&lock);
        ids[fd] = 0;
        int done = call(fd);
        pthread_mutex_unlock(&lock);
        return done;
    }
    return call(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*call)(int, const void *, size_t) = real("write");
    if (!id_of(fd)) return call(fd, data, size);
    pthread_mutex_lock(&lock);
    int64_t offset = fcntl(fd, F_GETFL) & O_APPEND ? -1 : lseek(fd, 0, SEEK_CUR);
    ssize_t done = call(fd, data, size);
    if (done > 0) note('W', 0, ids[fd], offset, done, data, done);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name)                                                        \
    ssize_t name(int fd, const void *data, size_t size, off_t offset) {     \
        ssize_t (*call)(int, const void *, size_t, off_t) = real(#name);    \
        if (!id_of(fd)) return call(fd, data, size, offset);                \
        pthread_mutex_lock(&lock);                                          \
        ssize_t done = call(fd, data, size, offset);                        \
        if (done > 0) note('W', 0, ids[fd], offset, done, data, done);      \
        pthread_mutex_unlock(&lock);                                        \
        return done;                                                        \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                            \
    int name(int fd, off_t length) {                              \
        int (*call)(int, off_t) = real(#name);                    \
        if (!id_of(fd)) return call(fd, length);                  \
        pthread_mutex_lock(&lock);                                \
        int done = call(fd, length);                              \
        if (done == 0) note('T', 0, ids[fd], 0, length, NULL, 0); \
        pthread_mutex_unlock(&lock);                              \
        return done;                                              \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name)                                           \
    int name(int fd) {                                       \
        int (*call)(int) = real(#name);                      \
        if (!id_of(fd)) return call(fd);                     \
        pthread_mutex_lock(&lock);                           \
        int done = call(fd);                                 \
        if (done == 0) note('S', 0, ids[fd], 0, 0, NULL, 0); \
        pthread_mutex_unlock(&lock);                         \
        return done;                                         \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int (*call)(const char *) = real("unlink");
    if (!is_ours(path)) return call(path);
    pthread_mutex_lock(&lock);
    int done = call(path);
    if (done == 0) note('U', 0, 0, 0, strlen(path), path, strlen(path));
    pthread_mutex_unlock(&lock);
    return done;
}
