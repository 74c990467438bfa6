// What the compiler of a newer system expects of glibc and glibc 2.28 does not have. It is linked
// into the engine of the binary wheel (wheel.py), and seen by nothing else.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32: true while the process has one thread; the C++ library then counts references without
// atomic operations. 0 is right for every process.
HIDDEN char __libc_single_threaded = 0;

static long long nanoseconds(const struct timespec* time) {
  return time->tv_sec * 1000000000LL + time->tv_nsec;
}

static struct timespec after(clockid_t clock, long long wait_ns) {
  struct timespec time;
  clock_gettime(clock, &time);
  const long long end = nanoseconds(&time) + wait_ns;
  time.tv_sec = end / 1000000000LL;
  time.tv_nsec = end % 1000000000LL;
  return time;
}

static long long left(clockid_t clock, const struct timespec* end) {
  struct timespec now;
  clock_gettime(clock, &now);
  return nanoseconds(end) - nanoseconds(&now);
}

typedef int Wait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static Wait* own_clockwait;

__attribute__((constructor)) static void find_clockwait(void) {
  own_clockwait = (Wait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

// glibc 2.30: waits until `end` of `clock`. It is used where the process has it. Else the wait is
// one by the clock of the calendar, as it was in programs of that age; should somebody set that
// forward, this returns early as if woken, which callers expect.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const struct timespec* end) {
  if (own_clockwait) return own_clockwait(condition, mutex, clock, end);
  const struct timespec until = after(CLOCK_REALTIME, left(clock, end));
  const int code = pthread_cond_timedwait(condition, mutex, &until);
  return code == ETIMEDOUT && left(clock, end) > 0 ? 0 : code;
}
