/* The whole of a put that finds nothing to refuse and nothing to wait for, compiled; and batches.
 *
 * Law: what is done here is what `StoreWriter.put_plainly` and its like would do, with the same bytes
 * and the same result. A put that they might refuse, or that is not plain (many properties, a text
 * that is not ASCII, an odd type, a long body, a queue that got no message yet, a store that is not
 * open for puts), is left to them with the same arguments: there is one place that says no.
 *
 * Whatever may run Python (the clock, a collection of garbage when a tuple is made, a comparison of
 * keys) comes first; from the first look at a message to the end of the append nothing does, so what
 * is borrowed stays.
 */
#include "_append.h"
#include "_put_group.h"
#include "../../format/_properties.h"

enum { MESSAGE_FIXED_SIZE = 22, BATCH_HEAD_SIZE = 20, NANOS_PER_S = 1000000000, SLOW_NS = 1000000 };

/* Of a batch it stands for the time of the put, as in the table of `scan.batch_state`. */
enum { NO_TIMESTAMP = -1 };

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
static const char *const FIELD_NAMES[MESSAGE_FIELDS] = {
    "topic",
    "body",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "wait_flush",
    "keys",
    "unique_key",
    "tags",
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
    PyObject *cells;
    PyObject *born_hosts;
    PyObject *result_type;
    PyObject *done_status;
    Layout message;
    Layout prepared;
    /* Where a put waits for its sync, if that is what it does, and how long at most. */
    PyObject *group;
    const PutGroupCalls *group_calls;
    double wait_s;
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

static PyObject *bits_name, *note_slow_name, *put_plainly_name, *put_prepared_plainly_name, *zero;
static PyObject *unsynced_name;

/* --- fields ---------------------------------------------------------------------------------- */

/* Find where the objects of a class keep their fields; 0 when they are no slots. */
static int
find_places(PyObject *type, int count, Layout *layout)
{
    Py_CLEAR(layout->type);
    if (!PyType_Check(type)) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        PyObject *found = PyObject_GetAttrString(type, FIELD_NAMES[i]);
        if (found == NULL) {
            PyErr_Clear();
            return 0;
        }
        int is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type)
                      && ((PyDescrObject *)found)->d_type == (PyTypeObject *)type
                      && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        layout->places[i] = is_slot ? ((PyMemberDescrObject *)found)->d_member->offset : 0;
        Py_DECREF(found);
        if (!is_slot) {
            return 0;
        }
    }
    Py_XSETREF(layout->type, (PyTypeObject *)Py_NewRef(type));
    return 1;
}

static inline PyObject *
field_of(const Layout *layout, PyObject *object, enum Field field)
{
    return *(PyObject **)((char *)object + layout->places[field]);
}

/* Read the fields that a message and a prepared one have in common. */
static int
read_common(const Layout *layout, PyObject *object, const Target *target, Record *record)
{
    for (int i = 0; i < PREPARED_FIELDS; i++) {
        if (field_of(layout, object, i) == NULL) {
            return 0;
        }
    }
    PyObject *born = field_of(layout, object, BORN_TIMESTAMP);
    record->born_host = piece_of(target->born_host);
    record->is_born_now = born == Py_None;
    record->born = 0;
    record->property_pieces = 0;
    record->properties_size = 0;
    if (!read_number(field_of(layout, object, FLAG), 32, &record->flag)
        || !read_number(field_of(layout, object, SYS_FLAG), 32, &record->sys_flag)
        || !read_number(field_of(layout, object, RECONSUME_TIMES), 32, &record->reconsume_times)
        || !read_number(field_of(layout, object, PREPARED_OFFSET), 64, &record->prepared_offset)
        || (born != Py_None && !read_number(born, 64, &record->born)) || record->sys_flag < 0) {
        return 0;
    }
    return 1;
}

static int
read_body(Putter *self, PyObject *body, Record *record)
{
    if (!PyBytes_CheckExact(body)) {
        return 0;
    }
    record->body = piece_of(body);
    return record->body.size <= SHORT_SIZE && record->body.size <= self->longest_body;
}

