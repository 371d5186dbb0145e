/* Whose turn it is to run Python, of the threads that put and the one that syncs for them.
 *
 * Two threads are on their way at a time. One runs Python; the other was woken meanwhile, which on a
 * virtual machine takes longer than a put, and looks for a few microseconds whether it may go on. Turns
 * are a courtesy, not a lock: who waits in vain goes on, and for some times waits no more.
 */
#ifndef ROCKETSTORE_TURNS_H
#define ROCKETSTORE_TURNS_H

#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

enum { NANOS_PER_S = 1000000000 };

/* Whether there is another processor, so that looking is worth while; set once, by `prepare_turns`. */
extern int may_spin;

void prepare_turns(void);

long long monotonic_ns(void);

/* Look for a short while whether something has become true. Whoever was woken on the processor of the
 * one it waits for lets that go on first. */
int spin(int (*is_true)(void *), void *subject);

/* Wait for one's turn, if that is worth while; one thread at a time does. */
void begin_turn(void);

void end_turn(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
