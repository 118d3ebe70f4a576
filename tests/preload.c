/* Faults of the system, for tests/faults.py: a wall clock that jumps, a folder without locks.
 *
 * FAULTS_CLOCK names a file that holds a double: the seconds that the wall clock is wrong by, read at every look.
 * FAULTS_NO_LOCKS names a folder in whose files no lock can be had, as on some network file systems. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double wrong_by(void) {
    static volatile double *shared = NULL;
    const char *name = getenv("FAULTS_CLOCK");
    if (!name) return 0.0;
    if (!shared) {
        int file = open(name, O_RDONLY);
        if (file < 0) return 0.0;
        void *place = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (place == MAP_FAILED) return 0.0;
        shared = place;
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *moment) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, moment);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) moment->tv_sec += (time_t)wrong_by();
    return answer;
}

int gettimeofday(struct timeval *moment, void *zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    moment->tv_sec = now.tv_sec;
    moment->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *moment) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (moment) *moment = now.tv_sec;
    return now.tv_sec;
}

static int without_locks(int file) {
    const char *folder = getenv("FAULTS_NO_LOCKS");
    char link[64], path[4096];
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int locked(int file, int command, void *given, const char *name) {
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
    int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    if (locks && without_locks(file)) {
        errno = ENOLCK;
        return -1;
    }
    return real(file, command, given);
}

#define FCNTL(name)                                   \
    int name(int file, int command, ...) {            \
        va_list more;                                 \
        va_start(more, command);                      \
        void *given = va_arg(more, void *);           \
        va_end(more);                                 \
        return locked(file, command, given, #name);   \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int flock(int file, int operation) {
    static int (*real)(int, int) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "flock");
    if (without_locks(file)) {
        errno = ENOLCK;
        return -1;
    }
    return real(file, operation);
}
