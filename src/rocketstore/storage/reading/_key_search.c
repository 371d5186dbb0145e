/* The messages that carry a key, compiled: from an item of an index file to the decoded message.
 *
 * Law: what comes out is what the kernel `native.lookup` and a decoding of its hits give. A
 * question that is not plain (text that is not ASCII, a number of more than 64 bits) is left to them;
 * a record of the second magic number, or that the compiled decoder does not take, is left to
 * `KeySearch._hit_at`; the file of a record elsewhere is asked of `KeySearch._place_of`. Every number
 * is compared with the maps before it is used as a position; the maps are held here, where the
 * interpreter's lock may be given up.
 *
 * Source: IndexFile.selectPhyOffset, DefaultMessageStore.queryMessage of 4.9
 * (docs/how-it-works/reading.md).
 */
#include "_record_bytes.h"
#include <limits.h>

enum {
    HEADER_SIZE = 40,
    SLOT_SIZE = 4,
    ITEM_SIZE = 20,
    TOPIC_SIZE_MAX = 127,
    STEPS_HELD = 64,
    CANDIDATES_PER_CALL = 32,
    ARGUMENTS = 10,
};
static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;
static const int64_t MAX_BEGIN_MS = (int64_t)1 << 60;

static inline int32_t
read_i32(const uint8_t *at)
{
    return (int32_t)read_u32(at);
}

/* What is searched for; the texts are ASCII. */
typedef struct {
    const char *topic, *key;
    Py_ssize_t topic_size, key_size;
    int64_t begin_ms, end_ms;
} Wanted;

/* --- the chain of a slot --------------------------------------------------------------------- */

typedef struct {
    const uint8_t *items;
    int64_t begin_ms;
    int32_t key_hash;
    int32_t number; /* of the item to look at next, 0 behind the last one */
    int64_t offset; /* of the candidate that was found */
} Chain;

/* As `abs(f"{topic}#{key}".hashCode())` in Java, where the smallest number gives 0. */
static int32_t
key_hash(const Wanted *wanted)
{
    uint32_t hash = 0;
    for (Py_ssize_t i = 0; i < wanted->topic_size; i++) {
        hash = 31 * hash + (uint8_t)wanted->topic[i];
    }
    hash = 31 * hash + '#';
    for (Py_ssize_t i = 0; i < wanted->key_size; i++) {
        hash = 31 * hash + (uint8_t)wanted->key[i];
    }
    hash = hash & 0x80000000u ? 0u - hash : hash;
    return (int32_t)(hash & 0x7FFFFFFFu);
}

/* Begin at item `number`, at the slot's newest where it is 0 or less; the slots and items fit the map. */
static void
begin_chain(Chain *chain, const uint8_t *file, const Wanted *wanted, long long slots, long long items,
            long long number)
{
    int64_t begin = read_i64(file);
    int64_t count = read_i32(file + 36);
    chain->items = file + HEADER_SIZE + slots * SLOT_SIZE;
    chain->begin_ms = begin < 0 ? 0 : begin > MAX_BEGIN_MS ? MAX_BEGIN_MS : begin;
    chain->key_hash = key_hash(wanted);
    count = count < items ? count : items;
    if (number <= 0) {
        number = read_i32(file + HEADER_SIZE + chain->key_hash % slots * SLOT_SIZE);
        /* The item is whole before its slot names it; the header's count follows a moment later. */
        count += number == count;
    }
    chain->number = number > 0 && number < count && number < items ? (int32_t)number : 0;
}

/* Go on to the next candidate; 0 when none came within so many steps. Needs no interpreter's lock. */
static int
next_candidate(Chain *chain, const Wanted *wanted, int steps)
{
    for (; chain->number != 0 && steps > 0; steps--) {
        const uint8_t *item = chain->items + (int64_t)chain->number * ITEM_SIZE;
        int32_t seconds = read_i32(item + 12);
        int32_t older = read_i32(item + 16);
        /* K-I5: the first item of a file was stored when the file begins, whatever it says. */
        int64_t stored = chain->begin_ms + (chain->number == 1 ? 0 : (int64_t)seconds * 1000);
        chain->number = seconds >= 0 && older > 0 && older < chain->number ? older : 0;
        if (seconds >= 0 && read_i32(item) == chain->key_hash && stored + 999 >= wanted->begin_ms
            && stored <= wanted->end_ms) {
            chain->offset = read_i64(item + 4);
            return 1;
        }
    }
    return 0;
}

/* --- a record -------------------------------------------------------------------------------- */

