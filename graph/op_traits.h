// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_OP_TRAITS_H_
#define MILLRACE_GRAPH_OP_TRAITS_H_

// OpTraits: what plans, rewrites, placers, savers and training know of an op without its name.
//
// An op states them where it is registered (OpSpec, graph/op_registry.h). Node::traits() has those
// of a node's op; a node whose op is not registered, and a call of a function, have none of them.
//
// Plain data.

#include <cstdint>

namespace millrace {

// How an op uses the variable that an input of it is: its handle, or a reference to it.
enum class VariableUse : uint8_t {
  kMayWrite,   // whatever is not known to be one of the others
  kReads,      // gives its value as output 0
  kReadsRows,  // gives rows of it, or a part of each
  kAsks,       // for its shape, or whether it has a value
  kSaves,      // writes its value to a file; takes the value, or a reference and walks its rows
};

// Does an op hand input i on as output i?
enum class HandsOn : uint8_t {
  kNothing,
  kValue,             // the value; no gradient, or another one, flows back
  kValueAndGradient,  // and the gradient as it is
};

// Is an op there to be fed?
enum class Feeding : uint8_t {
  kNone,
  kRequired,  // a step that needs its output must feed it
  kOptional,  // it has a value of its own, too
};

// May an op wait for what another step does?
enum class WaitsForSteps : uint8_t {
  kNever,
  kMay,          // for an element of a queue; for a value that its loop asks for again and again
  kInFunctions,  // when a function may that another step has given to it, as to an iterator
};

struct OpTraits {
  // Makes the variable that its output 0 is (a handle, or a reference).
  bool makes_variable = false;
  // Its outputs are the same tensors in each step of a session.
  bool same_each_step = false;
  // Tells the shape of its inputs, and nothing of their values.
  bool describes_shape = false;
  // Reads or writes files: another step may give other values.
  bool uses_files = false;
  // Runs whether its inputs are dead or not, and is never dead itself.
  bool is_trigger = false;
  HandsOn hands_on = HandsOn::kNothing;
  Feeding feeding = Feeding::kNone;
  WaitsForSteps waits_for_steps = WaitsForSteps::kNever;
  // Its inputs from variable_begin on, and before variable_end.
  VariableUse variable_use = VariableUse::kMayWrite;
  int variable_begin = 0, variable_end = 0;

  VariableUse VariableUseOf(int input) const {
    return variable_begin <= input && input < variable_end ? variable_use : VariableUse::kMayWrite;
  }
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_OP_TRAITS_H_
