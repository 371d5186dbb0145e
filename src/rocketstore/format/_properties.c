/* The properties of a message with ASCII texts: `properties.message_properties_plainly`, compiled.
 *
 * Law: the bytes are those that the plain function returns. Everything else (further properties,
 * several keys, a separator inside a text, a text that is not ASCII, an odd type) is left to it: it is
 * called with the same message, and says what is wrong.
 *
 * Source: MessageDecoder.messageProperties2String of 4.9 (docs/format/properties.md).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "_properties.h"

enum { PART_COUNT = 3 };
static const char *const NAMES[PART_COUNT] = {"KEYS", "UNIQ_KEY", "TAGS"};
static const char *const FIELDS[PART_COUNT + 1] = {"keys", "unique_key", "tags", "properties"};

typedef struct {
    PyObject_HEAD
    PyObject *plainly;
    PyObject *fields[PART_COUNT + 1];
} Encoder;

/* The block of the given values; NULL without an error when one is not simple. */
static PyObject *
encoded(PyObject *const *values)
{
    Py_ssize_t size = 0;
    for (int i = 0; i < PART_COUNT; i++) {
        if (is_absent(values[i])) {
            continue;
        }
        if (!is_simple(values[i])) {
            return NULL;
        }
        size += (size > 0) + (Py_ssize_t)strlen(NAMES[i]) + 1 + PyUnicode_GET_LENGTH(values[i]);
    }
    PyObject *block = PyBytes_FromStringAndSize(NULL, size);
    if (block == NULL) {
        return NULL;
    }
    char *start = PyBytes_AS_STRING(block), *to = start;
    for (int i = 0; i < PART_COUNT; i++) {
        if (is_absent(values[i])) {
            continue;
        }
        if (to > start) {
            *to++ = VALUE_END;
        }
        size_t name_size = strlen(NAMES[i]), value_size = (size_t)PyUnicode_GET_LENGTH(values[i]);
        memcpy(to, NAMES[i], name_size);
        to += name_size;
        *to++ = NAME_END;
        memcpy(to, PyUnicode_1BYTE_DATA(values[i]), value_size);
        to += value_size;
    }
    return block;
}

/* encode(message) */
static PyObject *
encoder_encode(Encoder *self, PyObject *message)
{
    PyObject *values[PART_COUNT + 1] = {NULL};
    PyObject *block = NULL;
    int is_plain = 1;
    for (int i = 0; i <= PART_COUNT && is_plain; i++) {
        values[i] = PyObject_GetAttr(message, self->fields[i]);
        is_plain = values[i] != NULL;
    }
    if (is_plain && PyDict_CheckExact(values[PART_COUNT]) && PyDict_GET_SIZE(values[PART_COUNT]) == 0) {
        block = encoded(values);
    }
    for (int i = 0; i <= PART_COUNT; i++) {
        Py_XDECREF(values[i]);
    }
    if (block == NULL) {
        PyErr_Clear();
        block = PyObject_CallOneArg(self->plainly, message);
    }
    return block;
}

/* --- the type -------------------------------------------------------------------------------- */

static int
encoder_init(Encoder *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"plainly", NULL};
    PyObject *plainly;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &plainly)) {
        return -1;
    }
    Py_XSETREF(self->plainly, Py_NewRef(plainly));
    for (int i = 0; i <= PART_COUNT; i++) {
        PyObject *name = PyUnicode_InternFromString(FIELDS[i]);
        if (name == NULL) {
            return -1;
        }
        Py_XSETREF(self->fields[i], name);
    }
    return 0;
}

static int
encoder_traverse(Encoder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->plainly);
    return 0;
}

static int
encoder_clear(Encoder *self)
{
    Py_CLEAR(self->plainly);
    for (int i = 0; i <= PART_COUNT; i++) {
        Py_CLEAR(self->fields[i]);
    }
    return 0;
}

static void
encoder_dealloc(Encoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    encoder_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef encoder_methods[] = {
    {"encode", (PyCFunction)encoder_encode, METH_O, NULL},
    {NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Encodes the properties of messages; leaves what is not simple to a plain function."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, encoder_init},
    {Py_tp_traverse, encoder_traverse},
    {Py_tp_clear, encoder_clear},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {0, NULL},
};

static PyType_Spec encoder_spec = {
    .name = "rocketstore.format._properties.Encoder",
    .basicsize = sizeof(Encoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = encoder_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &encoder_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Encoder", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_properties",
    .m_doc = "Encode the properties of a message, compiled.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__properties(void)
{
    return PyModuleDef_Init(&module_definition);
}