static int
is_key(const Wanted *wanted, const uint8_t *at, const uint8_t *end)
{
    return end - at == wanted->key_size && memcmp(at, wanted->key, (size_t)wanted->key_size) == 0;
}

/* Whether properties name the key in the last `KEYS` or the last `UNIQ_KEY`. */
static int
carries_key(const Wanted *wanted, const uint8_t *at, const uint8_t *end)
{
    static const char keys_name[] = "KEYS\1", unique_name[] = "UNIQ_KEY\1";
    const Py_ssize_t keys_size = sizeof keys_name - 1, unique_size = sizeof unique_name - 1;
    const uint8_t *keys = end, *keys_end = end, *unique = end, *unique_end = end;
    while (at < end) {
        const uint8_t *part_end = memchr(at, 2, (size_t)(end - at));
        part_end = part_end == NULL ? end : part_end;
        Py_ssize_t size = part_end - at;
        if (size > keys_size && memcmp(at, keys_name, (size_t)keys_size) == 0) {
            keys = at + keys_size;
            keys_end = part_end;
        }
        else if (size > unique_size && memcmp(at, unique_name, (size_t)unique_size) == 0) {
            unique = at + unique_size;
            unique_end = part_end;
        }
        at = part_end + 1;
    }
    if (is_key(wanted, unique, unique_end)) {
        return 1;
    }
    while (keys < keys_end) {
        const uint8_t *word_end = memchr(keys, ' ', (size_t)(keys_end - keys));
        word_end = word_end == NULL ? keys_end : word_end;
        if (is_key(wanted, keys, word_end)) {
            return 1;
        }
        keys = word_end + 1;
    }
    return 0;
}

typedef enum { MISS, HIT, DOUBTFUL } Verdict;

/* Judge the record that begins `room` bytes before the end of what may be read; its body's checksum
 * is left to who decodes it. Needs no interpreter's lock. */
static Verdict
judge(const uint8_t *record, long long room, int64_t offset, const Wanted *wanted)
{
    if (room < FIXED_SIZE || read_i64(record + 28) != offset) {
        return MISS;
    }
    int64_t size = read_i32(record);
    uint32_t magic = read_u32(record + 4);
    if (magic != MAGIC_V1) {
        return magic == MAGIC_V2 ? DOUBTFUL : MISS;
    }
    uint32_t sys_flag = read_u32(record + 36);
    int born_extra = sys_flag & BORN_HOST_V6 ? V6_EXTRA_SIZE : 0;
    int extra = born_extra + (sys_flag & STORE_HOST_V6 ? V6_EXTRA_SIZE : 0);
    int64_t rest = size - FIXED_SIZE - extra - wanted->topic_size;
    if (size > room || rest < 0 || wanted->topic_size > TOPIC_SIZE_MAX) {
        return MISS;
    }
    int64_t stored = read_i64(record + 56 + born_extra);
    uint32_t body_size = read_u32(record + BODY_AT + extra - 4);
    if (stored < wanted->begin_ms || stored > wanted->end_ms || body_size > (uint64_t)rest) {
        return MISS;
    }
    rest -= body_size;
    const uint8_t *topic = record + BODY_AT + extra + body_size + 1;
    const uint8_t *properties = topic + wanted->topic_size + 2;
    if (topic[-1] != wanted->topic_size
        || memcmp(topic, wanted->topic, (size_t)wanted->topic_size) != 0
        || (properties[-2] << 8 | properties[-1]) != rest || rest > INT16_MAX
        || !carries_key(wanted, properties, properties + rest)) {
        return MISS;
    }
    return HIT;
}

/* --- one call -------------------------------------------------------------------------------- */

/* A CommitLog file: its map, the offset of its first byte, and how much may be read. */
typedef struct {
    PyObject *array;
    Py_buffer view;
    int64_t base, readable;
} Place;

typedef struct {
    PyObject *owner, *decode, *question, *found;
    Wanted wanted;
    Place place;
    int64_t in_disk_below, most, lowest;
} Search;

/* Take a number; 0 without an error when it is none of 64 bits. */
static int
take_number(PyObject *object, int64_t *number)
{
    int is_too_large = 1;
    *number = PyLong_Check(object) ? PyLong_AsLongLongAndOverflow(object, &is_too_large) : 0;
    return !is_too_large;
}

static void
leave_place(Place *place)
{
    if (place->array != NULL) {
        PyBuffer_Release(&place->view);
        Py_CLEAR(place->array);
    }
}