/* Add one of the properties that stand in fields of their own. */
static int
add_field(Record *record, const char *marked_name, size_t name_size, PyObject *value)
{
    if (value == NULL) {
        return 0;
    }
    if (is_absent(value)) {
        return 1;
    }
    if (!is_simple(value)) {
        return 0;
    }
    /* The name with the separator before it, which the first one goes without. */
    int is_first = record->property_pieces == 0;
    add_properties(record, marked_name + is_first, (Py_ssize_t)name_size - is_first);
    add_properties(record, PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value));
    return 1;
}

#define ADD_FIELD(record, name, value) add_field(record, "\2" name "\1", sizeof name + 1, value)

/* Add a text that may stand between separators as it is. */
static int
add_text(Record *record, PyObject *text)
{
    if (!is_simple(text)) {
        return 0;
    }
    add_properties(record, PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text));
    return 1;
}

/* Add KEYS: one key, or several, none of them empty or with a blank in it. */
static int
add_keys(Record *record, PyObject *keys)
{
    if (keys == NULL || !PyTuple_CheckExact(keys) || PyTuple_GET_SIZE(keys) == 0) {
        return ADD_FIELD(record, "KEYS", keys);
    }
    if (PyTuple_GET_SIZE(keys) > MOST_KEYS) {
        return 0;
    }
    static const char marked_name[] = "\2KEYS\1";
    int is_first = record->property_pieces == 0;
    add_properties(record, marked_name + is_first, (Py_ssize_t)sizeof marked_name - 1 - is_first);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (i > 0) {
            add_properties(record, " ", 1);
        }
        if (!add_text(record, key) || PyUnicode_GET_LENGTH(key) == 0
            || memchr(PyUnicode_1BYTE_DATA(key), ' ', (size_t)PyUnicode_GET_LENGTH(key)) != NULL) {
            return 0;
        }
    }
    return 1;
}

