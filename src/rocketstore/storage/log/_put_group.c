/* The puts that wait for a sync: `put_group.PlainPutGroup`, compiled.
 *
 * Law: as there. Besides, nothing here is done with the interpreter's lock but reading arguments: a put
 * gives it up before anybody hears that it waits, and whoever is woken tries for it only in its turn.
 *
 * Turns: two threads are on their way at a time. One runs Python; the other was woken meanwhile, which
 * on a virtual machine takes longer than a put, and looks for a few microseconds whether it may go on.
 * Who goes to sleep ends its turn first and wakes the one after the next then. Turns are a courtesy,
 * not a lock: who waits in vain goes on, and for some times waits no more.
 */
#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>
#include "_put_group.h"

enum { NANOS_PER_S = 1000000000 };

/* The constants of the plain one say why. */
static const long long LOOK_NS = 250000;
static const long long GATHER_NS = 2000000;
static const int LOOKS_IN_VAIN = 2;
static const long long LONGEST_APART = 64;
static const long long NOBODY = 1LL << 62;
static const double GATHER_SHARE = 0.5;
static const double LONGEST_S = 1e9;

/* Twice what a put takes from its wake to its next sleep; more is another thread's doing. */
static const long long SPIN_NS = 30000;
static const int LOOKS_PER_CLOCK = 16;
/* Most waits that are left out after one in vain; in vain again doubles the number. */
static const int MOST_LEFT_OUT = 64;

enum Place { NOWHERE, WAITING, TAKEN, SERVED };