/* Hold the file that a tuple of map, base and readable bytes names; 0 with an error set. */
static int
take_place(Place *place, PyObject *tuple)
{
    leave_place(place);
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3
        || !take_number(PyTuple_GET_ITEM(tuple, 1), &place->base)
        || !take_number(PyTuple_GET_ITEM(tuple, 2), &place->readable)) {
        PyErr_SetString(PyExc_TypeError, "a place is a map, its base and what may be read");
        return 0;
    }
    PyObject *array = PyTuple_GET_ITEM(tuple, 0);
    if (PyObject_GetBuffer(array, &place->view, PyBUF_SIMPLE) < 0) {
        return 0;
    }
    place->array = Py_NewRef(array);
    if (place->readable > place->view.len) {
        place->readable = place->view.len;
    }
    return 1;
}

static int
covers(const Place *place, int64_t offset)
{
    return place->base >= 0 && offset >= place->base && offset - place->base < place->view.len;
}

/* Go to the file of an offset; 0 when there is none, -1 with an error set. */
static int
go_to(Search *search, int64_t offset)
{
    PyObject *tuple = PyObject_CallMethod(search->owner, "_place_of", "L", (long long)offset);
    if (tuple == NULL) {
        return -1;
    }
    int is_there = tuple == Py_None ? 0 : take_place(&search->place, tuple) ? 1 : -1;
    Py_DECREF(tuple);
    return is_there == 1 ? covers(&search->place, offset) : is_there;
}

/* The message of a hit in the file that is held, None when the compiled decoder leaves it to the plain. */
static PyObject *
decoded(Search *search, int64_t at)
{
    const Place *place = &search->place;
    PyObject *numbers[2] = {PyLong_FromLongLong(at), PyLong_FromLongLong(place->base)};
    PyObject *message = NULL;
    if (numbers[0] != NULL && numbers[1] != NULL) {
        PyObject *arguments[] = {place->array, numbers[0], numbers[1], Py_True};
        message = PyObject_Vectorcall(search->decode, arguments, 4, NULL);
    }
    Py_XDECREF(numbers[0]);
    Py_XDECREF(numbers[1]);
    return message;
}

/* The message at a place in the file that is held, None when it is not one that was asked for. */
static PyObject *
message_there(Search *search, int64_t offset)
{
    const Place *place = &search->place;
    int64_t at = offset - place->base;
    const uint8_t *record = (const uint8_t *)place->view.buf + at;
    fetch_ahead(record, place->readable - at);
    PyThreadState *state = offset < search->in_disk_below ? PyEval_SaveThread() : NULL;
    Verdict verdict = judge(record, place->readable - at, offset, &search->wanted);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (verdict == MISS) {
        return Py_NewRef(Py_None);
    }
    PyObject *message = verdict == HIT ? decoded(search, at) : Py_NewRef(Py_None);
    if (message == Py_None) {
        Py_DECREF(message);
        return PyObject_CallMethod(
            search->owner, "_hit_at", "LO", (long long)offset, search->question);
    }
    return message;
}

static int64_t
offset_of(PyObject *message)
{
    PyObject *number = PyObject_GetAttrString(message, "physical_offset");
    int64_t offset = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return offset;
}

/* Whether the message of an offset was found already; -1 with an error set. */
static int
is_found(const Search *search, int64_t offset)
{
    if (offset > search->lowest) { /* not so in a chain that goes through the log backwards */
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(search->found); i++) {
            int64_t other = offset_of(PyList_GET_ITEM(search->found, i));
            if (other == -1 && PyErr_Occurred()) {
                return -1;
            }
            if (other == offset) {
                return 1;
            }
        }
    }
    return offset == search->lowest;
}

/* Append the message of a candidate if it is a hit; 0 with an error set. */
static int
take_candidate(Search *search, int64_t offset)
{
    int is_known = is_found(search, offset);
    if (is_known) {
        return is_known > 0;
    }
    if (!covers(&search->place, offset)) {
        int is_there = go_to(search, offset);
        if (is_there <= 0) {
            return is_there == 0;
        }
    }
    PyObject *message = message_there(search, offset);
    if (message == NULL) {
        return 0;
    }
    int is_done = 1;
    if (message != Py_None) {
        is_done = PyList_Append(search->found, message) == 0;
        search->lowest = offset < search->lowest ? offset : search->lowest;
    }
    Py_DECREF(message);
    return is_done;
}

/* Look at candidates; return the item to go on from, 0 behind the last, -1 with an error set. */
static int32_t
follow(Search *search, Chain *chain, int is_in_memory)
{
    for (int candidates = 0; candidates < CANDIDATES_PER_CALL; candidates++) {
        if (PyList_GET_SIZE(search->found) >= search->most) {
            return 0;
        }
        if (!is_in_memory || !next_candidate(chain, &search->wanted, STEPS_HELD)) {
            int is_any = 0;
            if (chain->number != 0) {
                Py_BEGIN_ALLOW_THREADS;
                is_any = next_candidate(chain, &search->wanted, INT_MAX);
                Py_END_ALLOW_THREADS;
            }
            if (!is_any) {
                return 0;
            }
        }
        if (!take_candidate(search, chain->offset)) {
            return -1;
        }
    }
    return chain->number;
}

