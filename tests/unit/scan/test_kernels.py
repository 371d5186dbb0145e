"""The door to the bulk functions: switchable; compiled and interpreted they are one."""

import json

import pytest

from rocketstore.scan import kernels
from support.python_process import printed


def test_importing_the_scan_loads_no_arrow():
    code = "import sys, rocketstore.scan.scanner; print('pyarrow' in sys.modules)"
    assert printed(code) == "False\n"


@pytest.mark.parametrize("switch", ["off", "on"])
def test_the_switch_chooses_between_the_source_and_what_was_compiled(switch):
    code = (
        "from rocketstore.scan import kernels\n"
        "from rocketstore.scan.scanner import scan_window\n"
        "assert len(list(scan_window(bytes(64), base=0))) == 1\n"
        "import rocketstore.native.walk as walk\n"
        "print(kernels.is_compiled(), walk.__file__.endswith('.py'))"
    )
    compiled = json.loads(printed(code, ROCKETSTORE_KERNELS="off").split()[1].lower())
    assert compiled is True
    if switch == "on" and kernels.is_compiled():
        assert printed(code, ROCKETSTORE_KERNELS="on").split() == ["True", "False"]


def test_without_cython_at_hand_the_sources_run():
    code = (
        "import sys; sys.modules['cython'] = None\n"
        "import numpy as np\n"
        "from rocketstore.scan import kernels\n"
        "print(kernels.last_nonzero(np.frombuffer(b'abc', np.uint8), 0, 3))"
    )
    assert printed(code, ROCKETSTORE_KERNELS="off") == "2\n"


def test_what_comes_back_are_plain_numbers_interpreted_too():
    """Numpy's would go into JSON, system calls and other processes."""
    code = (
        "import numpy as np\n"
        "from rocketstore.scan import kernels\n"
        "from rocketstore.scan.columns import new_columns\n"
        "zeros, ends = np.zeros(99, np.uint8), np.zeros(3, np.int64)\n"
        "places = np.zeros(2, np.int64)\n"
        "found = [\n"
        "    *kernels.walk(zeros, np.int64(0), 99, 0, 99, True, new_columns(3)),\n"
        "    kernels.resync(zeros, np.int64(0), 99, 0, 99),\n"
        "    kernels.last_nonzero(zeros, np.int64(0), 99),\n"
        "    kernels.copy_slices(zeros, places, places, zeros.copy()),\n"
        "    kernels.slice_crcs(zeros, places, places, ends),\n"
        "    *kernels.split_properties(zeros, places, places, ends, np.zeros((2, 4), np.int64)),\n"
        "    kernels.rebuild_slots(np.zeros(200, np.uint8), np.int64(5), 3, 9),\n"
        "]\n"
        "print({type(one).__name__ for one in found})"
    )
    assert printed(code, ROCKETSTORE_KERNELS="off") == "{'int'}\n"
