/* The rule of `format.record_text` for compiled readers.
 *
 * Law: it answers as the rule does; nothing outside the text is read.
 */
#ifndef ROCKETSTORE_RECORD_TEXT_H
#define ROCKETSTORE_RECORD_TEXT_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { TEXT_SECTOR_SIZE = 512, TEXT_NAME_END = 1 };

/* Whether bytes are UTF-8 (table 3-7 of the Unicode standard). */
static inline int
is_utf8(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        uint64_t word;
        if (end - at >= (Py_ssize_t)sizeof word) {
            memcpy(&word, at, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                at += sizeof word;
                continue;
            }
        }
        uint8_t lead = *at++;
        if (lead < 0x80) {
            continue;
        }
        if (lead < 0xC2 || lead > 0xF4) {
            return 0;
        }
        int following = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (end - at < following) {
            return 0;
        }
        for (; following > 0; following--, at++, low = 0x80, high = 0xBF) {
            if (*at < low || *at > high) {
                return 0;
            }
        }
    }
    return 1;
}

/* Whether bytes can be the properties of a record; none at all can. */
static inline int
are_properties(const uint8_t *at, Py_ssize_t size)
{
    return size == 0
           || (at[size - 1] != 0 && memchr(at, TEXT_NAME_END, (size_t)size) != NULL
               && is_utf8(at, at + size));
}

/* Whether the text of a record, from its topic to its end, is whole; `offset` is the text's. */
static inline int
is_text_whole(const uint8_t *text, Py_ssize_t size, Py_ssize_t topic_size, int64_t offset)
{
    if ((topic_size > 0 && text[topic_size - 1] == 0)
        || !are_properties(text + topic_size + 2, size - topic_size - 2)) {
        return 0;
    }
    Py_ssize_t edge = (Py_ssize_t)(-(uint64_t)offset & (TEXT_SECTOR_SIZE - 1));
    for (; edge + TEXT_SECTOR_SIZE <= size; edge += TEXT_SECTOR_SIZE) {
        if (text[edge] == 0 && memcmp(text + edge, text + edge + 1, TEXT_SECTOR_SIZE - 1) == 0) {
            return 0;
        }
    }
    return 1;
}

#endif
