/* What a compiled put needs of the group it waits in; the modules meet through a capsule. */
#ifndef ROCKETSTORE_PUT_GROUP_H
#define ROCKETSTORE_PUT_GROUP_H

#define PUT_GROUP_CALLS "rocketstore.storage.log._put_group.calls"

typedef struct {
    PyTypeObject *type;
    /* Wait until the group is told that all before `offset` is on the disk: 1 it is, 0 nobody can say
     * (the time is over, or the group is closed), -1 an error. */
    int (*wait)(PyObject *group, long long offset, double timeout_s);
} PutGroupCalls;

#endif
