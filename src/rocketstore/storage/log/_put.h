/* What the parts of a compiled put share: who puts, where to, and how the fields of a message are read.
 *
 * Law: whatever may run Python (the clock, a collection of garbage when a tuple is made, a comparison of
 * keys) comes first; from the first look at a message to the end of the append nothing does, so what
 * is borrowed stays.
 */
#ifndef ROCKETSTORE_PUT_H
#define ROCKETSTORE_PUT_H

#include "_append.h"

enum Field {
    TOPIC,
    BODY,
    PROPERTIES,
    FLAG,
    SYS_FLAG,
    BORN_TIMESTAMP,
    BORN_HOST,
    RECONSUME_TIMES,
    PREPARED_OFFSET,
    WAIT_FLUSH,
    PREPARED_FIELDS,
    KEYS = PREPARED_FIELDS,
    UNIQUE_KEY,
    TAGS,
    MESSAGE_FIELDS,
};

/* A class whose objects keep their fields in slots, and where. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t places[MESSAGE_FIELDS];
} Layout;

typedef struct {
    PyObject_HEAD
    State *log;
    PyObject *flags;
    Slot bits;
    PyObject *cells;
    PyObject *born_hosts;
    PyObject *result_type;
    PyObject *done_status;
    Layout message;
    Layout prepared;
    long long longest_body;
    long long host_bits;
    char never;
    char is_immediate;
} Putter;

/* Where and when a put is to be made; holds what a change of a dictionary would take away. */
typedef struct {
    Cell *cell;
    PyObject *born_host;
    long long host_bits;
    long long now;
} Target;

static inline PyObject *
field_of(const Layout *layout, PyObject *object, enum Field field)
{
    return *(PyObject **)((char *)object + layout->places[field]);
}

/* --- _message.c ------------------------------------------------------------------------------ */

/* Find where the objects of a class keep their fields; 0 when they are no slots. */
int find_places(PyObject *type, int count, Layout *layout);

/* Read a message whose type was checked; 0 when it is not plain. */
int read_message(Putter *self, PyObject *message, const Target *target, Record *record);

/* Read a prepared message whose type was checked, with another body or its own. */
int read_prepared(Putter *self, PyObject *prepared, PyObject *body, Target *target, Record *record);

/* --- _put.c ---------------------------------------------------------------------------------- */

/* Whether puts are taken, and none is under way. */
int is_open(Putter *self);

/* Find the cell of a queue that has one. */
int find_cell(Putter *self, PyObject *topic, PyObject *queue_id, Target *target);

/* Find a born host that is known, with the host bits of sysFlag that go with it. */
int find_host(Putter *self, PyObject *host, Target *target);

/* The time; 0 when the clock failed, which the plain way will meet again. */
int find_time(Putter *self, Target *target);

static inline void
release_target(Target *target)
{
    Py_CLEAR(target->cell);
    Py_CLEAR(target->born_host);
}

/* --- _put_batch.c ---------------------------------------------------------------------------- */

/* append_messages(messages, queue_id, longest): a list or tuple as records; None if not plain */
PyObject *putter_append_messages(Putter *self, PyObject *const *args, Py_ssize_t argument_count);

/* append_encoded(topic, queue_id, batch, more, sys_flag, born, host, reconsume_times, longest): None
 * if not plain */
PyObject *putter_append_encoded(Putter *self, PyObject *const *args, Py_ssize_t argument_count);

#endif
