#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Another language: fits y = 3x - 1 through the C API's shared library, with ctypes alone."""

# covers: c api: another language trains through the shared library
import ctypes
import sys

lib = ctypes.CDLL(sys.argv[1])
FLOAT, TEXT, HANDLE = 1, ctypes.c_char_p, ctypes.c_void_p


def call(name, result, *args):
    function = getattr(lib, "millrace_" + name)
    function.restype = result
    value = function(*args)
    return HANDLE(value) if result is HANDLE else value


class Optimizer(ctypes.Structure):  # MillraceOptimizerOptions; later fields keep their defaults
    _fields_ = [("struct_size", ctypes.c_size_t), ("optimizer", TEXT), ("name", TEXT),
                ("learning_rate", ctypes.c_double)]


def tensor(values, *dims):
    data = (ctypes.c_float * len(values))(*values)
    return call("tensor_from_data", HANDLE, FLOAT, (ctypes.c_int64 * len(dims))(*dims), len(dims),
                data, ctypes.c_size_t(ctypes.sizeof(data)), status)


def add(op, *inputs):
    return call("graph_add_node", TEXT, graph, op, None, (TEXT * len(inputs))(*inputs),
                len(inputs), status)


def variable(name):
    zero = call("graph_add_constant", TEXT, graph, None, tensor([0.0]), status)
    call("graph_add_variable", TEXT, graph, name, zero, None, status)
    return call("graph_variable_value", TEXT, graph, name, status)


status = call("status_new", HANDLE)
graph = call("graph_new", HANDLE, status)
x, y = (call("graph_add_placeholder", TEXT, graph, name, FLOAT, None, -1, status)
        for name in (b"x", b"y"))
w, b = variable(b"w"), variable(b"b")
loss = add(b"L2Loss", add(b"Sub", add(b"Add", add(b"Mul", w, x), b), y))
options = Optimizer(ctypes.sizeof(Optimizer), b"GradientDescent", None, 0.1)
train = call("graph_minimize", TEXT, graph, loss, ctypes.byref(options), status)
session = call("session_new", HANDLE, graph, None, status)
call("session_initialize_variables", ctypes.c_int, session, status)
xs = [0.0, 0.5, 1.0, 1.5]
feeds = (HANDLE * 2)(tensor(xs, 4), tensor([3 * v - 1 for v in xs], 4))
for _ in range(300):
    call("session_run", ctypes.c_int, session, (TEXT * 2)(x, y), feeds, 2, None, None, 0,
         (TEXT * 1)(train), 1, None, status)
results = (HANDLE * 2)()
call("session_run", ctypes.c_int, session, None, None, 0, (TEXT * 2)(w, b), results, 2, None, 0,
     None, status)
assert not call("status_code", ctypes.c_int, status), call("status_message", TEXT, status)
fitted = [ctypes.c_float.from_address(call("tensor_data", HANDLE, HANDLE(result)).value).value
          for result in results]
print(call("version", TEXT).decode(), "w, b =", fitted)
assert abs(fitted[0] - 3) < 1e-3 and abs(fitted[1] + 1) < 1e-3, fitted