/* Whether a property asks for something that only the plain ways look at. */
static int
is_special(PyObject *name)
{
    static const char *const names[] = {"DELAY", "INNER_MULTI_DISPATCH", "WAIT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size = strlen(names[i]);
        if ((size_t)PyUnicode_GET_LENGTH(name) == size
            && memcmp(PyUnicode_1BYTE_DATA(name), names[i], size) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Add further properties; they come before all others. */
static int
add_further(Record *record, PyObject *properties)
{
    if (!PyDict_CheckExact(properties) || PyDict_GET_SIZE(properties) > MOST_PROPERTIES) {
        return 0;
    }
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(properties, &at, &name, &value)) {
        if (record->property_pieces > 0) {
            add_properties(record, "\2", 1);
        }
        if (!add_text(record, name) || PyUnicode_GET_LENGTH(name) == 0 || is_special(name)) {
            return 0;
        }
        add_properties(record, "\1", 1);
        if (!add_text(record, value)) {
            return 0;
        }
    }
    return 1;
}

/* Read a message whose type was checked; 0 when it is not plain. */
static int
read_message(Putter *self, PyObject *message, const Target *target, Record *record)
{
    const Layout *layout = &self->message;
    if (!read_common(layout, message, target, record)) {
        return 0;
    }
    record->sys_flag &= ~(long long)(BORN_HOST_V6 | STORE_HOST_V6);
    record->sys_flag |= target->host_bits;
    return read_body(self, field_of(layout, message, BODY), record)
           && add_further(record, field_of(layout, message, PROPERTIES))
           && add_keys(record, field_of(layout, message, KEYS))
           && ADD_FIELD(record, "UNIQ_KEY", field_of(layout, message, UNIQUE_KEY))
           && ADD_FIELD(record, "TAGS", field_of(layout, message, TAGS))
           && measure(self->log, target->cell, record);
}

/* --- where to -------------------------------------------------------------------------------- */

static long long
monotonic_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (long long)moment.tv_sec * NANOS_PER_S + moment.tv_nsec;
}

/* Whether puts are taken, and none is under way. */
static int
is_open(Putter *self)
{
    if (self->never || self->log == NULL || self->log->locked_since_ms != 0 || self->log->busy) {
        return 0;
    }
    PyObject *bits = PyObject_GetAttr(self->flags, bits_name);
    if (bits == NULL) {
        PyErr_Clear();
        return 0;
    }
    int is_zero = PyLong_CheckExact(bits) && Py_SIZE(bits) == 0;
    Py_DECREF(bits);
    return is_zero;
}

static void
release_target(Target *target)
{
    Py_CLEAR(target->cell);
    Py_CLEAR(target->born_host);
}

/* Find the cell of a queue that has one. */
static int
find_cell(Putter *self, PyObject *topic, PyObject *queue_id, Target *target)
{
    if (topic == NULL || !PyUnicode_CheckExact(topic) || !PyLong_CheckExact(queue_id)) {
        return 0;
    }
    Py_INCREF(topic);
    PyObject *key = PyTuple_Pack(2, topic, queue_id);
    PyObject *cell = key == NULL ? NULL : PyDict_GetItemWithError(self->cells, key);
    Py_XDECREF(key);
    Py_DECREF(topic);
    if (cell == NULL || !Py_IS_TYPE(cell, self->log->cell_type)) {
        PyErr_Clear();
        return 0;
    }
    target->cell = (Cell *)Py_NewRef(cell);
    return 1;
}

/* Find a born host that is known, with the host bits of sysFlag that go with it. */
static int
find_host(Putter *self, PyObject *host, Target *target)
{
    if (host == NULL || !PyUnicode_CheckExact(host)) {
        return 0;
    }
    Py_INCREF(host);
    PyObject *known = PyDict_GetItemWithError(self->born_hosts, host);
    Py_DECREF(host);
    if (known == NULL || !PyTuple_CheckExact(known) || PyTuple_GET_SIZE(known) != 2
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(known, 0))
        || !read_number(PyTuple_GET_ITEM(known, 1), 32, &target->host_bits)) {
        PyErr_Clear();
        return 0;
    }
    target->born_host = Py_NewRef(PyTuple_GET_ITEM(known, 0));
    return 1;
}

/* The time; 0 when the clock failed, which the plain way will meet again. */
static int
find_time(Putter *self, Target *target)
{
    if (read_time(self->log, &target->now) < 0) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* --- put ------------------------------------------------------------------------------------- */

/* Wait for the sync of a put, if it does; return its status. */
static PyObject *
wait_for_sync(Putter *self, const Place *place)
{
    if (self->group == NULL) {
        return Py_NewRef(self->done_status);
    }
    int is_flushed = self->group_calls->wait(self->group, place->offset + place->size, self->wait_s);
    if (is_flushed > 0) {
        return Py_NewRef(self->done_status);
    }
    PyObject *end = is_flushed < 0 ? NULL : PyLong_FromLongLong(place->offset + place->size);
    PyObject *status = end == NULL ? NULL
                                   : PyObject_CallMethodOneArg((PyObject *)self, unsynced_name, end);
    Py_XDECREF(end);
    return status;
}

/* The result of a put of one message, which took a while. */
static PyObject *
result_of(Putter *self, const Place *place, long long began_ns)
{
    PyObject *status = wait_for_sync(self, place);
    if (status == NULL) {
        return NULL;
    }
    long long elapsed_ns = monotonic_ns() - began_ns;
    if (elapsed_ns >= SLOW_NS) {
        PyObject *millis = PyLong_FromLongLong(elapsed_ns / SLOW_NS);
        PyObject *noted = millis == NULL ? NULL
                                         : PyObject_CallMethodOneArg((PyObject *)self, note_slow_name, millis);
        Py_XDECREF(millis);
        Py_XDECREF(noted);
        if (noted == NULL) {
            Py_DECREF(status);
            return NULL;
        }
    }
    PyObject *fields[] = {
        status,
        PyLong_FromLongLong(place->offset),
        PyLong_FromLongLong(place->queue_offset),
        PyLong_FromLongLong(place->size),
        PyLong_FromLongLong(place->now),
        Py_NewRef(self->log->store_host),
    };
    PyObject *result = NULL;
    if (fields[1] != NULL && fields[2] != NULL && fields[3] != NULL && fields[4] != NULL) {
        result = PyObject_Vectorcall(self->result_type, fields, sizeof fields / sizeof *fields, NULL);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XDECREF(fields[i]);
    }
    return result;
}

static PyObject *
put_plainly(Putter *self, PyObject *name, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *method = PyObject_GetAttr((PyObject *)self, name);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)count, names);
    Py_DECREF(method);
    return result;
}

