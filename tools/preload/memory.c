/* Shows accesses outside of what was allocated. `make suite-memory` preloads it (Linux, glibc).
 *
 * New memory is NaN in every floating-point type, and so is freed memory: a number that was read before it was written,
 * or after its memory was freed, shows in results. What is written behind a block, or into it after it was freed, is
 * reported in $MEMORY_REPORTS/PROCESS-ID: of a freed block when its memory is given back, after 128 MiB more. */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BEHIND = 64, SLOTS = 1 << 18, HELD = 128 << 20, FILLED = 4 << 20 };

extern void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* In the last bytes of each block that was allocated here. Others are of libraries that see the C library's own functions
 * first (RTLD_DEEPBIND), and theirs may free what was allocated here. */
typedef struct {
    size_t size;
    uint64_t mark;
} Seal;

#define MARK 0x6e75726f7369ull
#define FREED 0x6465657266ull

static struct {
    unsigned char *block;
    void *freed_by;
} held[SLOTS];
static unsigned newest, oldest;
static size_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* By glibc's own header, which says what it gave, and whether the block is a mapping. */
static Seal *seal(const void *block) {
    size_t header = ((const size_t *)block)[-1];
    size_t usable = (header & ~(size_t)7) - (header & 2 ? 16 : 8);
    return (Seal *)((char *)block + usable) - 1;
}

static size_t filled(size_t size) { return size < FILLED ? size : FILLED; }

static void report(void **frames, int count, const char *format, ...) {
    static __thread int reports; /* backtrace() allocates */
    const char *folder = getenv("MEMORY_REPORTS");
    if (reports || !folder) return;
    reports = 1;
    char path[PATH_MAX], line[256];
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    int file = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    void *here[32];
    if (!frames) count = backtrace(frames = here, 32);
    if (write(file, line, length) == length) backtrace_symbols_fd(frames, count, file);
    close(file);
    reports = 0;
}

static void *sealed(unsigned char *block, size_t size) {
    if (!block) return NULL;
    *seal(block) = (Seal){size, MARK};
    memset(block, 0xff, filled(size));
    memset(block + size, 0xa5, BEHIND);
    return block;
}

static void *allocate(size_t alignment, size_t size) {
    if (size > PTRDIFF_MAX - BEHIND - sizeof(Seal)) {
        errno = ENOMEM;
        return NULL;
    }
    size_t all = size + BEHIND + sizeof(Seal);
    return sealed(alignment ? __libc_memalign(alignment, all) : __libc_malloc(all), size);
}

static void check_end(const unsigned char *block) {
    size_t size = seal(block)->size, at = 0;
    while (at < BEHIND && block[size + at] == 0xa5) at++;
    if (at < BEHIND) report(NULL, 0, "== byte %zu of a block of %zu was written\n", size + at, size);
}

static void give_back(unsigned char *block, void *freed_by) {
    size_t size = seal(block)->size, end = filled(size), at = 0;
    if (end && (block[0] != 0xff || memcmp(block, block + 1, end - 1))) {
        while (block[at] == 0xff) at++;
        report(&freed_by, 1, "== byte %zu of a block of %zu was written after it was freed by\n", at, size);
    }
    seal(block)->mark = 0;
    __libc_free(block);
}

void *malloc(size_t size) { return allocate(0, size); }

void *memalign(size_t alignment, size_t size) { return allocate(alignment, size); }

void *aligned_alloc(size_t alignment, size_t size) { return allocate(alignment, size); }

void *valloc(size_t size) { return allocate(sysconf(_SC_PAGESIZE), size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (alignment % sizeof(void *) || alignment & (alignment - 1) || !alignment) return EINVAL;
    void *allocated = allocate(alignment, size);
    if (!allocated) return ENOMEM;
    *block = allocated;
    return 0;
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    void *block = allocate(0, bytes);
    return block ? memset(block, 0, bytes) : NULL;
}

void free(void *block) {
    if (!block) return;
    int error = errno;
    Seal *end = seal(block);
    if (end->mark == FREED) {
        report(NULL, 0, "== a block of %zu was freed twice\n", end->size);
    } else if (end->mark != MARK) {
        __libc_free(block);
    } else {
        check_end(block);
        end->mark = FREED;
        memset(block, 0xff, filled(end->size));
        pthread_mutex_lock(&lock);
        held[newest++ % SLOTS] = (typeof(held[0])){block, __builtin_return_address(0)};
        for (total += end->size; total > HELD || newest - oldest == SLOTS; oldest++) {
            total -= seal(held[oldest % SLOTS].block)->size;
            give_back(held[oldest % SLOTS].block, held[oldest % SLOTS].freed_by);
        }
        pthread_mutex_unlock(&lock);
    }
    errno = error;
}

size_t malloc_usable_size(void *block) {
    if (!block) return 0;
    Seal *end = seal(block);
    return end->mark == MARK ? end->size : (size_t)((char *)(end + 1) - (char *)block);
}

void *realloc(void *block, size_t size) {
    if (!block) return malloc(size);
    if (!size) {
        free(block);
        return NULL;
    }
    void *moved = malloc(size);
    if (!moved) return NULL;
    size_t before = malloc_usable_size(block);
    memcpy(moved, block, before < size ? before : size);
    free(block);
    return moved;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) { pthread_atfork(before_fork, after_fork, after_fork); }
