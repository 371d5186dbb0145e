/* Puts of many messages in one compiled call: of a list of messages, and of a batch as a client encodes it.
 *
 * Law: as for one message (`_put.c`); a batch is appended whole, or left to the plain ways.
 */
#include "_put.h"
#include "../../format/_properties.h"
#include "../../format/_record_text.h"

enum { MESSAGE_FIXED_SIZE = 22, BATCH_HEAD_SIZE = 20 };

/* Of a batch it stands for the time of the put, as in the table of `native.batch_state`. */
enum { NO_TIMESTAMP = -1 };

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

PyObject *
putter_append_messages(Putter *self, PyObject *const *args, Py_ssize_t argument_count)
{
    long long longest;
    if (argument_count != 3 || !is_open(self) || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]))
        || !read_number(args[2], 64, &longest)) {
        Py_RETURN_NONE;
    }
    PyObject *first = NULL;
    Record *records = NULL;
    Target target = {0};
    int is_found = 0, is_read = 0;
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
        is_read = records != NULL && read_messages(self, messages, count, &target, longest, records);
    }
    PyObject *result = is_read ? append_batch(self, &target, records, count) : Py_NewRef(Py_None);
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

/* Read one message of a client's batch; return where the next begins, -1 when it is cut off, may be
 * special, or has properties that cannot be stored as they are. Total size, magic and CRC are not looked at, as in 4.9. */
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
    if (size < 0 || size > room - body_size || may_be_special(tail + 2, size)
        || !are_properties(tail + 2, size)) {
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
               && are_properties(more.at, more.size)
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

PyObject *
putter_append_encoded(Putter *self, PyObject *const *args, Py_ssize_t argument_count)
{
    Target target = {0};
    Record model = {0}, *records = NULL;
    Py_ssize_t count = 0;
    int is_read = 0;
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
        count = count_encoded(batch);
        records = count == 0 ? NULL : PyMem_New(Record, count);
        is_read = records != NULL
                  && read_all_encoded(self, batch, more, &model, &target, records, count);
    }
    PyObject *result = is_read ? append_batch(self, &target, records, count) : Py_NewRef(Py_None);
    PyMem_Free(records);
    release_target(&target);
    return result;
}
