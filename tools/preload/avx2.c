/* Makes CPUID and /proc/cpuinfo answer as on a processor without AVX-512, AVX-VNNI and AMX. `make suite-avx2` preloads it.
 *
 * Linux on x86-64 whose kernel can have CPUID fault (`cpuid_fault` in /proc/cpuinfo): each instruction raises SIGSEGV,
 * and the handler answers in its place. A handler that the process itself sets gets every other SIGSEGV. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

static struct sigaction theirs;

static int set_action(int number, const struct sigaction *action, struct sigaction *before) {
    static int (*real)(int, const struct sigaction *, struct sigaction *);
    if (!real) real = dlsym(RTLD_NEXT, "sigaction");
    return real(number, action, before);
}

/* Without the library's syscall(), which may not run in a handler. */
static long allow_cpuid(long allowed) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_arch_prctl), "D"((long)ARCH_SET_CPUID), "S"(allowed)
                     : "rcx", "r11", "memory");
    return result;
}

static void answer(greg_t *registers) {
    unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a = leaf, b, c = part, d;
    allow_cpuid(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    allow_cpuid(0);
    if (leaf == 7 && part == 0) { /* AVX512*, AMX* */
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    } else if (leaf == 7 && part == 1) { /* AVX-VNNI*, AVX512_BF16, AMX-FP16, AVX-IFMA, AVX10 */
        a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        d &= ~(BIT(4) | BIT(5) | BIT(10) | BIT(19));
    } else if (leaf == 0xd && part == 0) { /* the registers that the system saves */
        a &= ~(BIT(5) | BIT(6) | BIT(7) | BIT(17) | BIT(18));
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) { /* AMX, AVX10 */
        a = b = c = d = 0;
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

static void handle(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    if (info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        answer(registers);
    } else if (theirs.sa_flags & SA_SIGINFO && theirs.sa_sigaction) {
        theirs.sa_sigaction(number, info, context);
    } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
        theirs.sa_handler(number);
    } else {
        set_action(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        if (info->si_code <= 0) raise(number); /* sent by a process: it does not happen again by itself */
    }
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (number != SIGSEGV) return set_action(number, action, before);
    if (before) *before = theirs;
    if (action) theirs = *action;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

/* A file with what /proc/cpuinfo says, less the words that begin as those of the lists do. */
static int reduced(int file) {
    static const char *const names[] = {" avx512", " avx_vnni", " amx_", " avx_ifma", NULL};
    char *text = NULL;
    size_t size = 0, capacity = 0;
    for (ssize_t n = 1; n > 0; size += n) {
        if (capacity - size < 65536) text = realloc(text, capacity += 1 << 20);
        if ((n = read(file, text + size, capacity - size - 1)) < 0) n = 0;
    }
    close(file);
    text[size] = 0;
    for (const char *const *name = names; *name; name++)
        for (char *word = text; (word = strstr(word, *name));)
            memset(word, ' ', 1 + strcspn(word + 1, " \n"));
    int copy = memfd_create("cpuinfo", MFD_CLOEXEC);
    if (write(copy, text, size) != (ssize_t)size) abort();
    free(text);
    lseek(copy, 0, SEEK_SET);
    return copy;
}

#define OPEN(name)                                                                \
    int name(const char *path, int flags, ...) {                                  \
        static int (*real)(const char *, int, ...);                               \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                \
        va_list rest;                                                             \
        va_start(rest, flags);                                                    \
        int file = real(path, flags, flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0); \
        va_end(rest);                                                             \
        return file >= 0 && !strcmp(path, "/proc/cpuinfo") ? reduced(file) : file; \
    }
#define FOPEN(name)                                                               \
    FILE *name(const char *path, const char *mode) {                              \
        static FILE *(*real)(const char *, const char *);                         \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                \
        if (strcmp(path, "/proc/cpuinfo")) return real(path, mode);               \
        int file = open(path, O_RDONLY | O_CLOEXEC);                              \
        return file < 0 ? NULL : fdopen(file, mode);                              \
    }
OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (set_action(SIGSEGV, &action, NULL) || allow_cpuid(0)) {
        fputs("avx2.so: on this system, CPUID cannot fault\n", stderr);
        _exit(1);
    }
}