/* Whether a put of this object is done when it is appended, or waits for its sync. */
static inline int
is_common(Putter *self, const Layout *layout, PyObject *object)
{
    return is_open(self) && Py_IS_TYPE(object, layout->type)
           && (self->is_immediate
               || (self->group != NULL && field_of(layout, object, WAIT_FLUSH) == Py_True));
}

/* put(message, queue_id=0) */
static PyObject *
putter_put(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (names == NULL && (count == 1 || count == 2)
        && is_common(self, &self->message, args[0])) {
        long long began_ns = monotonic_ns();
        PyObject *queue_id = count == 2 ? args[1] : zero;
        Target target = {0};
        Record record;
        Place place;
        int done = 0;
        if (find_time(self, &target)
            && find_cell(self, field_of(&self->message, args[0], TOPIC), queue_id, &target)
            && find_host(self, field_of(&self->message, args[0], BORN_HOST), &target)
            && read_message(self, args[0], &target, &record)) {
            record.crc = short_body_crc(record.body);
            done = append_now(self->log, target.cell, &record, 1, target.now, &place);
        }
        release_target(&target);
        if (done != 0) {
            return done < 0 ? NULL : result_of(self, &place, began_ns);
        }
    }
    return put_plainly(self, put_plainly_name, args, count, names);
}

/* Read a prepared message whose type was checked, with another body or its own. */
static int
read_prepared(Putter *self, PyObject *prepared, PyObject *body, Target *target, Record *record)
{
    const Layout *layout = &self->prepared;
    PyObject *host = field_of(layout, prepared, BORN_HOST);
    PyObject *properties = field_of(layout, prepared, PROPERTIES);
    if (host == NULL || !PyBytes_CheckExact(host)) {
        return 0;
    }
    target->born_host = Py_NewRef(host);
    if (!read_common(layout, prepared, target, record) || !PyBytes_CheckExact(properties)) {
        return 0;
    }
    record->sys_flag |= self->host_bits;
    add_properties(record, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties));
    return read_body(self, body == Py_None ? field_of(layout, prepared, BODY) : body, record)
           && measure(self->log, target->cell, record);
}

/* put_prepared(prepared, body=None, queue_id=0) */
static PyObject *
putter_put_prepared(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (names == NULL && count >= 1 && count <= 3
        && is_common(self, &self->prepared, args[0])) {
        long long began_ns = monotonic_ns();
        PyObject *body = count >= 2 ? args[1] : Py_None;
        PyObject *queue_id = count == 3 ? args[2] : zero;
        Target target = {0};
        Record record;
        Place place;
        int done = 0;
        if (find_time(self, &target)
            && find_cell(self, field_of(&self->prepared, args[0], TOPIC), queue_id, &target)
            && read_prepared(self, args[0], body, &target, &record)) {
            record.crc = short_body_crc(record.body);
            done = append_now(self->log, target.cell, &record, 1, target.now, &place);
        }
        release_target(&target);
        if (done != 0) {
            return done < 0 ? NULL : result_of(self, &place, began_ns);
        }
    }
    return put_plainly(self, put_prepared_plainly_name, args, count, names);
}

/* --- batches --------------------------------------------------------------------------------- */