/* One put that waits; it lives on the stack of its thread. */
typedef struct Waiter {
    struct Waiter *before, *after;
    enum Place place;
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

/* --- turns ----------------------------------------------------------------------------------- */

/* Whose turn it is to run Python: an address that each thread has once, 0 for nobody's. */
static uintptr_t turn;
static __thread char own_address;
/* The processor that the turn began on. */
static int turn_processor;
static int may_spin, is_spinning, left_out, left_out_next = 1;

static long long
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

static void
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

/* Look for a short while whether something has become true. Whoever was woken on the processor of the
 * one it waits for lets that go on first. */
static int
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

/* Wait for one's turn, if that is worth while; one thread at a time does. */
static void
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

static void
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

static void
wake_all(Group *self, enum Place place)
{
    for (Waiter *waiter = pop(self, place); waiter != NULL; waiter = pop(self, place)) {
        sem_post(&waiter->permit);
    }
}

/* Whether the bell must be posted: a ring that nobody waits for would end the next wait. */
static int
must_ring(Group *self)
{
    int must = !self->is_rung;
    self->is_rung = 1;
    return must;
}

/* --- waiting ----------------------------------------------------------------------------------- */

static struct timespec
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

/* Wait until all before `offset` is on the disk: 0 it is, else what ended the wait. */
static int
wait_until_flushed(Group *self, Waiter *waiter, long long offset, const struct timespec *until)
{
    int failure = 0;
    while (failure == 0) {
        pthread_mutex_lock(&self->lock);
        int is_flushed = self->flushed >= offset;
        if (is_flushed || !self->is_open) {
            pthread_mutex_unlock(&self->lock);
            return is_flushed ? 0 : ECANCELED;
        }
        join(self, waiter);
        failure = wait_in_row(self, waiter, until);
    }
    return failure;
}

static int
group_wait(PyObject *group, long long offset, double timeout_s)
{
    Group *self = (Group *)group;
    Waiter waiter;
    int failure;
    if (isnan(timeout_s)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds");
        return -1;
    }
    struct timespec until = moment_after(timeout_s);
    sem_init(&waiter.permit, 0, 0);
    Py_INCREF(group);
    do {
        Py_BEGIN_ALLOW_THREADS
        end_turn();
        failure = wait_until_flushed(self, &waiter, offset, &until);
        begin_turn();
        Py_END_ALLOW_THREADS
    } while (failure == EINTR && PyErr_CheckSignals() == 0);
    sem_destroy(&waiter.permit);
    Py_DECREF(group);
    return failure == EINTR ? -1 : failure == 0;
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

/* Wait until somebody waits or asks; -1 as long as it takes. */
static void
rest(Group *self, long long timeout_ns)
{
    self->ring_at = 1;
    if (self->rows[WAITING].count == 0 && !self->is_asked) {
        sleep_until_rung(self, timeout_ns, 0);
    }
    self->is_asked = 0;
    self->ring_at = NOBODY;
}

static PyObject *
group_gather(Group *self, PyObject *sync)
{
    double sync_s = PyFloat_AsDouble(sync);
    if (sync_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    end_turn();
    pthread_mutex_lock(&self->lock);
    if (self->rounds_apart > 0) {
        self->rounds_apart--;
    }
    else if (self->company > 1) {
        gather_company(self, sync_s);
    }
    if (self->company <= 1 || self->rows[WAITING].count < self->company) {
        wake_all(self, SERVED);
    }
    rest(self, -1);
    wake_all(self, SERVED);
    pthread_mutex_unlock(&self->lock);
    begin_turn();
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
group_rest(Group *self, PyObject *timeout)
{
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    long long timeout_ns = (long long)(fmin(fmax(timeout_s, 0), LONGEST_S) * NANOS_PER_S);
    Py_BEGIN_ALLOW_THREADS
    end_turn();
    pthread_mutex_lock(&self->lock);
    rest(self, timeout_ns);
    pthread_mutex_unlock(&self->lock);
    begin_turn();
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
group_take(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    move_all(self, WAITING, TAKEN);
    Py_ssize_t count = self->rows[TAKEN].count;
    pthread_mutex_unlock(&self->lock);
    return PyLong_FromSsize_t(count);
}

static PyObject *
group_serve(Group *self, PyObject *flushed)
{
    long long offset = PyLong_AsLongLong(flushed);
    if (offset == -1 && PyErr_Occurred()) {
        return NULL;
    }
    pthread_mutex_lock(&self->lock);
    if (offset > self->flushed) {
        self->flushed = offset;
    }
    self->company = self->rows[TAKEN].count + self->rows[WAITING].count;
    move_all(self, TAKEN, SERVED);
    if (may_spin) {
        /* While it wakes up, this thread does what is left to do; its turn ends when it gathers. */
        wake_first(self);
    }
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_let_go(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    wake_all(self, SERVED);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_ask(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    __atomic_store_n(&self->is_asked, 1, __ATOMIC_RELAXED);
    int must = must_ring(self);
    pthread_mutex_unlock(&self->lock);
    if (must) {
        sem_post(&self->bell);
    }
    Py_RETURN_NONE;
}

static PyObject *
group_open(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    self->is_open = 1;
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_close(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    self->is_open = 0;
    for (enum Place place = WAITING; place <= SERVED; place++) {
        wake_all(self, place);
    }
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_wait_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "wait takes an offset and a timeout in seconds");
        return NULL;
    }
    long long offset = PyLong_AsLongLong(args[0]);
    double timeout_s = offset == -1 && PyErr_Occurred() ? -1.0 : PyFloat_AsDouble(args[1]);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    int is_flushed = group_wait(self, offset, timeout_s);
    return is_flushed < 0 ? NULL : PyBool_FromLong(is_flushed);
}

/* --- the type ---------------------------------------------------------------------------------- */

static PyObject *
group_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Group *self = (Group *)type->tp_alloc(type, 0);
    if (self != NULL) {
        pthread_mutex_init(&self->lock, NULL);
        sem_init(&self->bell, 0, 0);
        self->ring_at = 1;
        self->apart_next = 1;
        self->flushed = -1;
    }
    return (PyObject *)self;
}

static void
group_dealloc(Group *self)
{
    PyTypeObject *type = Py_TYPE(self);
    sem_destroy(&self->bell);
    pthread_mutex_destroy(&self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
group_length(Group *self)
{
    return self->rows[WAITING].count;
}

static PyMemberDef group_members[] = {
    {"company", T_LONGLONG, offsetof(Group, company), 0, NULL},
    {"rounds_apart", T_LONGLONG, offsetof(Group, rounds_apart), 0, NULL},
    {NULL},
};
static PyMethodDef group_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))group_wait_method, METH_FASTCALL, NULL},
    {"ask", (PyCFunction)group_ask, METH_NOARGS, NULL},
    {"gather", (PyCFunction)group_gather, METH_O, NULL},
    {"rest", (PyCFunction)group_rest, METH_O, NULL},
    {"take", (PyCFunction)group_take, METH_NOARGS, NULL},
    {"serve", (PyCFunction)group_serve, METH_O, NULL},
    {"let_go", (PyCFunction)group_let_go, METH_NOARGS, NULL},
    {"open", (PyCFunction)group_open, METH_NOARGS, NULL},
    {"close", (PyCFunction)group_close, METH_NOARGS, NULL},
    {NULL},
};
static PyType_Slot group_slots[] = {
    {Py_tp_doc, "Puts that wait for one thread."},
    {Py_tp_new, group_new},
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_members, group_members},
    {Py_tp_methods, group_methods},
    {Py_sq_length, group_length},
    {0, NULL},
};
static PyType_Spec group_spec = {
    .name = "rocketstore.storage.log._put_group.PutGroup",
    .basicsize = sizeof(Group),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = group_slots,
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_put_group", .m_size = -1,
};
static PutGroupCalls calls = {.wait = group_wait};

PyMODINIT_FUNC
PyInit__put_group(void)
{
    cpu_set_t processors;
    may_spin = sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) > 1;
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&group_spec);
    PyObject *capsule = type == NULL ? NULL : PyCapsule_New(&calls, PUT_GROUP_CALLS, NULL);
    calls.type = (PyTypeObject *)Py_XNewRef(type);
    if (capsule == NULL || PyModule_AddObjectRef(module, "PutGroup", type) < 0
        || PyModule_AddObjectRef(module, "calls", capsule) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(type);
    return module;
}
