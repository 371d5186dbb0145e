/* Puts that wait for a sync, in rows: who waits, who is being served, who was served and may go on.
 *
 * Nothing here runs Python but a sync that is a call; what is not said to take the lock wants it held.
 */
#ifndef ROCKETSTORE_GROUP_H
#define ROCKETSTORE_GROUP_H

#include "_turns.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

enum Place { NOWHERE, WAITING, TAKEN, SERVED };

/* One put that waits until all before `offset` is on the disk; it lives on the stack of its thread. */
typedef struct Waiter {
    struct Waiter *before, *after;
    enum Place place;
    long long offset;
    sem_t permit;
} Waiter;

typedef struct {
    Waiter *first, *last;
    Py_ssize_t count;
} Row;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    /* By place; the one of NOWHERE is not used. */
    Row rows[4];
    sem_t bell;
    int is_rung;
    int is_asked;
    int is_open;
    long long flushed;
    long long ring_at;
    long long company;
    long long rounds_apart;
    long long apart_next;
} Group;

/* Who waits longer waits for ever. */
static const double LONGEST_S = 1e9;

/* All before it is on the disk. Python reads it without the lock. */
long long flushed_offset(Group *self);
void set_flushed_offset(Group *self, long long offset);

struct timespec moment_after(double timeout_s);

/* Wait until what a put wants is on the disk: 0 it is, else what ended the wait. Takes the lock. */
int wait_until_flushed(Group *self, Waiter *waiter, const struct timespec *until);

/* Whether the bell must be posted: a ring that nobody waits for would end the next wait. */
int must_ring(Group *self);

void move_all(Group *self, enum Place from, enum Place to);

void wake_all(Group *self, enum Place place);

/* Wait until somebody waits or asks; -1 as long as it takes. Whether somebody asked. */
int rest(Group *self, long long timeout_ns);

/* Let go of those who were served, and wait until all are back or somebody asks. Whether somebody did. */
int gather(Group *self, double sync_s, long long timeout_ns);

/* Say what is on the disk to those who were taken. */
void serve(Group *self, long long offset);

/* Sync for all who wait and gather them again, for a while, with `call` or else the descriptor: 0 or what
 * failed, -1 if Python has the error. `sync_s` is what the last sync took, untouched if there was none.
 * Takes the lock. */
int serve_rounds(Group *self, int descriptor, PyObject *call, long long limit, long long longest_ns,
                 double *sync_s);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