/* What a batch returns: offset, bytes, queue offset, time and count, and the size of each record. */
static PyObject *
batch_result(const Place *place, const Record *records, Py_ssize_t count)
{
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (sizes == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t size = records[i].size;
        memcpy(PyBytes_AS_STRING(sizes) + i * (Py_ssize_t)sizeof size, &size, sizeof size);
    }
    return Py_BuildValue("LLLLnN", place->offset, place->size, place->queue_offset, place->now, count,
                         sizes);
}

/* Append what was read of a batch, if it is short enough; None when it is not the common case. */
static PyObject *
append_batch(Putter *self, const Target *target, Record *records, Py_ssize_t count)
{
    long long size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size += records[i].size;
    }
    Place place;
    int done = 0;
    if (size <= SHORT_BATCH_SIZE) {
        for (Py_ssize_t i = 0; i < count; i++) {
            records[i].crc = short_body_crc(records[i].body);
        }
        done = append_now(self->log, target->cell, records, count, target->now, &place);
    }
    if (done < 0) {
        return NULL;
    }
    return done > 0 ? batch_result(&place, records, count) : Py_NewRef(Py_None);
}

/* Whether a field is the same text as another message's, which stands for both. */
static inline int
is_same_text(PyObject *one, PyObject *other)
{
    return one != NULL && other != NULL && PyUnicode_CheckExact(one) && PyUnicode_CheckExact(other)
           && (one == other || PyUnicode_Compare(one, other) == 0);
}

/* Read messages that are put together; 0 when they are not plain, or not of one topic and host. */
static int
read_messages(Putter *self, PyObject *const *messages, Py_ssize_t count, const Target *target,
              long long longest, Record *records)
{
    const Layout *layout = &self->message;
    PyObject *topic = field_of(layout, messages[0], TOPIC);
    PyObject *host = field_of(layout, messages[0], BORN_HOST);
    long long payload = count * MESSAGE_FIXED_SIZE;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *message = messages[i];
        if (!Py_IS_TYPE(message, layout->type)
            || !is_same_text(field_of(layout, message, TOPIC), topic)
            || !is_same_text(field_of(layout, message, BORN_HOST), host)
            || field_of(layout, message, WAIT_FLUSH) != Py_True
            || !read_message(self, message, target, &records[i])) {
            return 0;
        }
        records[i].is_born_now |= records[i].born == NO_TIMESTAMP;
        payload += records[i].body.size + records[i].properties_size;
    }
    return payload <= longest;
}

/* append_messages(messages, queue_id, longest): a list or tuple as records; None if not plain */
static PyObject *
putter_append_messages(Putter *self, PyObject *const *args, Py_ssize_t argument_count)
{
    long long longest;
    if (argument_count != 3 || !is_open(self) || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]))
        || !read_number(args[2], 64, &longest)) {
        Py_RETURN_NONE;
    }
    PyObject *result = NULL, *first = NULL;
    Record *records = NULL;
    Target target = {0};
    int is_found = 0;
    if (find_time(self, &target) && PySequence_Fast_GET_SIZE(args[0]) > 0) {
        first = Py_NewRef(PySequence_Fast_GET_ITEM(args[0], 0));
        is_found = Py_IS_TYPE(first, self->message.type)
                   && find_cell(self, field_of(&self->message, first, TOPIC), args[1], &target)
                   && find_host(self, field_of(&self->message, first, BORN_HOST), &target);
    }
    /* From here on no Python runs, so the list stays as it is. */
    Py_ssize_t count = PySequence_Fast_GET_SIZE(args[0]);
    if (is_found && count > 0 && count <= SHORT_BATCH_SIZE / MESSAGE_FIXED_SIZE
        && PySequence_Fast_GET_ITEM(args[0], 0) == first) {
        records = PyMem_New(Record, count);
        PyObject *const *messages = PySequence_Fast_ITEMS(args[0]);
        if (records != NULL && read_messages(self, messages, count, &target, longest, records)) {
            result = append_batch(self, &target, records, count);
        }
        else {
            result = Py_NewRef(Py_None);
        }
    }
    else {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(records);
    release_target(&target);
    Py_XDECREF(first);
    return result;
}

