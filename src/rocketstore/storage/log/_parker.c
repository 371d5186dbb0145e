/* A permit that one thread waits for: `Parker`, compiled; `parker.PlainParker` is its plain twin.
 *
 * Law: who hands over gives up the interpreter's lock before it wakes the other thread. Whoever is
 * woken while the lock is still held only wakes to go to sleep again, in the queue for that lock;
 * with sixteen threads that costs more than the sync they wait for.
 */
#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>
#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <time.h>

typedef struct {
    PyObject_HEAD
    sem_t permit;
} Parker;

static const double LONGEST_S = 1e9;

static PyObject *
parker_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Parker *self = (Parker *)type->tp_alloc(type, 0);
    if (self != NULL && sem_init(&self->permit, 0, 0) != 0) {
        type->tp_free(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void
parker_dealloc(Parker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    sem_destroy(&self->permit);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
has_permit(Parker *self)
{
    int value = 0;
    return sem_getvalue(&self->permit, &value) == 0 && value > 0;
}

/* Wait for the permit of `self`, once `other`, if there is one, has got its own. */
static PyObject *
park(Parker *self, Parker *other, double timeout_s)
{
    struct timespec until;
    int is_bounded = timeout_s >= 0, failure;
    if (isnan(timeout_s)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds");
        return NULL;
    }
    if (is_bounded) {
        timeout_s = fmin(timeout_s, LONGEST_S);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)timeout_s;
        until.tv_nsec += (long)((timeout_s - floor(timeout_s)) * 1e9);
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec += 1;
        }
    }
    if (other != NULL && has_permit(other)) {
        other = NULL;
    }
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        if (other != NULL) {
            sem_post(&other->permit);
            other = NULL;
        }
        failure = is_bounded ? sem_clockwait(&self->permit, CLOCK_MONOTONIC, &until) : sem_wait(&self->permit);
        failure = failure == 0 ? 0 : errno;
        Py_END_ALLOW_THREADS
        if (failure == 0) {
            Py_RETURN_TRUE;
        }
        if (failure == ETIMEDOUT) {
            Py_RETURN_FALSE;
        }
        if (failure != EINTR) {
            errno = failure;
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        if (PyErr_CheckSignals() < 0) {
            return NULL;
        }
    }
}

static PyObject *
parker_park(Parker *self, PyObject *timeout)
{
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    return park(self, NULL, timeout_s);
}

static PyObject *
parker_hand_over(Parker *self, PyObject *const *args, Py_ssize_t count)
{
    double timeout_s;
    if (count != 2 || Py_TYPE(args[0]) != Py_TYPE(self)) {
        PyErr_SetString(PyExc_TypeError, "hand_over takes a Parker and a timeout in seconds");
        return NULL;
    }
    timeout_s = PyFloat_AsDouble(args[1]);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    return park(self, (Parker *)args[0], timeout_s);
}

static PyObject *
parker_unpark(Parker *self, PyObject *Py_UNUSED(none))
{
    if (!has_permit(self)) {
        sem_post(&self->permit);
    }
    Py_RETURN_NONE;
}

static PyMethodDef parker_methods[] = {
    {"park", (PyCFunction)parker_park, METH_O, ""},
    {"hand_over", (PyCFunction)(void (*)(void))parker_hand_over, METH_FASTCALL, ""},
    {"unpark", (PyCFunction)parker_unpark, METH_NOARGS, ""},
    {NULL},
};
static PyType_Slot parker_slots[] = {
    {Py_tp_doc, "A permit that one thread waits for."},
    {Py_tp_new, parker_new},
    {Py_tp_dealloc, parker_dealloc},
    {Py_tp_methods, parker_methods},
    {0, NULL},
};
static PyType_Spec parker_spec = {
    .name = "rocketstore.storage.log._parker.Parker",
    .basicsize = sizeof(Parker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = parker_slots,
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_parker", .m_size = -1,
};
PyMODINIT_FUNC
PyInit__parker(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&parker_spec);
    if (type == NULL || PyModule_AddObject(module, "Parker", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
