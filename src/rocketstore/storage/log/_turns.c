#include "_turns.h"
#include <sched.h>
#include <stdint.h>
#include <time.h>

/* Twice what a put takes from its wake to its next sleep; more is another thread's doing. */
static const long long SPIN_NS = 30000;
static const int LOOKS_PER_CLOCK = 16;
/* Most waits that are left out after one in vain; in vain again doubles the number. */
static const int MOST_LEFT_OUT = 64;

/* Whose turn it is to run Python: an address that each thread has once, 0 for nobody's. */
static uintptr_t turn;
static __thread char own_address;
/* The processor that the turn began on. */
static int turn_processor;
int may_spin;
static int is_spinning, left_out, left_out_next = 1;

long long
monotonic_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (long long)moment.tv_sec * NANOS_PER_S + moment.tv_nsec;
}

static inline void
relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void
end_turn(void)
{
    uintptr_t mine = (uintptr_t)&own_address;
    __atomic_compare_exchange_n(&turn, &mine, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static int
is_my_turn(void *Py_UNUSED(none))
{
    uintptr_t nobody = 0;
    int is_mine = __atomic_load_n(&turn, __ATOMIC_RELAXED) == 0
                  && __atomic_compare_exchange_n(&turn, &nobody, (uintptr_t)&own_address, 0,
                                                 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    if (is_mine) {
        __atomic_store_n(&turn_processor, sched_getcpu(), __ATOMIC_RELAXED);
    }
    return is_mine;
}

int
spin(int (*is_true)(void *), void *subject)
{
    long long until = monotonic_ns() + SPIN_NS;
    do {
        if (sched_getcpu() == __atomic_load_n(&turn_processor, __ATOMIC_RELAXED)) {
            sched_yield();
        }
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (is_true(subject)) {
                return 1;
            }
            relax();
        }
    } while (monotonic_ns() < until);
    return 0;
}

void
begin_turn(void)
{
    if (is_my_turn(NULL)) {
        return;
    }
    if (may_spin && __atomic_exchange_n(&is_spinning, 1, __ATOMIC_ACQUIRE) == 0) {
        int is_mine = 0;
        if (left_out > 0) {
            left_out--;
        }
        else if (spin(is_my_turn, NULL)) {
            is_mine = 1;
            left_out_next = 1;
        }
        else {
            left_out = left_out_next;
            left_out_next = left_out_next < MOST_LEFT_OUT ? 2 * left_out_next : MOST_LEFT_OUT;
        }
        __atomic_store_n(&is_spinning, 0, __ATOMIC_RELEASE);
        if (is_mine) {
            return;
        }
    }
    __atomic_store_n(&turn, (uintptr_t)&own_address, __ATOMIC_RELAXED);
    __atomic_store_n(&turn_processor, sched_getcpu(), __ATOMIC_RELAXED);
}

void
prepare_turns(void)
{
    cpu_set_t processors;
    may_spin = sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) > 1;
}
