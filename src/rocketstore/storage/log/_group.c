#include "_group.h"
#include <errno.h>
#include <math.h>
#include <unistd.h>

/* The constants of the plain one say why. */
static const long long LOOK_NS = 250000;
static const long long GATHER_NS = 2000000;
static const int LOOKS_IN_VAIN = 2;
static const long long LONGEST_APART = 64;
static const long long NOBODY = 1LL << 62;
static const double GATHER_SHARE = 0.5;

/* --- rows; the group's lock is held ------------------------------------------------------------ */

static void
append(Group *self, Waiter *waiter, enum Place place)
{
    Row *row = &self->rows[place];
    waiter->place = place;
    waiter->before = row->last;
    waiter->after = NULL;
    if (row->last != NULL) {
        row->last->after = waiter;
    }
    else {
        row->first = waiter;
    }
    row->last = waiter;
    __atomic_store_n(&row->count, row->count + 1, __ATOMIC_RELEASE);
}

static void
take_out(Group *self, Waiter *waiter)
{
    Row *row = &self->rows[waiter->place];
    *(waiter->before != NULL ? &waiter->before->after : &row->first) = waiter->after;
    *(waiter->after != NULL ? &waiter->after->before : &row->last) = waiter->before;
    waiter->place = NOWHERE;
    __atomic_store_n(&row->count, row->count - 1, __ATOMIC_RELEASE);
}

void
move_all(Group *self, enum Place from, enum Place to)
{
    for (Waiter *waiter = self->rows[from].first; waiter != NULL; waiter = self->rows[from].first) {
        take_out(self, waiter);
        append(self, waiter, to);
    }
}

/* The first of a row, which is woken by whoever asked, once the lock is released. */
static Waiter *
pop(Group *self, enum Place place)
{
    Waiter *waiter = self->rows[place].first;
    if (waiter != NULL) {
        take_out(self, waiter);
    }
    return waiter;
}

void
wake_all(Group *self, enum Place place)
{
    for (Waiter *waiter = pop(self, place); waiter != NULL; waiter = pop(self, place)) {
        sem_post(&waiter->permit);
    }
}

int
must_ring(Group *self)
{
    int must = !self->is_rung;
    self->is_rung = 1;
    return must;
}

long long
flushed_offset(Group *self)
{
    return __atomic_load_n(&self->flushed, __ATOMIC_ACQUIRE);
}

void
set_flushed_offset(Group *self, long long offset)
{
    __atomic_store_n(&self->flushed, offset, __ATOMIC_RELEASE);
}

/* --- waiting ----------------------------------------------------------------------------------- */

struct timespec
moment_after(double timeout_s)
{
    struct timespec until;
    timeout_s = fmin(fmax(timeout_s, 0), LONGEST_S);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)timeout_s;
    until.tv_nsec += (long)((timeout_s - floor(timeout_s)) * 1e9);
    if (until.tv_nsec >= NANOS_PER_S) {
        until.tv_nsec -= NANOS_PER_S;
        until.tv_sec += 1;
    }
    return until;
}

static int
wait_for(sem_t *permit, const struct timespec *until)
{
    int failed = until == NULL ? sem_wait(permit) : sem_clockwait(permit, CLOCK_MONOTONIC, until);
    return failed == 0 ? 0 : errno;
}

/* Take a permit that is on its way. */
static void
take_permit(sem_t *permit)
{
    while (sem_wait(permit) != 0) {
    }
}