/* Read topic, key, begin and end; 0 without an error when they are not ASCII or no numbers. */
static int
take_wanted(Wanted *wanted, PyObject *question)
{
    if (!PyTuple_Check(question) || PyTuple_GET_SIZE(question) != 4) {
        return 0;
    }
    PyObject *topic = PyTuple_GET_ITEM(question, 0), *key = PyTuple_GET_ITEM(question, 1);
    if (!PyUnicode_Check(topic) || !PyUnicode_Check(key) || !PyUnicode_IS_ASCII(topic)
        || !PyUnicode_IS_ASCII(key)) {
        return 0;
    }
    wanted->topic = (const char *)PyUnicode_1BYTE_DATA(topic);
    wanted->topic_size = PyUnicode_GET_LENGTH(topic);
    wanted->key = (const char *)PyUnicode_1BYTE_DATA(key);
    wanted->key_size = PyUnicode_GET_LENGTH(key);
    return take_number(PyTuple_GET_ITEM(question, 2), &wanted->begin_ms)
        && take_number(PyTuple_GET_ITEM(question, 3), &wanted->end_ms);
}

static int32_t
search_file(Search *search, const Py_buffer *file, PyObject *layout, int64_t number)
{
    int64_t slots, items;
    if (!PyTuple_Check(layout) || PyTuple_GET_SIZE(layout) != 2
        || !take_number(PyTuple_GET_ITEM(layout, 0), &slots)
        || !take_number(PyTuple_GET_ITEM(layout, 1), &items)) {
        PyErr_SetString(PyExc_TypeError, "a layout is numbers of slots and items");
        return -1;
    }
    const uint8_t *bytes = file->buf;
    if (slots < 1 || slots > INT32_MAX || items < 0 || items > INT32_MAX
        || file->len < HEADER_SIZE + slots * SLOT_SIZE + items * ITEM_SIZE
        || read_i64(bytes) > search->wanted.end_ms || read_i64(bytes + 8) < search->wanted.begin_ms) {
        return 0;
    }
    Chain chain;
    begin_chain(&chain, bytes, &search->wanted, slots, items, number);
    /* Whoever gives up the interpreter's lock may wait milliseconds for it: it is kept where a few
     * items and records are likely in memory. */
    return follow(search, &chain, read_i64(bytes + 24) >= search->in_disk_below);
}

/* append_hits(owner, decode, index_file, layout, number, question, place, in_disk_below, most, found):
 * the item to go on from, 0 behind the last; None, with nothing done, when the kernel must be asked. */
static PyObject *
append_hits(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t argument_count)
{
    Search search = {.lowest = INT64_MAX};
    int64_t number;
    Py_buffer file;
    if (argument_count != ARGUMENTS || !PyList_Check(args[9])) {
        PyErr_SetString(PyExc_TypeError, "append_hits takes ten arguments, the last one a list");
        return NULL;
    }
    search.owner = args[0];
    search.decode = args[1];
    search.question = args[5];
    search.found = args[9];
    if (!take_number(args[4], &number) || !take_wanted(&search.wanted, args[5])
        || !take_number(args[7], &search.in_disk_below) || !take_number(args[8], &search.most)) {
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(search.found); i++) {
        int64_t offset = offset_of(PyList_GET_ITEM(search.found, i));
        if (offset == -1 && PyErr_Occurred()) {
            return NULL;
        }
        search.lowest = offset < search.lowest ? offset : search.lowest;
    }
    if (!take_place(&search.place, args[6]) || PyObject_GetBuffer(args[2], &file, PyBUF_SIMPLE) < 0) {
        leave_place(&search.place);
        return NULL;
    }
    int32_t next = search_file(&search, &file, args[3], number);
    PyBuffer_Release(&file);
    leave_place(&search.place);
    return next < 0 ? NULL : PyLong_FromLong(next);
}

static PyMethodDef module_methods[] = {
    {"append_hits", (PyCFunction)(void (*)(void))append_hits, METH_FASTCALL, NULL},
    {NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_key_search",
    .m_doc = "Find messages by key, compiled.",
    .m_methods = module_methods,
};

PyMODINIT_FUNC
PyInit__key_search(void)
{
    return PyModuleDef_Init(&module_definition);
}