static inline uint32_t
get32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return be32toh(value);
}

/* Whether a property that begins like DELAY or INNER_MULTI_DISPATCH stands in a block. */
static int
may_be_special(const unsigned char *at, Py_ssize_t size)
{
    static const char delay[] = "DELAY\1", inner[] = "INNER_MU";
    const unsigned char *end = at + size;
    while (end - at >= (Py_ssize_t)sizeof delay - 1) {
        if (memcmp(at, delay, sizeof delay - 1) == 0
            || (end - at >= (Py_ssize_t)sizeof inner - 1 && memcmp(at, inner, sizeof inner - 1) == 0)) {
            return 1;
        }
        at = memchr(at, VALUE_END, (size_t)(end - at));
        if (at == NULL) {
            return 0;
        }
        at++;
    }
    return 0;
}

/* Read one message of a client's batch; return where the next begins, -1 when it is cut off or may be
 * special. Total size, magic and CRC are not looked at, as in 4.9. */
static Py_ssize_t
read_encoded(Piece batch, Py_ssize_t at, Piece more, Record *record)
{
    const unsigned char *start = (const unsigned char *)batch.at + at;
    Py_ssize_t room = batch.size - at - MESSAGE_FIXED_SIZE;
    if (room < 0) {
        return -1;
    }
    int32_t body_size = (int32_t)get32(start + 16);
    if (body_size < 0 || body_size > room || body_size > SHORT_SIZE) {
        return -1;
    }
    const unsigned char *tail = start + BATCH_HEAD_SIZE + body_size;
    int16_t size = (int16_t)(tail[0] << 8 | tail[1]);
    if (size < 0 || size > room - body_size || may_be_special(tail + 2, size)) {
        return -1;
    }
    record->flag = (int32_t)get32(start + 12);
    record->body = (Piece){start + BATCH_HEAD_SIZE, body_size};
    record->property_pieces = 0;
    record->properties_size = 0;
    add_properties(record, tail + 2, size);
    if (more.size > 0) {
        if (size > 0 && tail[2 + size - 1] != VALUE_END) {
            add_properties(record, "\2", 1);
        }
        add_properties(record, more.at, more.size);
    }
    return at + MESSAGE_FIXED_SIZE + body_size + size;
}

/* How many messages a client's batch has; 0 when that is not the common case. */
static Py_ssize_t
count_encoded(Piece batch)
{
    Py_ssize_t count = 0, at = 0;
    while (at < batch.size) {
        const unsigned char *start = (const unsigned char *)batch.at + at;
        Py_ssize_t room = batch.size - at - MESSAGE_FIXED_SIZE;
        if (room < 0) {
            return 0;
        }
        int32_t body_size = (int32_t)get32(start + 16);
        if (body_size < 0 || body_size > room) {
            return 0;
        }
        const unsigned char *tail = start + BATCH_HEAD_SIZE + body_size;
        at += MESSAGE_FIXED_SIZE + body_size + (tail[0] << 8 | tail[1]);
        count++;
    }
    return count;
}

/* Whether properties that are added to those of every message are nothing to look at. */
static int
are_plain(Piece more)
{
    static const char wait[] = "WAIT\1";
    return more.size == 0
           || (more.size <= PROPERTIES_SIZE_MAX && !may_be_special(more.at, more.size)
               && memmem(more.at, (size_t)more.size, wait, sizeof wait - 1) == NULL);
}

/* Read all messages of a client's batch, each with what `model` says of it. */
static int
read_all_encoded(Putter *self, Piece batch, Piece more, const Record *model, const Target *target,
                 Record *records, Py_ssize_t count)
{
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(&records[i], model, offsetof(Record, properties));
        at = read_encoded(batch, at, more, &records[i]);
        if (at < 0 || !measure(self->log, target->cell, &records[i])) {
            return 0;
        }
    }
    return at == batch.size;
}