/* Join those who wait, and let the next of those served last go on, or the thread that serves. */
static void
join(Group *self, Waiter *waiter)
{
    sem_t *next = NULL;
    append(self, waiter, WAITING);
    if (self->rows[WAITING].count >= self->ring_at) {
        self->ring_at = NOBODY;
        next = must_ring(self) ? &self->bell : NULL;
    }
    else {
        Waiter *following = pop(self, SERVED);
        if (following != NULL) {
            next = &following->permit;
        }
        else if (self->ring_at != NOBODY && may_spin) {
            /* The last ones are on their way: so should be the thread that waits for them. */
            next = must_ring(self) ? &self->bell : NULL;
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (next != NULL) {
        sem_post(next);
    }
}

/* Wait for the permit: 0 when it came, else what ended the wait, and nobody knows the waiter any more. */
static int
wait_in_row(Group *self, Waiter *waiter, const struct timespec *until)
{
    int failure = wait_for(&waiter->permit, until);
    if (failure == 0) {
        return 0;
    }
    pthread_mutex_lock(&self->lock);
    int is_woken = waiter->place == NOWHERE;
    if (!is_woken) {
        take_out(self, waiter);
    }
    pthread_mutex_unlock(&self->lock);
    if (is_woken) {
        take_permit(&waiter->permit);
        return 0;
    }
    return failure;
}

int
wait_until_flushed(Group *self, Waiter *waiter, const struct timespec *until)
{
    int failure = 0;
    while (failure == 0) {
        pthread_mutex_lock(&self->lock);
        int is_flushed = flushed_offset(self) >= waiter->offset;
        if (is_flushed || !self->is_open) {
            pthread_mutex_unlock(&self->lock);
            return is_flushed ? 0 : ECANCELED;
        }
        join(self, waiter);
        failure = wait_in_row(self, waiter, until);
    }
    return failure;
}

/* --- the thread that serves -------------------------------------------------------------------- */

static int
has_company(void *group)
{
    Group *self = group;
    return __atomic_load_n(&self->rows[WAITING].count, __ATOMIC_ACQUIRE) >= self->company
           || __atomic_load_n(&self->is_asked, __ATOMIC_RELAXED);
}

/* Wait for a ring, a while or (-1) as long as it takes; the lock is held before and after. Those who
 * are on their way are expected for a moment more. */
static int
sleep_until_rung(Group *self, long long timeout_ns, int is_gathering)
{
    struct timespec until = moment_after((double)timeout_ns / NANOS_PER_S);
    pthread_mutex_unlock(&self->lock);
    int failure = wait_for(&self->bell, timeout_ns < 0 ? NULL : &until);
    if (failure == 0 && is_gathering && may_spin) {
        spin(has_company, self);
    }
    pthread_mutex_lock(&self->lock);
    if (failure != 0 && self->is_rung) {
        take_permit(&self->bell);
        failure = 0;
    }
    self->is_rung = 0;
    return failure;
}

/* Wake the first of those who were served. */
static void
wake_first(Group *self)
{
    Waiter *waiter = pop(self, SERVED);
    if (waiter != NULL) {
        sem_post(&waiter->permit);
    }
}

/* Let those who were served go on one by one until all wait again, or one stays away. */
static void
gather_company(Group *self, double sync_s)
{
    Row *waiting = &self->rows[WAITING];
    long long company = self->company, began = monotonic_ns();
    long long share_ns = (long long)(fmin(sync_s, LONGEST_S) * GATHER_SHARE * NANOS_PER_S);
    Py_ssize_t seen = waiting->count;
    int looks = 0;
    self->ring_at = company;
    if (seen < company && !self->is_asked) {
        /* Of two that are on their way `serve` woke the first, if there are two. */
        wake_first(self);
        sleep_until_rung(self, LOOK_NS, 1);
    }
    while (waiting->count < company && !self->is_asked) {
        looks = waiting->count > seen ? 0 : looks + 1;
        seen = waiting->count;
        if (looks >= LOOKS_IN_VAIN) {
            wake_all(self, SERVED);
        }
        long long waited = monotonic_ns() - began;
        if (waited >= share_ns && (looks >= LOOKS_IN_VAIN || waited >= GATHER_NS)) {
            break;
        }
        sleep_until_rung(self, LOOK_NS, 1);
    }
    if (waiting->count >= company) {
        self->apart_next = 1;
    }
    else if (2 * waiting->count < company && !self->is_asked) {
        self->rounds_apart = self->apart_next;
        self->apart_next = self->apart_next < LONGEST_APART ? 2 * self->apart_next : LONGEST_APART;
    }
}

int
rest(Group *self, long long timeout_ns)
{
    self->ring_at = 1;
    if (self->is_rung) {
        /* Whoever rang is seen already; a ring that is left would end the next wait. */
        take_permit(&self->bell);
        self->is_rung = 0;
    }
    if (self->rows[WAITING].count == 0 && !self->is_asked) {
        sleep_until_rung(self, timeout_ns, 0);
    }
    int was_asked = self->is_asked;
    self->is_asked = 0;
    self->ring_at = NOBODY;
    return was_asked;
}

int
gather(Group *self, double sync_s, long long timeout_ns)
{
    if (self->rounds_apart > 0) {
        self->rounds_apart--;
    }
    else if (self->company > 1) {
        gather_company(self, sync_s);
    }
    if (self->company <= 1 || self->rows[WAITING].count < self->company) {
        wake_all(self, SERVED);
    }
    int was_asked = rest(self, timeout_ns);
    wake_all(self, SERVED);
    return was_asked;
}

void
serve(Group *self, long long offset)
{
    if (offset > flushed_offset(self)) {
        set_flushed_offset(self, offset);
    }
    self->company = self->rows[TAKEN].count + self->rows[WAITING].count;
    move_all(self, TAKEN, SERVED);
    if (may_spin) {
        /* While it wakes up, this thread does what is left to do; its turn ends when it gathers. */
        wake_first(self);
    }
}

/* Take all who wait, if none wants more than `limit`: up to where they want a sync, -1 for none. */
static long long
take_within(Group *self, long long limit)
{
    long long farthest = -1;
    for (Waiter *waiter = self->rows[WAITING].first; waiter != NULL; waiter = waiter->after) {
        if (waiter->offset > limit) {
            return -1;
        }
        farthest = waiter->offset > farthest ? waiter->offset : farthest;
    }
    move_all(self, WAITING, TAKEN);
    return farthest;
}

/* Sync once, without the interpreter's lock: 0 done, else the error's number, or -1 if Python has it. */
static int
sync_file(int descriptor, PyObject *call)
{
    int failure = 0;
    if (call != NULL) {
        PyGILState_STATE state = PyGILState_Ensure();
        PyObject *done = PyObject_CallNoArgs(call);
        failure = done == NULL ? -1 : 0;
        Py_XDECREF(done);
        PyGILState_Release(state);
        return failure;
    }
    do {
        failure = fdatasync(descriptor) == 0 ? 0 : errno;
    } while (failure == EINTR);
    return failure;
}

int
serve_rounds(Group *self, int descriptor, PyObject *call, long long limit, long long longest_ns,
             double *sync_s)
{
    long long until = monotonic_ns() + longest_ns;
    int failure = 0;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        long long offset = take_within(self, limit);
        if (offset < 0) {
            break;
        }
        pthread_mutex_unlock(&self->lock);
        long long began = monotonic_ns();
        failure = sync_file(descriptor, call);
        long long ended = monotonic_ns();
        *sync_s = (double)(ended - began) / NANOS_PER_S;
        pthread_mutex_lock(&self->lock);
        if (failure != 0) {
            break;
        }
        serve(self, offset);
        if (ended >= until) {
            break;
        }
        if (gather(self, *sync_s, until - ended)) {
            /* What was asked for is more than this; whoever gathers next is to hear of it. */
            self->is_asked = 1;
            break;
        }
    }
    pthread_mutex_unlock(&self->lock);
    return failure;
}