/* append_encoded(topic, queue_id, batch, more, sys_flag, born, host, reconsume_times, longest): None
 * if not plain */
static PyObject *
putter_append_encoded(Putter *self, PyObject *const *args, Py_ssize_t argument_count)
{
    Target target = {0};
    Record model = {0}, *records = NULL;
    PyObject *result = NULL;
    long long longest;
    if (argument_count != 9 || !is_open(self) || !PyBytes_CheckExact(args[2])
        || !PyBytes_CheckExact(args[3]) || !read_number(args[4], 32, &model.sys_flag)
        || model.sys_flag < 0 || !(args[5] == Py_None || read_number(args[5], 64, &model.born))
        || !read_number(args[7], 32, &model.reconsume_times) || !read_number(args[8], 64, &longest)
        || !find_time(self, &target)) {
        Py_RETURN_NONE;
    }
    Piece batch = piece_of(args[2]), more = piece_of(args[3]);
    if (batch.size <= SHORT_BATCH_SIZE && batch.size <= longest && are_plain(more)
        && find_cell(self, args[0], args[1], &target) && find_host(self, args[6], &target)) {
        model.is_born_now = args[5] == Py_None || model.born == NO_TIMESTAMP;
        model.born_host = piece_of(target.born_host);
        model.sys_flag &= ~(long long)(BORN_HOST_V6 | STORE_HOST_V6);
        model.sys_flag |= target.host_bits;
        Py_ssize_t count = count_encoded(batch);
        records = count == 0 ? NULL : PyMem_New(Record, count);
        if (records != NULL
            && read_all_encoded(self, batch, more, &model, &target, records, count)) {
            result = append_batch(self, &target, records, count);
        }
        else {
            result = Py_NewRef(Py_None);
        }
    }
    else {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(records);
    release_target(&target);
    return result;
}

/* wait_in(group, timeout_s): have puts wait for their sync there; left to the plain ways elsewhere */
static PyObject *
putter_wait_in(Putter *self, PyObject *const *args, Py_ssize_t count)
{
    const PutGroupCalls *calls = PyCapsule_Import(PUT_GROUP_CALLS, 0);
    if (calls == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "wait_in takes a group and a timeout in seconds");
        return NULL;
    }
    double wait_s = PyFloat_AsDouble(args[1]);
    if (wait_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (Py_IS_TYPE(args[0], calls->type)) {
        Py_XSETREF(self->group, Py_NewRef(args[0]));
        self->group_calls = calls;
        self->wait_s = wait_s;
    }
    Py_RETURN_NONE;
}

/* --- the type -------------------------------------------------------------------------------- */

static int
putter_init(Putter *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"log", "flags", "born_hosts", "message_type", "prepared_type", "result_type",
                            "done_status", "longest_body", "host_bits", "is_immediate", NULL};
    PyObject *log, *flags, *born_hosts, *message_type, *prepared_type, *result_type, *done_status;
    long long longest_body, host_bits;
    int is_immediate;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OOOOLLp", names, &log, &flags, &PyDict_Type,
                                     &born_hosts, &message_type, &prepared_type, &result_type,
                                     &done_status, &longest_body, &host_bits, &is_immediate)) {
        return -1;
    }
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &append_module);
    if (module == NULL) {
        return -1;
    }
    PyTypeObject *state_type = ((ModuleTypes *)PyModule_GetState(module))->state_type;
    if (!PyObject_TypeCheck(log, state_type)) {
        PyErr_SetString(PyExc_TypeError, "the log is no AppendState");
        return -1;
    }
    PyObject *cells = PyObject_GetAttrString(log, "cells");
    if (cells == NULL || !PyDict_CheckExact(cells)) {
        Py_XDECREF(cells);
        PyErr_SetString(PyExc_TypeError, "the cells of the log are no dict");
        return -1;
    }
    Py_XSETREF(self->cells, cells);
    Py_XSETREF(self->log, (State *)Py_NewRef(log));
    Py_XSETREF(self->flags, Py_NewRef(flags));
    Py_XSETREF(self->born_hosts, Py_NewRef(born_hosts));
    Py_XSETREF(self->result_type, Py_NewRef(result_type));
    Py_XSETREF(self->done_status, Py_NewRef(done_status));
    self->longest_body = longest_body;
    self->host_bits = host_bits;
    /* Without its places no object is of the type: all is left to the plain way. */
    find_places(message_type, MESSAGE_FIELDS, &self->message);
    find_places(prepared_type, PREPARED_FIELDS, &self->prepared);
    self->is_immediate = (char)is_immediate;
    return 0;
}

static int
putter_traverse(Putter *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->log);
    Py_VISIT(self->flags);
    Py_VISIT(self->cells);
    Py_VISIT(self->born_hosts);
    Py_VISIT(self->result_type);
    Py_VISIT(self->done_status);
    Py_VISIT(self->group);
    Py_VISIT(self->message.type);
    Py_VISIT(self->prepared.type);
    return 0;
}

static int
putter_clear(Putter *self)
{
    Py_CLEAR(self->log);
    Py_CLEAR(self->flags);
    Py_CLEAR(self->cells);
    Py_CLEAR(self->born_hosts);
    Py_CLEAR(self->result_type);
    Py_CLEAR(self->done_status);
    Py_CLEAR(self->group);
    Py_CLEAR(self->message.type);
    Py_CLEAR(self->prepared.type);
    return 0;
}

static void
putter_dealloc(Putter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    putter_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef putter_members[] = {
    {"_log", T_OBJECT, offsetof(Putter, log), READONLY, NULL},
    {"_flags", T_OBJECT, offsetof(Putter, flags), READONLY, NULL},
    {"_cells", T_OBJECT, offsetof(Putter, cells), READONLY, NULL},
    {"_born_hosts", T_OBJECT, offsetof(Putter, born_hosts), READONLY, NULL},
    {"_never", T_BOOL, offsetof(Putter, never), 0, NULL},
    {NULL},
};

static PyMethodDef putter_methods[] = {
    {"put", (PyCFunction)(void (*)(void))putter_put, METH_FASTCALL | METH_KEYWORDS,
     "put($self, message, queue_id=0, /)\n--\n\nStore a message; see `MessageStore.put`."},
    {"put_prepared", (PyCFunction)(void (*)(void))putter_put_prepared, METH_FASTCALL | METH_KEYWORDS,
     "put_prepared($self, prepared, body=None, queue_id=0, /)\n--\n\nStore a prepared message."},
    {"append_messages", (PyCFunction)(void (*)(void))putter_append_messages, METH_FASTCALL, NULL},
    {"append_encoded", (PyCFunction)(void (*)(void))putter_append_encoded, METH_FASTCALL, NULL},
    {"wait_in", (PyCFunction)(void (*)(void))putter_wait_in, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot putter_slots[] = {
    {Py_tp_doc, "The common case of puts, and where everything else is left to plain methods."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, putter_init},
    {Py_tp_traverse, putter_traverse},
    {Py_tp_clear, putter_clear},
    {Py_tp_dealloc, putter_dealloc},
    {Py_tp_members, putter_members},
    {Py_tp_methods, putter_methods},
    {0, NULL},
};

PyType_Spec put_state_spec = {
    .name = "rocketstore.storage.log._append.PutState",
    .basicsize = sizeof(Putter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = putter_slots,
};

int
prepare_puts(void)
{
    bits_name = PyUnicode_InternFromString("bits");
    note_slow_name = PyUnicode_InternFromString("note_slow");
    put_plainly_name = PyUnicode_InternFromString("put_plainly");
    put_prepared_plainly_name = PyUnicode_InternFromString("put_prepared_plainly");
    zero = PyLong_FromLong(0);
    unsynced_name = PyUnicode_InternFromString("unsynced");
    return bits_name != NULL && note_slow_name != NULL && put_plainly_name != NULL
           && put_prepared_plainly_name != NULL && zero != NULL && unsynced_name != NULL;
}
